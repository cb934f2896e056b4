"""What is read of NVML, through the real pynvml and a stub library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.hardware import read_hardware
from ddtree_overlay.doctor.model import Gpu
from ddtree_overlay.doctor.visible import select
from tests.overlay.doctor.fake_host import MODEL, FakeHost, gpus
from tests.overlay.doctor.nvml import environment_of, run

PROGRAM = (
    "import json, os; from ddtree_overlay.doctor.hardware import read_hardware; "
    "from ddtree_overlay.doctor.report import hardware_document; "
    "print(json.dumps(hardware_document(read_hardware(os.environ))))"
)
FOUR = tuple(Gpu(i, f"GPU-{i}a", "x", f"0000:0{i}:00.0", (12, 0), 1, 0) for i in range(4))


def read(host: FakeHost, nvml: Path, folder: Path, **variables: str) -> dict[str, Any]:
    done = run(["-c", PROGRAM], environment_of(host, nvml, folder, **variables))
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_values_are_those_of_the_driver(nvml: Path, tmp_path: Path) -> None:
    statements = ("process 1 77 1000", "process 1 78 2000", "p2p 0 1 3", "topology 0 1 50")
    host = FakeHost(gpus=gpus(2, used_mib=3004, mig=0), nvml=statements)
    found = read(host, nvml, tmp_path)
    assert (found["driver"], found["cuda_driver"], found["error"]) == ("580.95.05", [13, 0], None)
    first, second = found["gpus"]
    assert first["name"] == MODEL
    assert first["capability"] == [12, 0]
    assert (first["memory_total"], first["memory_used"]) == (97887 << 20, 3004 << 20)
    assert [first["pci_bus_id"], second["pci_bus_id"]] == ["0000:01:00.0", "0000:11:00.0"]
    assert second["processes"] == [[78, 2000 << 20], [77, 1000 << 20]]
    assert (first["numa_node"], first["mig_enabled"], first["compute_mode"]) == (
        0,
        False,
        "default",
    )
    link = {"ancestor": "SYS", "nvlink": False, "peer_to_peer": "PCIe topology not supported"}
    assert found["links"] == {"0-1": link}


def test_the_order_is_that_of_cuda(nvml: Path, tmp_path: Path) -> None:
    found = read(FakeHost(), nvml, tmp_path, CUDA_VISIBLE_DEVICES="6,GPU-00000002")
    assert [gpu["pci_bus_id"] for gpu in found["gpus"]] == ["0000:61:00.0", "0000:21:00.0"]
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    assert found["present"] == 8
    assert list(found["links"]) == ["0-1"]


def test_one_lost_gpu_leaves_the_others(nvml: Path, tmp_path: Path) -> None:
    four = tuple(replace(g, result=15) if g.number == 1 else g for g in gpus(4))
    found = read(FakeHost(gpus=four), nvml, tmp_path)
    assert len(found["gpus"]) == 3
    assert found["present"] == 4
    assert "GPU 1" in found["lost"][0]


@pytest.mark.parametrize(
    ("value", "order", "unmatched"),
    [
        ("2,0", "20", ()),
        ("GPU-3,1", "31", ()),
        ("", "", ()),
        ("-1", "", ()),
        ("1,-1,2", "1", ()),
        ("0,7,1", "0", ("CUDA_VISIBLE_DEVICES=7",)),
        ("1,1", "1", ("CUDA_VISIBLE_DEVICES=1",)),
        ("GPU-", "", ("CUDA_VISIBLE_DEVICES=GPU-",)),
        ("MIG-x", "", ("CUDA_VISIBLE_DEVICES=MIG-x",)),
    ],
)
def test_cuda_visible_devices(value: str, order: str, unmatched: tuple[str, ...]) -> None:
    selection = select(FOUR, {"CUDA_VISIBLE_DEVICES": value})
    assert "".join(str(gpu.index) for gpu in selection.gpus) == order
    assert selection.unmatched == unmatched


@pytest.mark.parametrize("value", ["all", "4,5,6,7", "GPU-2a", "void", "none"])
def test_indices_of_the_toolkit_are_not_applied_again(value: str) -> None:
    selection = select(FOUR, {"NVIDIA_VISIBLE_DEVICES": value})
    assert (selection.gpus, selection.unmatched) == (FOUR, ())


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr("importlib.import_module", broken)
    hardware = read_hardware({})
    assert (hardware.error_kind, hardware.gpus) == ("other", ())
    assert "odd" in (hardware.error or "")
