"""The doctor and the self-test of the image itself, as `docker run` starts them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.image.conftest import HERE, Ran
from tests.overlay.doctor.fake_host import FakeHost, gpus
from tests.overlay.doctor.nvml import STUB

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
def folder(tmp_path_factory: pytest.TempPathFactory, run_in: Callable[..., Ran]) -> Path:
    """The stub of NVML, and a host, that any user may read."""
    found = tmp_path_factory.mktemp("host")
    for parent in (found, *found.parents[:2]):
        parent.chmod(0o755)
    # By the image's compiler: a library made here may want a newer glibc than the image has.
    source = f"/tests/{STUB.relative_to(HERE.parent)}"
    ran = run_in(
        "sh", "-c", f"g++ -x c -shared -fPIC -O1 {source} -o /tmp/nvml && base64 /tmp/nvml"
    )
    assert ran.returncode == 0, ran.stderr
    library = found / "libnvidia-ml.so.1"
    library.write_bytes(base64.b64decode(ran.stdout))
    library.chmod(0o755)
    return found


def on_host(run_image: Callable[..., Ran], folder: Path, host: FakeHost) -> Ran:
    root = folder / host.driver
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
            "DDTREE_HOST_ROOT": f"/host/{host.driver}",
            "LD_LIBRARY_PATH": "/host",
            "NVML_STUB": host.stub(),
        },
        volumes={
            str(folder): {"bind": "/host", "mode": "ro"},
            str(root / "dev/shm"): {"bind": f"/host/{host.driver}/dev/shm", "mode": "rw"},
        },
    )


def test_eight_gpus_pass_with_the_images_own_nvml_binding(
    run_image: Callable[..., Ran], folder: Path, manifest: dict[str, Any]
) -> None:
    ran = on_host(run_image, folder, FakeHost())
    if manifest["stand_in"]:
        # GPUs that only NVML shows: the checks run, though the image would not serve on them.
        assert ran.returncode in (0, 74), ran.stderr
        return
    assert errors(ran) == set(), ran.stdout
    assert ran.returncode == 0
    document = json.loads(ran.stdout)
    assert len(document["hardware"]["gpus"]) == 8


def test_the_labels_driver_floor_is_what_the_doctor_refuses_by(
    run_image: Callable[..., Ran], folder: Path, ours: dict[str, str]
) -> None:
    """The floor is in the image's manifest, not in the code: itself is enough, one less is not."""
    major, _, minor = ours["driver-floor"].rpartition(".")
    below = f"{major}.{int(minor) - 1:0{len(minor)}}"
    numbers = [int(part) for part in ours["cuda"].split(".")]
    cuda = numbers[0] * 1000 + numbers[1] * 10  # as NVML writes it
    for driver, refused in ((ours["driver-floor"], False), (below, True)):
        ran = on_host(
            run_image, folder, FakeHost(gpus=gpus(), driver=driver, module=driver, cuda=cuda)
        )
        found = {code for code in errors(ran) if code.startswith("DRV")}
        assert found == ({"DRV007"} if refused else set()), (driver, ran.stdout)


def test_the_selftest_passes_and_its_receipt_is_of_this_image(
    run_image: Callable[..., Ran],
    ours: dict[str, str],
    manifest: dict[str, Any],
    bytecode: dict[str, Any],
) -> None:
    options = {**HARDENED, "volumes": bytecode["volumes"], "environment": bytecode["environment"]}
    ran = run_image("selftest", "--json", **options)
    assert ran.returncode == 0, ran.stderr[-4000:]
    receipt = json.loads(ran.stdout)
    assert receipt["result"] == "pass"
    assert receipt["image"]["build_id"] == ours["build-id"]
    assert receipt["image"]["stand_in"] is manifest["stand_in"]
