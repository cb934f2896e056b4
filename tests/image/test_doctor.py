"""The doctor and the self-test of the image itself, as `docker run` starts them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from builder.pins import Target
from tests.image.conftest import Ran
from tests.overlay.doctor.fake_host import FakeHost, gpus
from tests.overlay.doctor.nvml import compile_stub

pytestmark = pytest.mark.docker

HARDENED: dict[str, Any] = {
    "network_mode": "none",
    "read_only": True,
    "user": "54321:0",
    "tmpfs": {"/tmp": "size=1g,exec", "/var/cache/ddtree": "size=1g,mode=2775,gid=0,exec"},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}


def errors(ran: Ran) -> set[str]:
    document = json.loads(ran.stdout)
    return {f["code"] for f in document["findings"] if f["severity"] == "error"}


def test_without_a_driver_it_says_so_and_nothing_else(run_image: Callable[..., Ran]) -> None:
    ran = run_image("doctor", "--json", "--fast", **HARDENED)
    assert ran.returncode == 74, ran.stderr
    assert {code[:3] for code in errors(ran)} == {"DRV"}, ran.stdout
    assert "Traceback" not in ran.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of NVML, and a host, that any user may read."""
    found = tmp_path_factory.mktemp("host")
    for parent in (found, *found.parents[:2]):
        parent.chmod(0o755)
    compile_stub(found)
    return found


def on_host(run_image: Callable[..., Ran], folder: Path, host: FakeHost) -> Ran:
    root = folder / "root"
    if not root.exists():
        host.build(root)
        (root / "dev/shm").mkdir(exist_ok=True)
        (root / "dev/shm").chmod(0o1777)
    return run_image(
        *("doctor", "--json", "--fast", "--tp", "8"),
        **HARDENED,
        shm_size="32g",
        ulimits=[docker.types.Ulimit(name="nofile", soft=20000, hard=20000)],
        environment={
            "DDTREE_HOST_ROOT": "/host/root",
            "LD_LIBRARY_PATH": "/host",
            "NVML_STUB": host.stub(),
        },
        volumes={
            str(folder): {"bind": "/host", "mode": "ro"},
            str(root / "dev/shm"): {"bind": "/host/root/dev/shm", "mode": "rw"},
        },
    )


def test_eight_gpus_pass_with_the_images_own_nvml_binding(
    run_image: Callable[..., Ran], folder: Path, target: Target
) -> None:
    ran = on_host(run_image, folder, FakeHost())
    if target.stand_in:
        # GPUs that only NVML shows: the checks run, though the image would not serve on them.
        assert ran.returncode in (0, 74), ran.stderr
        return
    assert errors(ran) == set(), ran.stdout
    assert ran.returncode == 0
    document = json.loads(ran.stdout)
    assert len(document["hardware"]["gpus"]) == 8


def test_a_driver_below_the_images_floor_is_an_error(
    run_image: Callable[..., Ran], folder: Path
) -> None:
    """The floor is in the image's manifest, not in the code."""
    host = FakeHost(gpus=gpus(), driver="535.104.05", module="535.104.05", cuda=12020)
    ran = on_host(run_image, folder, host)
    assert ran.returncode == 74
    assert any(code.startswith("DRV") for code in errors(ran)), ran.stdout


def test_the_selftest_passes_and_its_receipt_is_of_this_image(
    run_image: Callable[..., Ran],
    engine: docker.DockerClient,
    image: str,
    labels: dict[str, str],
    target: Target,
    bytecode: dict[str, Any],
) -> None:
    options = {**HARDENED, "volumes": bytecode["volumes"], "environment": bytecode["environment"]}
    ran = run_image("selftest", "--json", **options)
    assert ran.returncode == 0, ran.stderr[-4000:]
    receipt = json.loads(ran.stdout)
    assert receipt["result"] == "pass"
    assert receipt["image"]["build_id"] == labels[f"{target.shared.project.label_prefix}.build-id"]
    assert receipt["image"]["stand_in"] is target.stand_in
