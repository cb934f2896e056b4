"""Fixtures of the image tests. `build.py test` names the image and runs pytest in the engine's network."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
import testinfra
from docker.models.containers import Container

from builder.pins import Target, all_targets
from builder.project import default_project

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
IN_CI = os.environ.get("CI") == "true"
IMAGE_PYTHON = (3, 11)
PYTEST_DISTRIBUTIONS = (
    *("pytest", "pluggy", "iniconfig", "pygments", "packaging"),
    *("hypothesis", "sortedcontainers"),
)


@dataclass(frozen=True)
class Ran:
    """What a command in the container ended with."""

    returncode: int
    stdout: str
    stderr: str


def absent(reason: str) -> None:
    """A missing engine or image skips on a developer's machine and fails in CI."""
    if IN_CI:
        pytest.fail(f"CI must have it: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    client = docker.from_env(timeout=120)
    try:
        client.ping()
    except (docker.errors.DockerException, OSError) as exc:
        absent(f"no Docker engine answers: {exc}")
    return client


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient) -> str:
    name = os.environ.get("DDTREE_IMAGE", "")
    if not name:
        absent("DDTREE_IMAGE names no image; `python build.py test` sets it")
    try:
        engine.images.get(name)
    except docker.errors.ImageNotFound:
        absent(f"the engine has no image {name}")
    return name


@pytest.fixture(scope="session")
def target(image: str) -> Target:
    name = os.environ["DDTREE_TARGET"]
    return next(t for t in all_targets(default_project()) if t.name == name)


@pytest.fixture(scope="session")
def labels(engine: docker.DockerClient, image: str) -> dict[str, str]:
    return dict(engine.images.get(image).labels)


@pytest.fixture(scope="session")
def mounted_pytest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest and hypothesis for the image's Python as a folder: the image itself carries none."""
    folder = tmp_path_factory.mktemp("pytest")
    # hypothesis is compiled for one minor version of Python.
    if sys.version_info[:2] == IMAGE_PYTHON:
        for name in PYTEST_DISTRIBUTIONS:
            copy_distribution(name, folder)
    else:
        install_for_image(PYTEST_DISTRIBUTIONS, folder)
    folder.chmod(0o755)  # pytest makes 0700; the container's user is another one
    return folder


def copy_distribution(name: str, folder: Path) -> None:
    for file in importlib.metadata.files(name) or []:
        if file.parts[0].endswith(".dist-info") or ".." in file.parts:
            continue
        if "__pycache__" in file.parts:
            continue
        destination = folder / file
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), destination)


def install_for_image(names: Sequence[str], folder: Path) -> None:
    """The versions that the host runs, from the index, for the image's Python."""
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    version = ".".join(str(part) for part in IMAGE_PYTHON)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--target", str(folder), "--no-deps", "--only-binary", ":all:"),
            *("--python-version", version),
            # pip takes each tag literally.
            *("--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64"),
            *pinned,
        ],
        check=True,
        timeout=300,
    )


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of a container that shares compiled modules with the others: the image ships none,
    and compiling SGLang anew is most of what each of dozens of starts would do."""
    folder = tmp_path_factory.mktemp("bytecode")
    folder.chmod(0o1777)
    for parent in folder.parents[:2]:
        parent.chmod(0o755)
    return {
        # The image says not to write any: empty means no such wish.
        "environment": {"PYTHONPYCACHEPREFIX": "/bytecode", "PYTHONDONTWRITEBYTECODE": ""},
        "volumes": {str(folder): {"bind": "/bytecode", "mode": "rw"}},
    }


@pytest.fixture(scope="session")
def container(
    engine: docker.DockerClient, image: str, mounted_pytest: Path, bytecode: dict[str, Any]
) -> Iterator[Container]:
    """One idle container of the image, with the tests mounted read-only."""
    running = engine.containers.run(
        image,
        ["sleep", "infinity"],
        detach=True,
        network_mode="none",
        environment=bytecode["environment"],
        volumes={
            str(HERE.parent): {"bind": "/tests", "mode": "ro"},
            # What tests/overlay compiles against the image's own torch, and what measures its ops.
            str(REPOSITORY / "ddtree_overlay"): {"bind": "/ddtree_overlay", "mode": "ro"},
            str(REPOSITORY / "benchmarks"): {"bind": "/benchmarks", "mode": "ro"},
            str(mounted_pytest): {"bind": "/pytest", "mode": "ro"},
            **bytecode["volumes"],
        },
    )
    try:
        yield running
    finally:
        running.remove(force=True)


@pytest.fixture(scope="session")
def host(container: Container) -> Any:
    """testinfra's view of the container."""
    return testinfra.get_host(f"docker://{container.id}")


@pytest.fixture(scope="session")
def run_in(container: Container) -> Callable[..., Ran]:
    """Run a command in the idle container."""

    def run(*argv: str, env: dict[str, str] | None = None, user: str = "") -> Ran:
        ran: Any = container.exec_run(list(argv), demux=True, environment=env or {}, user=user)
        out, err = ran.output
        return Ran(int(ran.exit_code), (out or b"").decode(), (err or b"").decode())

    return run


@pytest.fixture(scope="session")
def image_python(run_in: Callable[..., Ran]) -> Callable[[str], Ran]:
    """Run Python code with the image's own interpreter."""

    def run(code: str) -> Ran:
        return run_in("python", "-c", code)

    return run


@pytest.fixture
def run_image(engine: docker.DockerClient, image: str) -> Callable[..., Ran]:
    """A fresh container from the image with its own entrypoint, removed afterwards."""

    def run(*argv: str, **options: Any) -> Ran:
        options.setdefault("network_mode", "none")
        started = engine.containers.create(image, list(argv), **options)
        try:
            started.start()
            code = started.wait(timeout=300)["StatusCode"]
            out = started.logs(stdout=True, stderr=False).decode()
            err = started.logs(stdout=False, stderr=True).decode()
        finally:
            started.remove(force=True)
        return Ran(int(code), out, err)

    return run
