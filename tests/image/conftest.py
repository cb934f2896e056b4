"""Fixtures of the image tests. `build.py test` names the image and runs pytest in the engine's network.

DDTREE_IMAGE names the image, on the engine that answers. DDTREE_FOREIGN, if set, says why the image is
not taken for a build of this tree: tests that compare the two skip with it. What an image says of
itself (its manifest, its labels) is compared with what is in it, whoever built it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
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
from tests.image.appliance import Appliance, appliance, readable

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
MANIFEST = "/opt/ddtree/manifest.json"
# They share one server, which the last of them ends. Idle, it takes a core: the others come first.
SERVED = ("test_serving", "test_health", "test_lifecycle")
KEY = "sk-a-key-that-must-not-be-seen-0123456789"
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
        absent("DDTREE_IMAGE names no image; `python3 build.py test` sets it")
    try:
        engine.images.get(name)
    except docker.errors.ImageNotFound:
        absent(f"the engine has no image {name}")
    return name


def pytest_configure() -> None:
    """SIGTERM, which `build.py` sends where it is interrupted, removes the containers as well."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that share the server last, in the order of SERVED."""
    places = [n for n, item in enumerate(items) if item.path.parent == HERE]
    order = {name: n for n, name in enumerate(SERVED, 1)}
    ours = sorted((items[n] for n in places), key=lambda item: order.get(item.path.stem, 0))
    for n, item in zip(places, ours, strict=True):
        items[n] = item


@pytest.fixture(scope="session")
def this_tree(image: str) -> None:
    """Skips unless the image was built from this tree."""
    reason = os.environ.get("DDTREE_FOREIGN")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def target(this_tree: None, name: str) -> Target:
    """This tree's pins for the image."""
    return next(t for t in all_targets(default_project()) if t.name == name)


@pytest.fixture(scope="session")
def config(engine: docker.DockerClient, image: str) -> dict[str, Any]:
    """The image configuration."""
    return dict(engine.images.get(image).attrs["Config"])


@pytest.fixture(scope="session")
def labels(config: dict[str, Any]) -> dict[str, str]:
    return dict(config["Labels"])


@pytest.fixture(scope="session")
def ours(labels: dict[str, str]) -> dict[str, str]:
    """Labels of this project, without their prefix."""
    (prefix,) = [k.removesuffix("build-id") for k in labels if k.endswith(".build-id")]
    return {k.removeprefix(prefix): v for k, v in labels.items() if k.startswith(prefix)}


@pytest.fixture(scope="session")
def name(ours: dict[str, str]) -> str:
    """Of the target, as the labels say."""
    return ours["variant"] + ("-stand-in" if ours["stand-in"] == "true" else "")


@pytest.fixture(scope="session")
def manifest(host: Any) -> dict[str, Any]:
    """What the image says of itself: the pins that it was made from, and what was found."""
    document: dict[str, Any] = json.loads(host.file(MANIFEST).content_string)
    return document


@pytest.fixture(scope="session")
def recount(run_in: Callable[..., Ran]) -> dict[str, Any]:
    """What recount.py finds on disk."""
    checked = ("ddtree-overlay", "sglang", "sglang-kernel")
    ran = run_in("python", "/tests/image/recount.py", *checked, user="0")
    assert ran.returncode == 0, ran.stderr[-2000:]
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


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
    # tests/e2e, which has these fixtures once more, finds the same folder.
    folder = tmp_path_factory.getbasetemp() / "bytecode"
    folder.mkdir(exist_ok=True)
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
        # Threads of small tensors only wait for one another, above all on a busy machine.
        environment={**bytecode["environment"], "OMP_NUM_THREADS": "1"},
        healthcheck={"test": ["NONE"]},  # nothing is served here
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


# Importing the stack takes many seconds; what is asked of it by several files is asked once.
OBSERVE = r"""
import ctypes, json, pathlib, platform, sys
import torch, triton, sglang, ddtree_overlay.ops
import importlib.metadata as m
packages = pathlib.Path(torch.__path__[0]).parent
major = torch.version.cuda.split(".")[0]
nvrtc = next((packages / "nvidia").rglob(f"libnvrtc.so.{major}*"))
a, b = ctypes.c_int(), ctypes.c_int()
assert ctypes.CDLL(str(nvrtc)).nvrtcVersion(ctypes.byref(a), ctypes.byref(b)) == 0
(extension,) = pathlib.Path(ddtree_overlay.__path__[0]).glob("_C.*.so")
ops = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("ddtree::") and "::_" not in n]
has = torch._C._dispatch_has_kernel_for_dispatch_key
print(json.dumps({
    "python": sys.version.split()[0], "glibc": platform.libc_ver()[1],
    "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
    "sglang": sglang.__version__, "kernels": m.version("sglang-kernel"),
    "overlay": m.version("ddtree-overlay"), "nvrtc": f"{a.value}.{b.value}",
    "cxx11": torch.compiled_with_cxx11_abi(), "lib": torch.__path__[0] + "/lib",
    "extension": str(extension), "ops": ops, "without_cpu": [n for n in ops if not has(n, "CPU")],
}))
"""


@pytest.fixture(scope="session")
def observed(image_python: Callable[[str], Ran]) -> dict[str, Any]:
    """What importing the stack says, not what its metadata says."""
    ran = image_python(OBSERVE)
    assert ran.returncode == 0, ran.stderr[-2000:]
    document: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return document


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


@pytest.fixture(scope="session")
def hardened(
    engine: docker.DockerClient,
    image: str,
    bytecode: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Appliance]:
    """A server under a UID that the image does not know, on a read-only root, with an API key."""
    key = readable(tmp_path_factory.mktemp("secret"), "key", KEY + "\n")
    with appliance(
        engine,
        image,
        bytecode,
        environment={"DDTREE_API_KEY_FILE": "/run/secrets/key"},
        volumes={str(key): {"bind": "/run/secrets/key", "mode": "ro"}},
        key=KEY,
        user="4711:0",
        read_only=True,
        tmpfs={"/tmp": "size=256m", "/var/cache/ddtree": "size=1g,mode=2775,gid=0,exec"},
        shm_size="1g",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
    ) as started:
        # Before the model is there: alive, and not ready.
        while started.probe("/livez") != 200:
            started.container.reload()
            assert started.container.status == "running", started.logs()[-4000:]
        assert started.probe("/readyz") == 503
        started.wait_ready()
        yield started


@pytest.fixture
def serving(hardened: Appliance) -> Appliance:
    """The shared server, ready; started again where a test has ended it."""
    hardened.container.reload()
    if hardened.container.status != "running":
        hardened.container.start()
        hardened.wait_ready()
    return hardened
