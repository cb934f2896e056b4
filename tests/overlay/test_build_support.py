"""The wheel's build helpers: settings, torch by its files, NVRTC by its exact version."""

from __future__ import annotations

import importlib
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.overlay.conftest import OVERLAY

kernels: Any = importlib.import_module("build_support.kernels")
nvrtc: Any = importlib.import_module("build_support.nvrtc")
settings: Any = importlib.import_module("build_support.settings")
torch_install: Any = importlib.import_module("build_support.torch_install")

ENVIRONMENT = {
    "DDTREE_VARIANT": "cu130",
    "DDTREE_NVRTC": "13.0.88",
    "DDTREE_SASS": "sm_90,sm_120",
    "DDTREE_PTX": "compute_120",
    "SOURCE_DATE_EPOCH": "1788134400",
}
NVRTC = {"nvidia-cuda-nvrtc-cu12": "12.8.93", "nvidia-cuda-nvrtc": "13.0.88"}


def test_settings_are_read() -> None:
    read = settings.read_settings(ENVIRONMENT)
    assert (read.variant, read.nvrtc, read.cuda) == ("cu130", "13.0.88", "13.0")
    assert (read.sass, read.ptx) == (("sm_90", "sm_120"), "compute_120")
    assert settings.read_settings({**ENVIRONMENT, "DDTREE_VARIANT": "cu128"}).cuda == "12.8"
    assert settings.read_settings({**ENVIRONMENT, "DDTREE_VARIANT": "cpu"}).cuda is None


@pytest.mark.parametrize("name", ENVIRONMENT)
@pytest.mark.parametrize("value", [None, "", "x", "sm_120,", "13.0"])
def test_each_missing_or_malformed_setting_is_named(name: str, value: str | None) -> None:
    environment = {**ENVIRONMENT, name: value} if value is not None else dict(ENVIRONMENT)
    if value is None:
        del environment[name]
    with pytest.raises(settings.SettingsError, match=f"{name} .*such as {name}="):
        settings.read_settings(environment)


def test_all_missing_settings_are_named_at_once() -> None:
    with pytest.raises(settings.SettingsError) as caught:
        settings.read_settings({})
    for name in ENVIRONMENT:
        assert name in str(caught.value)


VERSION_FILE = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.11.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = 'abc'
hip: Optional[str] = None
"""


def fake_torch(site: Path, monkeypatch: pytest.MonkeyPatch, abi: bytes) -> Path:
    root = site / "torch"
    (root / "lib").mkdir(parents=True)
    (root / "__init__.py").write_text("raise ImportError('must not be imported')\n")
    (root / "version.py").write_text(VERSION_FILE)
    (root / "lib" / "libc10.so").write_bytes(b"\x7fELF" + abi)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return root


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [(b"_ZN3c105ErrorC2ENSt7__cxx1112basic_stringIcE", True), (b"_ZN3c105ErrorC2ESsS1_", False)],
)
def test_torch_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbol: bytes, abi: bool
) -> None:
    root = fake_torch(tmp_path, monkeypatch, symbol)
    found = torch_install.find_torch()
    assert (found.root, found.version, found.cuda) == (root, "2.11.0+cu130", "13.0")
    assert found.cxx11_abi is abi
    assert found.library_dir == str(root / "lib")


def test_torch_of_another_cuda_is_refused() -> None:
    found = torch_install.TorchInstall(Path("x"), "2.11.0+cu130", "13.0", True)
    torch_install.require_cuda(found, "13.0", "cu130")
    with pytest.raises(torch_install.TorchInstallError, match=r"cu128 needs .* 12.8, .*2.11.0"):
        torch_install.require_cuda(found, "12.8", "cu128")


def test_resources_are_parsed() -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_120'\n"
        "    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 64 registers, used 1 barriers, 1024 bytes smem\n"
    )
    assert nvrtc.parse_resources(log) == nvrtc.Resources(64, 1024, 16, 4, 8)
    assert nvrtc.parse_resources("") is None


def install_record(site: Path, name: str, version: str, *files: str) -> None:
    """A distribution's metadata and files, as pip leaves them."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(b"not a library")


def test_nvrtc_is_found_by_its_full_version(tmp_path: Path) -> None:
    lib = "nvidia/cu13/lib/libnvrtc.so.13"
    builtins = "nvidia/cu13/lib/libnvrtc-builtins.so.13.0"
    install_record(tmp_path, "nvidia-cuda-nvrtc", "13.0.88", builtins, lib)
    assert nvrtc.find_library("13.0.88", [str(tmp_path)]) == (tmp_path / lib).resolve()


def test_another_nvrtc_is_named(tmp_path: Path) -> None:
    install_record(tmp_path, "nvidia-cuda-nvrtc", "13.0.99", "lib/libnvrtc.so.13")
    with pytest.raises(nvrtc.NvrtcError, match=r"13.0.88 is not .*found: nvidia-cuda-nvrtc 13.0.9"):
        nvrtc.find_library("13.0.88", [str(tmp_path)])
    with pytest.raises(nvrtc.NvrtcError, match="found: none"):
        nvrtc.find_library("13.0.88", [str(tmp_path / "nowhere")])


def test_a_hollow_distribution_is_named(tmp_path: Path) -> None:
    install_record(tmp_path, "nvidia-cuda-nvrtc-cu12", "12.8.93", "lib/libnvrtc-builtins.so.12.8")
    with pytest.raises(nvrtc.NvrtcError, match="holds no libnvrtc"):
        nvrtc.find_library("12.8.93", [str(tmp_path)])


def test_a_library_that_does_not_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "libnvrtc.so.13").write_bytes(b"not a library")
    with pytest.raises(nvrtc.NvrtcError, match=r"cannot load .*libnvrtc\.so\.13"):
        nvrtc.Nvrtc(tmp_path / "libnvrtc.so.13")


@pytest.fixture(scope="module")
def nvrtc_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Both NVRTCs from the package index, each in a folder of its own."""
    root = tmp_path_factory.mktemp("nvrtc")
    venv.create(root / "venv", with_pip=True)
    sites = {}
    for name, version in NVRTC.items():
        sites[version] = root / version
        subprocess.run(
            [
                *(root / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet"),
                *("--no-deps", "--target", sites[version], f"{name}=={version}"),
            ],
            check=True,
        )
    yield sites


# A process each: one process holds one NVRTC's builtins.
_COMPILE = """
import json, sys
from pathlib import Path
from build_support.kernels import compile_kernels
from build_support.settings import Settings
compile_kernels(Path(sys.argv[1]), Path(sys.argv[2]),
                Settings("cu130", sys.argv[3], tuple(sys.argv[4].split(",")), "compute_120"))
"""


def compile_with(site: Path, version: str, target: Path, sass: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", _COMPILE, OVERLAY / "csrc", target, version, sass],
        env={"PYTHONPATH": f"{OVERLAY}:{site}"},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.network
@pytest.mark.parametrize("version", NVRTC.values())
def test_kernels_compile_to_the_architectures(
    nvrtc_site: dict[str, Path], version: str, tmp_path: Path
) -> None:
    import hashlib
    import json

    ran = compile_with(nvrtc_site[version], version, tmp_path, "sm_90,sm_120")
    assert ran.returncode == 0, ran.stderr
    description = json.loads((tmp_path / "kernels.json").read_text())
    files = {entry["file"]: entry for entry in description["files"]}
    assert set(files) == {
        *("build_tree.sm_90.cubin", "build_tree.sm_120.cubin", "build_tree.compute_120.ptx")
    }
    assert description["nvrtc"] == version
    for name, entry in files.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == entry["sha256"]
    for arch in (90, 120):
        entry = files[f"build_tree.sm_{arch}.cubin"]
        assert cubin_architecture(tmp_path / entry["file"]) == arch
        assert entry["resources"]["spill_stores"] == entry["resources"]["spill_loads"] == 0
        assert entry["resources"]["stack"] == 0
        assert 0 < entry["resources"]["registers"] <= 128
    ptx = (tmp_path / "build_tree.compute_120.ptx").read_text()
    assert ".target sm_120" in ptx
    assert ".entry ddtree_build_tree" in ptx
    assert "fma." not in ptx  # contraction would make a score differ from the CPU's


def cubin_architecture(path: Path) -> int:
    """The SM in a cubin's ELF flags: bits 0-7 up to ABI 7, bits 8-15 from ABI 8 on; and the kernel
    in its symbol table."""
    with path.open("rb") as handle:
        elf = ELFFile(handle)
        assert elf["e_machine"] == "EM_CUDA"
        table = elf.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        assert "ddtree_build_tree" in [symbol.name for symbol in table.iter_symbols()]
        flags: int = elf["e_flags"]
        abi = elf.header["e_ident"]["EI_ABIVERSION"]
    return flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF


@pytest.mark.network
def test_an_unknown_architecture_is_named(nvrtc_site: dict[str, Path], tmp_path: Path) -> None:
    ran = compile_with(nvrtc_site["13.0.88"], "13.0.88", tmp_path, "sm_60")
    assert ran.returncode != 0
    assert "NVRTC 13.0.88 does not know sm_60" in ran.stderr
    assert not list(tmp_path.iterdir())
