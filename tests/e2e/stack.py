"""Fixtures of the end-to-end proof: its models, its servers' answers, scripts in the image.

Everything heavy runs in a container of the image under test (`build.py test` names it). For work on
these tests, DDTREE_E2E_PYTHON may name an interpreter that has the image's stack, and
DDTREE_E2E_MODELS a folder with target/ and draft/, DDTREE_E2E_RESULTS a file that run.py wrote:
then no engine is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder.project import default_project
from tests.image.conftest import (
    Ran,
    bytecode,
    config,
    engine,
    image,
    labels,
    mounted_pytest,
    name,
    ours,
)

__all__ = ["bytecode", "config", "engine", "image", "labels", "mounted_pytest", "name", "ours"]

ROOT = Path(__file__).resolve().parents[2]
MODELS_SOURCE = Path(__file__).parent / "models"
ENVIRONMENT = {"CI": "true"}
TRAIN_SECONDS, PROOF_SECONDS = 1500, 2400


@dataclass(frozen=True)
class Stack:
    """Runs the repository's scripts where SGLang is installed: in a container, or with `python`."""

    engine: Any = None
    image: str = ""
    pytest: Path | None = None
    bytecode: dict[str, Any] = field(default_factory=dict)
    python: str = ""

    def run(
        self,
        script: str,
        *arguments: str,
        writable: Path,
        readable: Sequence[Path] = (),
        seconds: int,
    ) -> Ran:
        """A script of the repository, or "-m" with a module's name and arguments.

        Both kinds of folder keep their path inside the container; its repository is /repo.
        """
        if self.python:
            return self._run_here(script, arguments, seconds)
        volumes = {str(ROOT / "tests"): {"bind": "/repo/tests", "mode": "ro"}}
        volumes |= {str(folder): {"bind": str(folder), "mode": "ro"} for folder in readable}
        volumes |= {str(self.pytest): {"bind": "/pytest", "mode": "ro"}} | self.bytecode["volumes"]
        volumes[str(writable)] = {"bind": str(writable), "mode": "rw"}
        writable.chmod(0o777)  # the container's user is another one
        container = self.engine.containers.create(
            self.image,
            ["python", script if script == "-m" else f"/repo/{script}", *arguments],
            network_mode="none",
            shm_size="1g",
            environment={
                **ENVIRONMENT,
                **self.bytecode["environment"],
                **_passed_on(),
                "PYTHONPATH": "/pytest:/repo",
                "DDTREE_E2E_PYTEST": "/pytest",
            },
            volumes=volumes,
        )
        try:
            container.start()
            code = self._wait(container, seconds)
            out = container.logs(stdout=True, stderr=False).decode("utf-8", "replace")
            err = container.logs(stdout=False, stderr=True).decode("utf-8", "replace")
        finally:
            container.remove(force=True)
        return Ran(code, out, err)

    @staticmethod
    def _wait(container: Any, seconds: int) -> int:
        # Not container.wait(): its one long request outlives the client's time limit.
        deadline = time.monotonic() + seconds
        container.reload()
        while container.status != "exited":
            if time.monotonic() > deadline:
                pytest.fail(f"no end after {seconds} s:\n{container.logs(tail=60).decode()}")
            time.sleep(1)
            container.reload()
        return int(container.attrs["State"]["ExitCode"])

    def _run_here(self, script: str, arguments: Sequence[str], seconds: int) -> Ran:
        done = subprocess.run(
            [self.python, script if script == "-m" else str(ROOT / script), *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Stack:
    python = os.environ.get("DDTREE_E2E_PYTHON", "")
    if python:
        return Stack(python=python)
    parts = ("engine", "image", "mounted_pytest", "bytecode")
    return Stack(*map(request.getfixturevalue, parts))


@pytest.fixture(scope="session")
def tiny_models(stack: Stack) -> Path:
    """Folder of the trained pair. Trained once per state of its sources, by the first image."""
    given = os.environ.get("DDTREE_E2E_MODELS")
    if given:
        return Path(given).resolve()
    digest = hashlib.sha256()
    for source in sorted(MODELS_SOURCE.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    kept = default_project().cache / "tiny-models"
    folder = kept / digest.hexdigest()[:16]
    if not (folder / "complete").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        ran = stack.run(
            "tests/e2e/models/train.py", str(folder), writable=folder, seconds=TRAIN_SECONDS
        )
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
        (folder / "complete").write_text("trained\n")
    return folder


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder that containers may write to and other users may reach."""
    folder = tmp_path_factory.mktemp("e2e")
    for parent in folder.parents[:2]:
        parent.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def proof_file(stack: Stack, tiny_models: Path, workspace: Path) -> Path:
    """Where run.py wrote what every server of `configurations.PROOF` answered."""
    given = os.environ.get("DDTREE_E2E_RESULTS")
    if given:
        return Path(given).resolve()
    out = workspace / "proof.json"
    ran = stack.run(
        *("tests/e2e/run.py", str(tiny_models), str(out)),
        writable=workspace,
        readable=[tiny_models],
        seconds=PROOF_SECONDS,
    )
    print(ran.stdout)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-8000:]
    return out


@pytest.fixture(scope="session")
def proof(proof_file: Path) -> dict[str, Any]:
    """Result of each server by the configuration's name."""
    document: dict[str, Any] = json.loads(proof_file.read_text("utf-8"))
    return document


@pytest.fixture(scope="session")
def plain(proof: dict[str, Any]) -> dict[str, Any]:
    """The answers without speculation, by group."""
    groups: dict[str, Any] = proof["plain"]["groups"]
    return groups


def _passed_on() -> dict[str, str]:
    names = ("DDTREE_E2E_MODELS",)
    return {name: os.environ[name] for name in names if name in os.environ}
