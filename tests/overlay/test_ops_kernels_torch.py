"""Which kernel files an import of `ddtree_overlay.ops` hands to the extension, and their loading.

Runs where torch and the wheel are, with or without a GPU: each program is a process in which torch
claims GPUs and libcuda.so.1 is a stub that records its calls.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)
if shutil.which("g++") is None:
    pytest.skip("no g++ here: the driver stub cannot be compiled", allow_module_level=True)

from tests.overlay.native_launch import compile_stub_driver  # noqa: E402
from tests.overlay.test_ops_kernels import write_kernels  # noqa: E402

# GPUS and KERNELS are replaced: [(name, capability), ...] and the folder of kernels.json.
PROLOGUE = """
import ctypes
from pathlib import Path
import torch
gpus = GPUS
torch.version.cuda = torch.version.cuda or "13.0"
torch.cuda.is_available = lambda: bool(gpus)
torch.cuda.device_count = lambda: len(gpus)
torch.cuda.get_device_name = lambda index: gpus[index][0]
torch.cuda.get_device_capability = lambda index: gpus[index][1]
torch.cuda.current_device = lambda: 1
from ddtree_overlay import _kernels
_kernels.FOLDER = Path("KERNELS")
cuda = ctypes.CDLL("libcuda.so.1")
cuda.stub_calls.restype = ctypes.c_char_p

def calls(*names):
    lines = cuda.stub_calls().decode().splitlines()
    return [line for line in lines if not names or line.split()[0] in names]

def failure(call, *arguments):
    try:
        return call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
RTX = ("NVIDIA RTX PRO 6000 Blackwell", (12, 0))
H100 = ("NVIDIA H100", (9, 0))
LATER = ("a later GPU", (13, 0))
L40S = ("NVIDIA L40S", (8, 9))
Gpu = tuple[str, tuple[int, int]]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    compile_stub_driver(folder)
    return folder


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    return write_kernels(tmp_path)


def run(driver: Path, kernels: Path, gpus: list[Gpu], program: str) -> list[str]:
    prologue = PROLOGUE.replace("GPUS", repr(gpus)).replace("KERNELS", str(kernels))
    ran = subprocess.run(
        [sys.executable, "-c", prologue + program],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.strip().splitlines()


def test_each_gpu_gets_its_kernels_and_the_import_calls_no_driver(
    driver: Path, kernels: Path
) -> None:
    printed = run(
        driver,
        kernels,
        [RTX, H100, LATER],
        "before = len(calls())\n"
        "from ddtree_overlay import ops\n"
        "print(len(calls()) - before)\n"
        "for device in (0, 'cuda', torch.device('cuda:2')):\n"
        "    ops.load_kernels(device); ops.load_kernels(device)\n"
        "    print(ops.describe(device))\n"
        "print(*calls('cuDevicePrimaryCtxRetain', 'cuModuleLoadDataEx', 'cuModuleGetFunction'),"
        " sep='\\n')\n",
    )
    expected = ["0", "sm_120 cubins", "sm_90 cubins", "compute_120 PTX, compiled by the driver"]
    for device, name in enumerate(("sm_120.cubin", "sm_90.cubin", "compute_120.ptx")):
        context = f"0x100{device}"
        expected += [
            f"cuDevicePrimaryCtxRetain {device}",
            f"cuModuleLoadDataEx {context} build_tree.{name}",
            "cuModuleGetFunction ddtree_a",
            f"cuModuleLoadDataEx {context} walk.{name}",
            "cuModuleGetFunction ddtree_b",
            "cuModuleGetFunction ddtree_c",
        ]
    assert printed == expected


def test_a_gpu_without_kernels_is_an_import_error(driver: Path, kernels: Path) -> None:
    program = "import importlib\nprint(failure(importlib.import_module, 'ddtree_overlay.ops'))"
    (printed,) = run(driver, kernels, [RTX, L40S], program)
    assert printed.startswith("KernelMissingError: cuda:1 (NVIDIA L40S) has compute capability 8.9")
    assert "compute_120, sm_90, sm_120 only" in printed


def test_a_damaged_file_is_an_import_error(driver: Path, kernels: Path) -> None:
    (kernels / "walk.sm_120.cubin").write_bytes(b"other")
    program = "import importlib\nprint(failure(importlib.import_module, 'ddtree_overlay.ops'))"
    (printed,) = run(driver, kernels, [RTX], program)
    assert printed.startswith("KernelFileError: kernel file ")
    assert "walk.sm_120.cubin has sha256" in printed
    assert run(driver, kernels, [H100], program)[0].startswith("<module")


def test_without_a_gpu_nothing_is_read(driver: Path, tmp_path: Path) -> None:
    """There is no kernels.json here."""
    printed = run(
        driver,
        tmp_path,
        [],
        "before = len(calls())\n"
        "from ddtree_overlay import ops\n"
        "print(failure(ops.load_kernels, 'cpu'), ops.describe('cpu'), len(calls()) - before)\n"
        "print(failure(ops.load_kernels, 0))\n"
        "print(failure(ops.describe, 'cuda:3'))\n"
        "print(failure(ops.load_kernels, 'meta'))\n"
        "print(failure(torch.ops.ddtree._load_kernels, 0))\n",
    )
    assert printed[0] == "None C++ ops of the CPU 0"
    for index, line in zip((0, 3), printed[1:3], strict=True):
        assert line.startswith(f"KernelMissingError: no kernels were chosen for cuda:{index}: ")
        assert "torch saw no GPU" in line
    assert printed[3].startswith("ValueError: device is meta; ")
    assert printed[4].startswith("RuntimeError: ddtree::_load_kernels: no kernels were chosen")
    assert len(printed) == 5


def test_a_kernel_that_the_file_lacks_is_named(driver: Path, kernels: Path) -> None:
    printed = run(
        driver,
        kernels,
        [],
        "from ddtree_overlay import ops\n"
        f"torch.ops.ddtree._use_kernels(0, ['{kernels}/walk.sm_90.cubin:ddtree_b,ddtree_z'])\n"
        "print(failure(torch.ops.ddtree._load_kernels, 0))",
    )
    (line,) = printed
    assert "ddtree::_load_kernels: cuModuleGetFunction failed for ddtree_z in " in line
    assert "walk.sm_90.cubin: CUDA_ERROR_NOT_FOUND (500); " in line
    assert "reinstall" in line
