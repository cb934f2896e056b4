"""compose and kubectl as Debian ships them, unpacked into the builder's cache; no daemon, no cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.engine.aptsources import AptUnavailableError
from builder.engine.packages import Want, obtain
from builder.pins import all_targets
from builder.project import default_project

ROOT = default_project().root
DIGEST = "sha256:" + "0" * 64
IMAGE = f"registry.example/ddtree@{DIGEST}"


def debian_program(package: str, program: str) -> Path:
    """From the suite that the private engine comes from. Skips where there is no Debian, not in CI."""
    project = default_project()
    suite = all_targets(project)[0].shared.engine.suite
    try:
        found = obtain(project, [Want(suite, (package,))]).program(program)
    except AptUnavailableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no {program}: {error.what}")
    assert found is not None
    return found


def clean(environment: dict[str, str]) -> dict[str, str]:
    """This process's environment without settings of the appliance, then `environment`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DDTREE_", "COMPOSE_"))}
    return {**kept, **environment}


@pytest.fixture(scope="session")
def compose() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`docker compose config --format json` of our file, with only these variables set."""
    program = debian_program("docker-compose", "docker-compose")

    def run(*profiles: str, **environment: str) -> subprocess.CompletedProcess[str]:
        chosen = [word for profile in profiles for word in ("--profile", profile)]
        return subprocess.run(
            # Not the developer's own .env.
            [
                *(str(program), "-f", "compose.yaml", "--env-file", os.devnull, *chosen),
                *("config", "--format", "json"),
            ],
            cwd=ROOT,
            env=clean(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.fixture(scope="session")
def services(compose: Callable[..., subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    """Every service of compose.yaml, as compose understands it, with nothing set but the image."""
    ran = compose("*", DDTREE_IMAGE=IMAGE)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout)["services"])


@pytest.fixture(scope="session")
def kustomize() -> Callable[[Path], list[dict[str, Any]]]:
    """What `kubectl kustomize FOLDER` gives, one dictionary a resource."""
    program = debian_program("kubectl", "kubectl")

    def run(folder: Path) -> list[dict[str, Any]]:
        ran = subprocess.run(
            [program, "kustomize", str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return [document for document in yaml.safe_load_all(ran.stdout) if document]

    return run
