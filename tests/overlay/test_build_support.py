"""The wheel's build helpers: settings, torch by its files, NVRTC by its exact version."""

from __future__ import annotations

import importlib
import re
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


# As NVRTC 13.0.88 prints it; 12.8.93 has no "ptxas ." before the numbers.
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'ddtree_b' for 'sm_120'
ptxas info    : Function properties for ddtree_b
ptxas         .     160 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1024 bytes smem, 160 bytes cumulative stack size
ptxas info    : Compile time = 3.388 ms
ptxas info    : Function properties for _Z4slowPKfi
ptxas         .     16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'ddtree_a' for 'sm_120'
ptxas info    : Function properties for ddtree_a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


def test_resources_of_each_function_are_parsed() -> None:
    assert nvrtc.parse_resources(LOG) == {
        "ddtree_b": nvrtc.Resources(64, 1024, 160, 4, 8),
        "_Z4slowPKfi": nvrtc.Resources(0, 0, 16, 0, 0),
        "ddtree_a": nvrtc.Resources(12, 0, 0, 0, 0),
    }
    assert nvrtc.parse_resources("") == {}


SOURCE = """\
#include "core.h"
// A kernel is extern "C" and __global__.
template <class T> __global__ void ddtree_template(T x) {}
extern "C" __global__ void __launch_bounds__(32) ddtree_a(Args args) { helper(ddtree_b(0)); }
extern "C"  __global__
void ddtree_c (Args args) {}
"""


def write_sources(folder: Path, **sources: str) -> Path:
    (folder / "core.h").write_text('#pragma once\n#include "device.h"\n')
    (folder / "device.h").write_text("// no include\n")
    (folder / "host.h").write_text("#include <torch/library.h>\n")
    for name, text in sources.items():
        (folder / f"{name}.cu").write_text(text)
    return folder


def test_entries_and_headers_are_found_in_the_sources(tmp_path: Path) -> None:
    other = SOURCE.replace("ddtree_a", "ddtree_d").replace("ddtree_c", "ddtree_e")
    found = kernels.find_kernels(write_sources(tmp_path, zebra=other, first=SOURCE))
    assert [(file.name, file.entries) for file in found] == [
        ("first", ("ddtree_a", "ddtree_c")),
        ("zebra", ("ddtree_d", "ddtree_e")),
    ]
    assert list(found[0].headers) == ["core.h", "device.h"]
    assert found[0].headers["device.h"] == "// no include\n"


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ({}, r"holds no kernel source \(\*.cu\)"),
        ({"first": "__global__ void ddtree_a() {}"}, "first.cu defines no extern"),
        ({"first": SOURCE, "second": SOURCE}, "ddtree_a is defined in first.cu and in second.cu"),
        ({"first": SOURCE.replace("core.h", "other.h")}, "first.cu includes other.h: No such file"),
    ],
)
def test_sources_that_are_no_kernels_are_named(
    tmp_path: Path, sources: dict[str, str], text: str
) -> None:
    with pytest.raises(nvrtc.NvrtcError, match=text):
        kernels.find_kernels(write_sources(tmp_path, **sources))


def test_the_ops_launch_exactly_the_kernels_that_are_defined() -> None:
    """A name that is spelt otherwise would only show on a GPU."""
    csrc = OVERLAY / "csrc"
    defined = [entry for file in kernels.find_kernels(csrc) for entry in file.entries]
    launched = {
        name
        for path in csrc.glob("*.cpp")
        for name in re.findall(r'"(ddtree_[a-z_]+)"', path.read_text())
    }
    assert launched == set(defined)


def image(**resources: Any) -> Any:
    return nvrtc.Image(b"", "", resources)


def test_entries_are_described() -> None:
    file = kernels.KernelFile("k", "", {}, ("ddtree_a", "ddtree_c"))
    clean = nvrtc.Resources(40, 0, 0, 0, 0)
    described = kernels.describe_entries(file, "sm_90", image(ddtree_c=clean, ddtree_a=clean))
    assert described["ddtree_a"] == {
        "registers": 40,
        "static_shared": 0,
        "stack": 0,
        "spill_stores": 0,
        "spill_loads": 0,
    }
    ptx = nvrtc.Image(b".visible .entry ddtree_a(\n.entry ddtree_c(", "", None)
    assert kernels.describe_entries(file, "compute_90", ptx) == {"ddtree_a": None, "ddtree_c": None}
    for other, found in (
        (nvrtc.Image(b".visible .entry ddtree_a(", "", None), "ddtree_a"),
        (image(ddtree_a=clean), "ddtree_a"),
        (image(), "none"),
        (image(ddtree_a=clean, ddtree_c=clean, ddtree_d=clean), "ddtree_a, ddtree_c, ddtree_d"),
    ):
        with pytest.raises(
            nvrtc.NvrtcError, match=f"the entries {found}; its source defines ddtree_a, ddtree_c$"
        ):
            kernels.describe_entries(file, "sm_90", other)


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ((255, 0, 0, 8, 0), "8 bytes spill stores; 255 registers"),
        ((255, 0, 0, 0, 12), "12 bytes spill loads; 255 registers"),
        ((40, 0, 16, 0, 0), "16 bytes stack frame; 40 registers"),
        ((40, 0, 16, 4, 4), "16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads"),
    ],
)
@pytest.mark.parametrize("name", ["ddtree_c", "_Z4slowPKfi"])
def test_local_memory_is_refused(name: str, resources: tuple[int, ...], text: str) -> None:
    file = kernels.KernelFile("k", "", {}, ("ddtree_a", "ddtree_c"))
    clean = nvrtc.Resources(40, 0, 0, 0, 0)
    functions = {"ddtree_a": clean, "ddtree_c": clean, name: nvrtc.Resources(*resources)}
    with pytest.raises(nvrtc.NvrtcError) as caught:
        kernels.describe_entries(file, "sm_120", image(**functions))
    assert str(caught.value).startswith(f"k.cu for sm_120: {name} uses local memory (")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


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


def compile_with(
    site: Path, version: str, target: Path, sass: str, csrc: Path = OVERLAY / "csrc"
) -> Any:
    return subprocess.run(
        [sys.executable, "-c", _COMPILE, csrc, target, version, sass],
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
    sources = kernels.find_kernels(OVERLAY / "csrc")
    assert set(files) == {
        f"{source.name}.{suffix}"
        for source in sources
        for suffix in ("sm_90.cubin", "sm_120.cubin", "compute_120.ptx")
    }
    assert (description["schema"], description["nvrtc"]) == (2, version)
    for name, entry in files.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == entry["sha256"]
    for source in sources:
        for arch in (90, 120):
            entry = files[f"{source.name}.sm_{arch}.cubin"]
            assert cubin_architecture(tmp_path / entry["file"], source.entries) == arch
            assert set(entry["entries"]) == set(source.entries)
            for resources in entry["entries"].values():
                assert resources["spill_stores"] == resources["spill_loads"] == 0
                assert resources["stack"] == resources["static_shared"] == 0
                assert 0 < resources["registers"] <= 255
        ptx = (tmp_path / f"{source.name}.compute_120.ptx").read_text()
        assert ".target sm_120" in ptx
        for name in source.entries:
            assert f".entry {name}(" in ptx
    # Contraction would make a score differ from the CPU's.
    assert "fma." not in (tmp_path / "build_tree.compute_120.ptx").read_text()


@pytest.mark.network
def test_a_kernel_that_spills_fails_the_build(nvrtc_site: dict[str, Path], tmp_path: Path) -> None:
    csrc = tmp_path / "csrc"
    csrc.mkdir()
    (csrc / "bad.cu").write_text(
        'extern "C" __global__ void ddtree_fine(int* x) { x[0] = 1; }\n'
        'extern "C" __global__ void ddtree_bad(int* x, int n) {\n'
        "  volatile int local[64];\n"
        "  for (int i = 0; i < 64; ++i) local[x[i] & 63] = x[i * n];\n"
        "  x[0] = local[x[n] & 63];\n}\n"
    )
    ran = compile_with(
        nvrtc_site["13.0.88"], "13.0.88", tmp_path / "out", "sm_90,sm_120", csrc=csrc
    )
    assert ran.returncode != 0
    assert "bad.cu for sm_90: ddtree_bad uses local memory (256 bytes stack frame; " in ran.stderr
    assert not list((tmp_path / "out").iterdir())


def cubin_architecture(path: Path, entries: tuple[str, ...]) -> int:
    """The SM in a cubin's ELF flags: bits 0-7 up to ABI 7, bits 8-15 from ABI 8 on; the kernels are
    in its symbol table."""
    with path.open("rb") as handle:
        elf = ELFFile(handle)
        assert elf["e_machine"] == "EM_CUDA"
        table = elf.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        assert set(entries) <= {symbol.name for symbol in table.iter_symbols()}
        flags: int = elf["e_flags"]
        abi = elf.header["e_ident"]["EI_ABIVERSION"]
    return flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF


@pytest.mark.network
def test_an_unknown_architecture_is_named(nvrtc_site: dict[str, Path], tmp_path: Path) -> None:
    ran = compile_with(nvrtc_site["13.0.88"], "13.0.88", tmp_path, "sm_60")
    assert ran.returncode != 0
    assert "NVRTC 13.0.88 does not know sm_60" in ran.stderr
    assert not list(tmp_path.iterdir())
