"""What completes a CUDA toolkit folder: links, the driver's stub, and a link step that succeeds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder.inside import toolchain
from builder.inside.elf import read_elf, read_symbols
from builder.inside.toolchain import LINKED, ToolchainError, complete
from tests.builder.inside.tree import shared_library

HEADER = """/* The driver's interface; see cuInit. */
#define cuMemAlloc cuMemAlloc_v2
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
"""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def _library(folder: Path, name: str, major: int = 13) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    soname = f"lib{name}.so.{major}"
    shared_library(folder / soname, soname=soname, defined=[f"{name}Call"])


def _home(
    path: Path, library: str = "lib", major: int = 13, names: tuple[str, ...] = LINKED
) -> Path:
    (path / library).mkdir(parents=True)
    for name in names:
        _library(path / library, name, major)
    (path / "include").mkdir()
    (path / "include/cuda.h").write_text(HEADER)
    return path


def _archives(root: Path, major: int = 12) -> tuple[Path, Path]:
    """A toolkit that holds cudart alone, and site-packages with the rest."""
    site = root / "venv/lib/python3.11/site-packages"
    _library(site / "nvidia/cuda_nvrtc/lib", "nvrtc", major)
    _library(site / "nvidia/cublas/lib", "cublas", major)
    _library(site / "nvidia/cublas/lib", "cublasLt", major)
    return _home(root / "cuda", "lib64", 12, ("cudart",)), site


def _everything(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


def _link(home: Path, folder: str, scratch: Path) -> tuple[str, ...]:
    """The NEEDED of an extension that FlashInfer's flags link, without a driver in sight."""
    source = scratch / "x.cc"
    source.write_text(
        'extern "C" { int cuInit(unsigned); int cuMemAlloc_v2(void*, unsigned long);'
        + "".join(f" void {name}Call();" for name in LINKED)
        + ' }\nextern "C" int f() { return cuInit(0) + cuMemAlloc_v2(nullptr, 1); }\n'
        + 'extern "C" void g() { '
        + " ".join(f"{name}Call();" for name in LINKED)
        + " }\n"
    )
    out = scratch / "x.so"
    command = ["g++", "-shared", "-fPIC", str(source), f"-L{home / folder}"]
    command += [f"-L{home / folder / 'stubs'}", *(f"-l{name}" for name in LINKED), "-lcuda"]
    subprocess.run([*command, "-Wl,-z,defs", "-o", str(out)], check=True)
    return read_elf(out, "x.so").needed


@pytest.mark.parametrize("folder", ["lib", "lib64"])
def test_with_wheels_alone_an_extension_links(tmp_path: Path, folder: str) -> None:
    home = _home(tmp_path / "cu13")
    assert len(complete(home)) == 6
    assert (home / "lib64").readlink() == Path("lib")
    assert (home / "lib/libcublasLt.so").readlink() == Path("libcublasLt.so.13")
    needed = set(_link(home, folder, tmp_path))
    assert {*(f"lib{name}.so.13" for name in LINKED), "libcuda.so.1"} <= needed


def test_with_archives_the_rest_comes_from_site_packages(tmp_path: Path) -> None:
    home, site = _archives(tmp_path)
    complete(home, site)
    assert (home / "lib").readlink() == Path("lib64")
    assert (home / "lib64/libcudart.so").readlink() == Path("libcudart.so.12")
    link = (home / "lib64/libnvrtc.so").readlink()
    assert not link.is_absolute()
    assert (home / "lib64/libnvrtc.so").resolve().parent == site / "nvidia/cuda_nvrtc/lib"
    assert "libcublasLt.so.12" in _link(home, "lib64", tmp_path)


def test_the_stub_is_nothing_that_a_loader_finds_or_runs(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    complete(home)
    stub = home / "lib/stubs/libcuda.so"
    assert [path.name for path in stub.parent.iterdir()] == ["libcuda.so"]
    assert read_elf(stub, "stub").needed == ()
    assert {"cuInit", "cuMemAlloc", "cuMemAlloc_v2"} <= read_symbols(stub, "stub").defined
    ask = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cuInit(0))"
    done = subprocess.run([sys.executable, "-c", ask, str(stub)], capture_output=True, check=True)
    assert done.stdout.strip() == b"34"  # CUDA_ERROR_STUB_LIBRARY


def test_the_same_header_gives_the_same_stub(tmp_path: Path) -> None:
    homes = [_home(tmp_path / name) for name in ("one", "two")]
    for home in homes:
        complete(home)
    first, second = ((home / "lib/stubs/libcuda.so").read_bytes() for home in homes)
    assert first == second


def test_a_stub_that_is_there_stays(tmp_path: Path) -> None:
    home = _home(tmp_path / "cuda")
    (home / "lib/stubs").mkdir()
    (home / "lib/stubs/libcuda.so").write_text("NVIDIA's")
    complete(home)
    assert (home / "lib/stubs/libcuda.so").read_text() == "NVIDIA's"


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    complete(home)
    assert complete(home) == []


@pytest.mark.parametrize("missing", LINKED)
def test_a_library_that_is_nowhere_is_refused_before_anything_is_made(
    tmp_path: Path, missing: str
) -> None:
    home = _home(tmp_path / "cu13", names=tuple(name for name in LINKED if name != missing))
    before = _everything(tmp_path)
    with pytest.raises(ToolchainError, match=rf"exactly one lib{missing}\.so"):
        complete(home, tmp_path / "no-site")
    assert _everything(tmp_path) == before


def test_two_majors_are_refused(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    _library(home / "lib", "cudart", 12)
    with pytest.raises(ToolchainError, match="exactly one"):
        complete(home)
    assert not (home / "lib64").exists()


def test_a_wheel_of_another_cuda_is_refused(tmp_path: Path) -> None:
    home, site = _archives(tmp_path, major=13)
    with pytest.raises(ToolchainError, match="not of the CUDA of"):
        complete(home, site)
    assert not (home / "lib").exists()


def test_no_toolkit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="neither"):
        complete(tmp_path)


def test_a_header_without_the_driver_s_functions_is_refused(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    (home / "include/cuda.h").write_text("/* nothing */\n")
    with pytest.raises(ToolchainError, match="does not declare"):
        complete(home)
    assert not (home / "lib/stubs").exists()


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    (home / "lib/libcudart.so").symlink_to("libcudart.so.12")
    with pytest.raises(ToolchainError, match="broken link"):
        complete(home)


def test_as_a_plain_script(tmp_path: Path) -> None:
    home, site = _archives(tmp_path)
    script = [sys.executable, "-I", "-S", str(toolchain.__file__), "--site", str(site), "--home"]
    done = subprocess.run([*script, str(home)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("->") == 5
    missing = subprocess.run([*script, "/nowhere"], capture_output=True, text=True, check=False)
    assert missing.returncode == toolchain.TOOLCHAIN_FAILED
    assert missing.stderr.startswith("toolchain: ")
