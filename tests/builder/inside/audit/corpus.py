"""Deliberately broken trees: each breaks one promise, and the audit must say which."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elftools.elf.elffile import ELFFile

from tests.builder.inside.tree import (
    C10_CALL,
    PYTHON,
    SITE,
    SM120,
    SYSTEM,
    TOOLKIT,
    Tree,
    cubin,
    fatbin,
    ptx,
    shared_library,
)

OLD_CHECK = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
TRITON = f"{SITE}/triton/backends/nvidia/bin/ptxas"
TORCH = f"{SITE}/torch-2.11.0.dist-info/METADATA"
# Keys that are made up here, in pieces: nothing that looks for secrets shall stop at this file.
KEY = "-----BEGIN " + "PRIVATE KEY-----\n" + "QUJD" * 16 + "\n"
AWS = "AK" + "IAQ3EGZ7WJ5X2N4B6T"
COMMON_OPS = "sgl_kernel/common_ops.abi3.so"
KERNELS = f"{SITE}/ddtree_overlay/kernels"


@dataclass(frozen=True)
class Broken:
    """What is done to a clean tree, the code that must be found, and a word of its evidence."""

    code: str
    what: str
    break_it: Callable[[Tree], object]
    evidence: str
    target: dict[str, Any] = field(default_factory=dict)


def _remove(path: str) -> Callable[[Tree], object]:
    def act(tree: Tree) -> None:
        (tree.root / path).unlink()

    return act


def _remove_all(pattern: str) -> Callable[[Tree], object]:
    def act(tree: Tree) -> None:
        paths = list(tree.root.glob(pattern))
        assert paths
        for path in paths:
            path.unlink()

    return act


def _write(path: str, content: str | bytes) -> Callable[[Tree], object]:
    return lambda tree: tree.write(path, content)


def _replace(path: str, old: str, new: str) -> Callable[[Tree], object]:
    def act(tree: Tree) -> None:
        file = tree.root / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return act


def _ops(**options: Any) -> Callable[[Tree], object]:
    return lambda tree: tree.library(COMMON_OPS, **options)


def _cut(tree: Tree) -> None:
    path = tree.site / COMMON_OPS
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _elsewhere(tree: Tree) -> None:
    tree.library("other/lib/libother.so")
    tree.library(COMMON_OPS, needed=["libother.so"])


def _mode(path: str, mode: int) -> Callable[[Tree], object]:
    return lambda tree: (tree.root / path).chmod(mode)


def _hole(tree: Tree) -> None:
    tree.install("holey", "1", extra={"holey.py": ""})
    (tree.site / "holey.py").unlink()


def _linked_library(name: str, target: str) -> Callable[[Tree], object]:
    """The loader's folder has it, as a link."""

    def act(tree: Tree) -> None:
        (tree.root / SYSTEM / name).symlink_to(target)
        tree.library(COMMON_OPS, needed=[name])

    return act


def _without_section_headers(tree: Tree) -> None:
    path = tree.site / COMMON_OPS
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 40, 0)  # e_shoff
    struct.pack_into("<HH", data, 60, 0, 0)  # e_shnum, e_shstrndx
    path.write_bytes(data)


def _section(kind: str, offset: int, form: str, value: int) -> Callable[[Tree], object]:
    """A field of a section's header, by its offset there (ELF-64, section header)."""

    def act(tree: Tree) -> None:
        tree.library(COMMON_OPS, requires={"libc.so.6": "GLIBC_2.34"})
        path = tree.site / COMMON_OPS
        data = bytearray(path.read_bytes())
        elf = ELFFile(io.BytesIO(bytes(data)))
        (number,) = (n for n, s in enumerate(elf.iter_sections()) if s["sh_type"] == kind)
        struct.pack_into(form, data, elf["e_shoff"] + number * elf["e_shentsize"] + offset, value)
        path.write_bytes(data)

    return act


def _in_place_of_holey(target: str) -> Callable[[Tree], object]:
    """A recorded file has become a link."""

    def act(tree: Tree) -> None:
        _hole(tree)
        (tree.site / "holey.py").symlink_to(target)

    return act


def _bare(tree: Tree, row: str) -> None:
    (record,) = tree.site.glob("torch-*.dist-info/RECORD")
    rows = record.read_text().splitlines()
    name = row.partition(",")[0]
    record.write_text("\n".join(row if r.startswith(name) else r for r in rows) + "\n")


def _both_own(tree: Tree) -> None:
    tree.install("first", "1", extra={"shared.py": "one"})
    tree.install("second", "1", extra={"shared.py": "two"})


def _code(
    *entries: tuple[int, int, int], isa: tuple[int, int] = (9, 0)
) -> Callable[[Tree], object]:
    """A new library with these (kind, architecture, flags) entries."""
    return lambda tree: tree.library("ext/_ext.so", code=fatbin(*entries, isa=isa))


def _other_glibc(tree: Tree) -> None:
    path = tree.root / SYSTEM / "libc.so.6"
    path.unlink()
    shared_library(path, soname="libc.so.6", provides=["GLIBC_2.2.5", "GLIBC_2.31"])


def _driver(path: str) -> Callable[[Tree], object]:
    def act(tree: Tree) -> None:
        target = tree.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shared_library(target, soname="libcuda.so.1")

    return act


def _gone(*names: str) -> Callable[[Tree], object]:
    """Distributions whose metadata is gone."""

    def act(tree: Tree) -> None:
        for name in names:
            (info,) = tree.site.glob(f"{name}-*.dist-info")
            for file in info.iterdir():
                file.unlink()
            info.rmdir()

    return act


def _compiler(text: str, name: str = "usr/bin/g++") -> Callable[[Tree], object]:
    return _write(name, "#!/bin/sh\n" + text)


def _probe(**options: Any) -> Callable[[Tree], object]:
    """What the fake compiler makes."""

    def act(tree: Tree) -> None:
        path = tree.root / "usr/lib/probe.so"
        path.unlink()
        shared_library(path, soname="probe.so", **options)

    return act


def _grow(name: str) -> Callable[[Tree], object]:
    return _write(name, b"x" * (9 << 20))


def _grow_sglang(tree: Tree) -> None:
    tree.install("sglang", "0.5.17+ddtree.abcdef01", extra={"sglang/large.bin": "x" * (9 << 20)})


CORPUS = [
    Broken("LNK001", "a CUDA 12 library", _ops(needed=["libcudart.so.12"]), "libcudart.so.12"),
    Broken("LNK001", "cuFFT of CUDA 12", _ops(needed=["libcufft.so.11"]), "CUDA 12"),
    Broken("LNK001", "a hashed name", _ops(needed=["libnvjpeg.36e11081.so.12"]), "CUDA 12"),
    Broken("LNK002", "a library nobody has", _ops(needed=["libnowhere.so.1"]), "libnowhere.so.1"),
    Broken(
        "LNK002",
        "a library that lies elsewhere",
        _elsewhere,
        "libother.so",
    ),
    Broken(
        "LNK002",
        "a link that leads nowhere",
        _linked_library("libgone.so.1", "libgone.so.1.2"),
        "libgone.so.1",
    ),
    Broken(
        "LNK002",
        "a link that only this machine follows",
        _linked_library("libhost.so.1", sys.executable),
        "libhost.so.1",
    ),
    Broken("LNK003", "a library that was cut off", _cut, "damaged"),
    Broken("LNK003", "no section headers", _without_section_headers, "cannot be read"),
    Broken(
        "LNK003",
        "an offset that no file has",
        _section("SHT_DYNAMIC", 24, "<Q", 1 << 62),
        "common_ops.abi3.so damaged",
    ),
    Broken(
        "LNK003",
        "billions of versions",
        _section("SHT_GNU_verneed", 44, "<I", 0xFFFFFFFF),
        "4294967295 versions",
    ),
    Broken(
        "LNK003",
        "a fat binary that cannot be read",
        lambda tree: tree.library("ext/_ext.so", code=fatbin((2, 120, 0), version=2)),
        "fat binary",
    ),
    Broken(
        "LNK004",
        "an extension for a newer glibc",
        lambda tree: tree.library("ext/_ext.so", requires={"libc.so.6": "GLIBC_2.38"}),
        "GLIBC_2.38 of libc.so.6",
    ),
    Broken("LNK004", "an older base", _other_glibc, "GLIBC_2.34 of libc.so.6"),
    Broken("LNK004", "no glibc", _remove(f"{SYSTEM}/libc.so.6"), "libc.so.6"),
    Broken(
        "LNK005",
        "an extension for a newer libstdc++",
        lambda tree: tree.library("ext/_ext.so", requires={"libstdc++.so.6": "GLIBCXX_3.4.32"}),
        "GLIBCXX_3.4.32 of libstdc++.so.6",
    ),
    Broken(
        "LNK005",
        "another C++ ABI",
        lambda tree: tree.library("ext/_ext.so", requires={"libstdc++.so.6": "CXXABI_1.3.15"}),
        "CXXABI_1.3.15",
    ),
    Broken(
        "LNK006",
        "CUDA's forward compatibility",
        _driver("usr/local/cuda-13.0/compat/libcuda.so.580.65.06"),
        "forward compatibility",
    ),
    Broken("LNK006", "a driver", _driver(f"{SYSTEM}/libcuda.so.1"), "library of the driver"),
    Broken(
        "LNK006",
        "a driver among the wheels",
        lambda tree: tree.library("ext/lib/libnvidia-ml.so.1"),
        "library of the driver",
    ),
    Broken(
        "LNK006",
        "a loader's configuration",
        _write("etc/ld.so.conf.d/000_cuda.conf", "/usr/local/cuda/compat\n"),
        "/usr/local/cuda/compat",
    ),
    Broken(
        "LNK006",
        "the stub in the loader's path",
        _write("etc/ld.so.conf", f"/{SITE}/{TOOLKIT}/lib/stubs\n"),
        "stubs",
    ),
    Broken(
        "LNK006",
        "a search path of a library",
        lambda tree: tree.library("ext/_ext.so", runpath="/usr/local/cuda/compat"),
        "/usr/local/cuda/compat",
    ),
    Broken(
        "LNK006",
        "a loader's configuration as ldconfig takes it",
        _write("etc/ld.so.conf.d/zz.conf", "# one\n  /usr/local/cuda/compat=libc6 # two\n"),
        "puts /usr/local/cuda/compat into",
    ),
    Broken("LNK006", "a preload", _write("etc/ld.so.preload", "/x.so\n"), "preloads"),
    Broken("LNK006", "a cache", _write("etc/ld.so.cache", b"\0libcuda.so.1\0"), "libcuda.so"),
    Broken(
        "ABI001",
        "an extension of another torch",
        _ops(needed=["libc10.so"], undefined=["_ZN3c103newEv"]),
        "_ZN3c103newEv",
    ),
    Broken(
        "ABI001",
        "a stable-ABI shim that this torch lacks",
        _ops(needed=["libc10.so"], undefined=["torch_call_dispatcher"]),
        "torch_call_dispatcher",
    ),
    Broken(
        "ABI001",
        "torch's C interface without a NEEDED",
        lambda tree: tree.library(
            "cuda/core/cu13/_tensor_bridge.so", undefined=["aoti_torch_gone"]
        ),
        "aoti_torch_gone",
    ),
    Broken(
        "ABI001",
        "torch's C++ without a NEEDED",
        lambda tree: tree.library("other/_ext.so", undefined=["_ZN2at4goneEv"]),
        "_ZN2at4goneEv",
    ),
    Broken(
        "ABI002",
        "the old std::string",
        _ops(needed=["libc10.so"], undefined=[C10_CALL, OLD_CHECK]),
        OLD_CHECK,
    ),
    Broken(
        "ABI003",
        "built for the neighbouring torch",
        _replace(f"{SITE}/ddtree_overlay/_build_info.json", "2.11.0+cu130", "2.10.0+cu128"),
        "2.10.0+cu128",
    ),
    Broken(
        "ABI003",
        "a stamp of another form",
        _write(f"{SITE}/ddtree_overlay/_build_info.json", "[]"),
        "cannot be applied",
    ),
    Broken("ABI003", "no stamp", _remove(f"{SITE}/ddtree_overlay/_build_info.json"), "no stamp"),
    Broken(
        "ABI004",
        "torch of another CUDA",
        _replace(f"{SITE}/torch/version.py", "'13.0'", "'12.8'"),
        "'12.8'",
    ),
    Broken(
        "ABI004",
        "a CPU build of torch",
        _replace(f"{SITE}/torch/version.py", "'13.0'", "None"),
        "None",
    ),
    Broken(
        "ABI004",
        "another torch than pinned",
        lambda tree: tree.write(
            f"{SITE}/torch/version.py", "__version__ = '2.12.0+cu130'\ncuda = '13.0'\n"
        ),
        "2.12.0",
    ),
    Broken(
        "ABI005",
        "a cuDNN older than torch's",
        _replace(TORCH, "nvidia-cudnn-cu13==9.19.0.56", "nvidia-cudnn-cu13==9.20.1.2"),
        "older than 9.20.1.2",
    ),
    Broken(
        "ABI005",
        "a cuDNN of another major",
        _replace(TORCH, "nvidia-cudnn-cu13==9.19.0.56", "nvidia-cudnn-cu13==8.9.7.29"),
        "another major than 8.9.7.29",
    ),
    Broken("ABI005", "no cuDNN", _gone("nvidia_cudnn_cu13"), "not installed"),
    Broken(
        "ABI005",
        "a cuDNN that a later package overwrote",
        _replace(
            f"{SITE}/nvidia/cudnn/include/cudnn_version.h", "CUDNN_MINOR 19", "CUDNN_MINOR 10"
        ),
        "says 9.10.0",
    ),
    Broken(
        "ABI005",
        "a torch that pins none",
        _replace(TORCH, "nvidia-cudnn-cu13", "cudnn"),
        "asks for no cudnn",
    ),
    Broken(
        "ABI006",
        "an NCCL older than torch's",
        _replace(TORCH, "nvidia-nccl-cu13==2.28.9", "nvidia-nccl-cu13==2.29.1"),
        "older than 2.29.1",
    ),
    Broken(
        "ABI006",
        "another NCCL in the file than in the metadata",
        _replace(f"{SITE}/nvidia/nccl/lib/libnccl.so.2", "2.28.9", "2.27.5"),
        "says 2.27.5",
    ),
    Broken(
        "ABI006",
        "an NCCL for CUDA 12",
        _replace(f"{SITE}/nvidia/nccl/lib/libnccl.so.2", "cuda13.0", "cuda12.9"),
        "CUDA 12",
    ),
    Broken(
        "ABI006",
        "no library",
        _remove(f"{SITE}/nvidia/nccl/lib/libnccl.so.2"),
        "does not say its version",
    ),
    Broken("DEV001", "no sm_120", _code((2, 80, 0), (2, 90, 0)), "only sm_80, sm_90"),
    Broken("DEV001", "Hopper alone", _code((2, 90, 0x100000)), "only sm_90a"),
    Broken("DEV001", "the family of B200", _code((2, 100, 0x200000)), "only sm_100f"),
    Broken("DEV001", "DGX Spark alone", _code((2, 121, 0)), "only sm_121"),
    Broken("DEV001", "PTX of an exact architecture", _code((1, 90, 0x100000)), "compute_90a"),
    Broken("DEV001", "PTX for newer GPUs", _code((1, 121, 0)), "compute_121"),
    Broken("DEV001", "code that must be linked first", _code((8, 75, 0)), "lto_75"),
    Broken("DEV001", "an unknown kind", _code((77, 120, 0)), "kind-77"),
    Broken("DEV002", "PTX of CUDA 13.1", _code((1, 120, 0), isa=(9, 1)), "only PTX ISA 9.1"),
    Broken(
        "DEV002",
        "PTX of CUDA 12.9 where the driver is of 12.8",
        _code((2, 90, 0), (1, 90, 0), isa=(8, 8)),
        "of CUDA 12.8 knows PTX ISA 8.7",
        {"cuda": {"version": "12.8", "driver_floor": "570.26"}},
    ),
    Broken("KRN001", "sm_120 missing", _remove(f"{KERNELS}/build_tree.sm_120.cubin"), "sm_120"),
    Broken("KRN001", "no PTX", _remove(f"{KERNELS}/build_tree.compute_120.ptx"), "compute_120"),
    Broken(
        "KRN001",
        "named sm_120, holds sm_90",
        _write(f"{KERNELS}/build_tree.sm_120.cubin", cubin("sm_90")),
        "sm_90",
    ),
    Broken(
        "KRN001",
        "sm_120a does not run on its neighbours",
        _write(f"{KERNELS}/build_tree.sm_120.cubin", cubin("sm_120a")),
        "sm_120a",
    ),
    Broken(
        "KRN001",
        "not a cubin",
        _write(f"{KERNELS}/build_tree.sm_120.cubin", b"text" * 40),
        "unreadable",
    ),
    Broken(
        "KRN001",
        "an architecture that is not pinned",
        _write(f"{KERNELS}/build_tree.sm_121.cubin", cubin("sm_121")),
        "sm_121",
    ),
    Broken(
        "KRN001",
        "a name of four parts",
        _write(f"{KERNELS}/build.tree.sm_120.cubin", cubin("sm_120")),
        "is not named",
    ),
    Broken(
        "KRN001",
        "a name of two parts",
        _write(f"{KERNELS}/build_tree.cubin", cubin("sm_120")),
        "is not named",
    ),
    Broken(
        "KRN002",
        "another NVRTC",
        _write(f"{KERNELS}/build_tree.sm_120.cubin", cubin("sm_120", "12.8.93")),
        "12.8.93",
    ),
    Broken(
        "KRN002",
        "PTX of another NVRTC",
        _write(f"{KERNELS}/build_tree.compute_120.ptx", ptx(release="13.3.10")),
        "13.3.10",
    ),
    Broken("KRN003", "no description", _remove(f"{KERNELS}/kernels.json"), "cannot be read"),
    Broken("KRN003", "an empty one", _write(f"{KERNELS}/kernels.json", "[]"), "cannot be read"),
    Broken(
        "KRN003",
        "one of schema 1",
        _write(f"{KERNELS}/kernels.json", '{"files": [{"file": "x", "sha256": "", "entry": "x"}]}'),
        "cannot be read: KeyError('entries')",
    ),
    Broken(
        "KRN003",
        "a kernel that is gone in all architectures",
        _remove_all(f"{KERNELS}/walk_tree.*"),
        "lists walk_tree.sm_120.cubin, which is not there",
    ),
    Broken(
        "KRN003",
        "a kernel that is not described",
        _write(f"{KERNELS}/other.sm_120.cubin", cubin("sm_120")),
        "does not list other.sm_120.cubin",
    ),
    Broken(
        "KRN003",
        "another file than described",
        _write(f"{KERNELS}/walk_tree.sm_120.cubin", cubin("sm_120") + b"\0"),
        "another sha256 for walk_tree.sm_120.cubin",
    ),
    Broken(
        "KRN003",
        "spills",
        _replace(f"{KERNELS}/kernels.json", '"spill_loads": 0', '"spill_loads": 12'),
        "ddtree_walk_tree in walk_tree.sm_90.cubin uses local memory",
    ),
    Broken("MIX001", "a suffix", lambda t: t.install("nvidia-nccl-cu12", "2.28.9"), "CUDA 12"),
    Broken("MIX001", "cuda12x", lambda t: t.install("cupy-cuda12x", "14.0"), "CUDA 12"),
    Broken("MIX001", "a local version", lambda t: t.install("ext", "0.4.5+cu129"), "CUDA 12"),
    Broken(
        "MIX001", "another's version", lambda t: t.install("ext", "2.8+cu12torch2.8"), "CUDA 12"
    ),
    Broken("MIX001", "bindings", lambda t: t.install("cuda-bindings", "12.9.4"), "CUDA 12"),
    Broken(
        "MIX001",
        "no suffix, known by its folder",
        lambda tree: tree.install(
            "nvidia-cuda-nvcc-next", "14.1.2", extra={"nvidia/cu14/bin/nvcc": ""}
        ),
        "CUDA 14",
    ),
    Broken("MIX002", "a library of CUDA 12", lambda t: t.library("x/libcublas.so.12"), "CUDA 12"),
    Broken(
        "MIX002",
        "a link to one",
        lambda tree: (tree.site / "libcudart.so.12").symlink_to("/usr/lib/libcudart.so.12"),
        "CUDA 12",
    ),
    Broken(
        "MIX002",
        "a twin in a folder of CUDA 12",
        lambda tree: tree.library("cuda/core/cu12/_device.so"),
        "CUDA 12",
    ),
    Broken(
        "REG001",
        "the enum without DDTREE",
        _replace(f"{SITE}/sglang/srt/speculative/spec_info.py", "DDTREE", "EAGLE"),
        "DDTREE",
    ),
    Broken(
        "REG002",
        "a field missing",
        _replace(f"{SITE}/sglang/srt/server_args.py", "speculative_ddtree_topk", "other"),
        "speculative_ddtree_topk",
    ),
    Broken(
        "REG003",
        "an import that fails",
        _write("opt/ddtree/venv/bin/python", "#!/bin/sh\necho ImportError: boom >&2\nexit 1\n"),
        "boom",
    ),
    Broken(
        "REG003",
        "an answer and then a crash",
        _write("opt/ddtree/venv/bin/python", PYTHON + "echo; echo Aborted >&2; exit 134\n"),
        "Aborted",
    ),
    Broken(
        "REG003",
        "an answer of another form",
        _write("opt/ddtree/venv/bin/python", "#!/bin/sh\necho []\n"),
        "cannot be applied",
    ),
    Broken(
        "REG003",
        "another SGLang is imported than lies there",
        _write("opt/ddtree/venv/bin/python", PYTHON.replace("speculative_ddtree_budget", "x")),
        "speculative_ddtree_budget",
    ),
    Broken(
        "REG004",
        "no answer for sm_120",
        _replace(f"{SITE}/sglang/srt/utils/common.py", "12", "10"),
        "does not ask for compute capability 12",
    ),
    Broken(
        "REG004",
        "Hopper's block sizes first",
        _replace(f"{SITE}/{SM120}", "CUDA_CAPABILITY[0] == 12", "CUDA_CAPABILITY[0] >= 8"),
        "block sizes",
    ),
    Broken(
        "REG004",
        "an answer that decides nothing",
        _replace(
            f"{SITE}/sglang/kernels/ops/quantization/fp8_kernel.py",
            "1 if _is_sm120_supported else 4",
            "4",
        ),
        "decides nothing",
    ),
    Broken("REG004", "no text", _write(f"{SITE}/{SM120}", b"\xff"), "cannot be applied"),
    Broken("REG004", "a file that moved", _remove(f"{SITE}/{SM120}"), "unreadable"),
    Broken("JIT001", "no compiler", _remove("usr/bin/g++"), "C++"),
    Broken("JIT001", "no Python headers", _remove("usr/include/python3.11/Python.h"), "headers"),
    Broken("JIT001", "no ninja", _remove("opt/ddtree/venv/bin/ninja"), "ninja"),
    Broken("JIT001", "no cicc", _remove(f"{SITE}/{TOOLKIT}/nvvm/bin/cicc"), "toolkit"),
    Broken("JIT001", "no lib64", _remove(f"{SITE}/{TOOLKIT}/lib64"), "toolkit"),
    *(
        Broken("JIT001", f"no {name}", _remove(f"{SITE}/{TOOLKIT}/lib/{name}"), name)
        for name in (
            *("libcudart.so", "libnvrtc.so", "libcublas.so", "libcublasLt.so"),
            "stubs/libcuda.so",
        )
    ),
    Broken("JIT001", "no CCCL", _remove(f"{SITE}/{TOOLKIT}/include/cccl/cuda/std/version"), "CCCL"),
    Broken(
        "JIT001",
        "absent, and no stand-in",
        lambda tree: None,
        "without a reason",
        {"toolchain": {"source": "absent", "home": "", "components": {}, "reason": ""}},
    ),
    Broken(
        "JIT002",
        "nvcc of another minor",
        lambda tree: tree.program(f"{SITE}/{TOOLKIT}/bin/nvcc", "13.3.33"),
        "13.3.33",
    ),
    Broken(
        "JIT002",
        "ptxas of another minor",
        lambda tree: tree.program(f"{SITE}/{TOOLKIT}/bin/ptxas", "13.5.1"),
        "13.5.1",
    ),
    Broken(
        "JIT002",
        "cicc of another minor",
        _replace(f"{SITE}/{TOOLKIT}/nvvm/bin/cicc", "release 13.0, V13.0", "release 13.5, V13.5"),
        "13.5.88",
    ),
    Broken(
        "JIT002",
        "headers of another minor",
        _write(f"{SITE}/{TOOLKIT}/include/cuda_runtime_api.h", "#define CUDART_VERSION 12080\n"),
        "12.8",
    ),
    Broken(
        "JIT002",
        "a component that is not the pinned one",
        lambda tree: None,
        "13.0.99",
        {
            "toolchain": {
                "source": "wheels",
                "home": TOOLKIT,
                "components": {"nvidia-cuda-nvcc": "13.0.99"},
            }
        },
    ),
    Broken(
        "JIT002",
        "a pin and a component of another minor",
        lambda tree: tree.install("nvidia-nvvm", "13.3.33"),
        "installed is 13.3.33, the variant is CUDA 13.0",
        {
            "toolchain": {
                "source": "wheels",
                "home": TOOLKIT,
                "components": {"nvidia-nvvm": "13.3.33"},
            }
        },
    ),
    Broken(
        "JIT002",
        "an archive pinned to another minor",
        lambda tree: None,
        "pinned is 12.8.90",
        {
            "toolchain": {
                "source": "archives",
                "home": TOOLKIT,
                "components": {"cuda_cudart": "12.8.90"},
            }
        },
    ),
    Broken(
        "JIT003",
        "Triton's ptxas too old for sm_120",
        lambda tree: tree.program(f"{SITE}/triton/backends/nvidia/bin/ptxas", "12.4.99"),
        "12.4.99",
    ),
    Broken(
        "JIT004",
        "a ptxas that refuses",
        _write(
            TRITON, "#!/bin/sh\necho \"ptxas fatal : Value 'sm_120' is not defined\" >&2\nexit 1\n"
        ),
        "Value 'sm_120' is not defined",
    ),
    Broken(
        "JIT004",
        "a ptxas that makes other code",
        _write(f"{SITE}/triton/backends/nvidia/bin/probe.sm_120.cubin", cubin("sm_90")),
        "made a cubin for sm_90",
    ),
    Broken(
        "JIT004",
        "a ptxas that does not know sm_120a",
        _remove(f"{SITE}/triton/backends/nvidia/bin/probe.sm_120a.cubin"),
        "sm_120a",
    ),
    Broken(
        "JIT005",
        "an nvcc that fails",
        _write(
            f"{SITE}/{TOOLKIT}/bin/nvcc",
            "#!/bin/sh\necho note\necho 'error: exception specification' >&2\nexit 2\n",
        ),
        "nvcc: exit 2: error: exception specification",
    ),
    Broken("JIT005", "a linker that fails", _compiler("exit 1\n"), "g++: exit 1"),
    Broken("JIT005", "a compiler that makes nothing", _compiler("exit 0\n"), "no shared object"),
    Broken(
        "JIT005",
        "code for another GPU",
        _probe(code=fatbin((2, 90, 0))),
        "holds sm_90, no cubin for sm_120",
    ),
    Broken(
        "JIT005",
        "a runtime of another CUDA",
        _probe(code=fatbin((2, 120, 0)), needed=["libcudart.so.12"]),
        "needs libcudart.so.12",
    ),
    Broken(
        "JIT006",
        "no Python.h for Triton's launcher",
        _write(
            "opt/ddtree/venv/bin/python",
            PYTHON.replace("cp ", "echo 'fatal error: Python.h' >&2; exit 1; cp "),
        ),
        "fatal error: Python.h",
    ),
    Broken(
        "JIT006",
        "a launcher that is not there",
        _write("opt/ddtree/venv/bin/python", PYTHON.replace("cp ", ": ")),
        "no shared object was made",
    ),
    Broken(
        "DST001",
        "a requirement not met",
        lambda tree: tree.install("needy", "1", requires=["torch>=3"]),
        "torch>=3",
    ),
    Broken(
        "DST001",
        "a requirement behind a licence text with empty lines",
        lambda tree: tree.install("needy", "1", requires=["absent-one"]),
        "nothing",
    ),
    Broken(
        "DST001",
        "an override that does not hold itself",
        lambda tree: None,
        "torch==2.9.1",
        {"overridden": ["torch==2.9.1"]},
    ),
    Broken(
        "DST001",
        "an excluded distribution that is there",
        lambda tree: tree.install("unwanted", "1"),
        "exclude it",
        {"excluded": [{"distribution": "Unwanted", "reason": "because"}]},
    ),
    Broken("DST002", "one file of two distributions", _both_own, "shared.py"),
    Broken(
        "DST002",
        "two versions of one distribution",
        lambda tree: tree.install("Torch", "2.9.1"),
        "installed 2 times: 2.11.0, 2.9.1",
    ),
    Broken(
        "DST003",
        "a recorded file is gone",
        _hole,
        "holey.py",
    ),
    Broken("DST003", "a link that leads nowhere", _in_place_of_holey("gone.py"), "holey.py"),
    Broken("DST003", "a link that leaves the image", _in_place_of_holey(__file__), "holey.py"),
    Broken("DST003", "a link in a circle", _in_place_of_holey("holey.py"), "holey.py"),
    Broken(
        "DST003",
        "files recorded without a hash",
        lambda tree: _bare(tree, "torch/lib/libc10.so,,"),
        "1 files are recorded without a hash, such as opt/ddtree/venv",
    ),
    Broken(
        "DST003",
        "a RECORD of names alone",
        lambda tree: _bare(tree, "torch/lib/libc10.so"),
        "1 files are recorded without a hash",
    ),
    Broken(
        "DST005",
        "a link to a file of another content",
        _in_place_of_holey("torch/version.py"),
        "holey 1 of 2",
    ),
    Broken(
        "DST004",
        "an installed wheel was patched",
        _replace(f"{SITE}/sglang/srt/server_args.py", "ServerArgs", "ServerArgs  "),
        "differs",
    ),
    Broken(
        "DST005",
        "somebody else's wheel was patched",
        lambda tree: tree.library("torch/lib/libtorch_cuda.so", code=fatbin((2, 120, 0))),
        "torch 1 of 4",
    ),
    Broken(
        "DST005",
        "a distribution that another one overwrote",
        _both_own,
        "first 1 of 2",
    ),
    Broken("SEC001", "a setuid program", _mode("usr/bin/g++", 0o4755), "g++ mode 4755"),
    Broken("SEC001", "a setgid program", _mode("usr/bin/g++", 0o2755), "g++ mode 2755"),
    Broken("SEC001", "a world-writable file", _mode("etc/debian_version", 0o666), "mode 0666"),
    Broken("SEC001", "a world-writable folder", _mode("var/cache/ddtree", 0o2777), "mode 2777"),
    Broken("SEC001", "a temporary folder without its sticky bit", _mode("tmp", 0o777), "tmp a"),
    Broken("SEC002", "a key by its content", _write("etc/ssl/private/x.pem", KEY), "a private key"),
    Broken(
        "SEC002",
        "a key in JSON",
        _write("opt/account.json", KEY.replace("\n", "\\n")),
        "a private key",
    ),
    Broken("SEC002", "an encrypted key by its name", _write("root/cosign.key", "x"), "cosign.key"),
    Broken("SEC002", "an AWS key", _write("opt/config.txt", f"id={AWS}\n"), "an AWS access key"),
    Broken(
        "SEC002", "a hub token", _write("opt/x.py", "t = 'hf" + "_" + "a1" * 17 + "'"), "Hugging"
    ),
    Broken("SEC002", "a netrc", _write("root/.netrc", "machine x\n"), ".netrc"),
    Broken("SEC002", "a repository", _write("opt/ddtree/.git/HEAD", "ref\n"), ".git"),
    Broken("SEC002", "Docker's", _write("root/.docker/config.json", "{}"), ".docker"),
    Broken("SEC002", "cloud credentials", _write("root/.aws/credentials", "x"), ".aws"),
    Broken(
        "SEC002",
        "a link to a key",
        lambda tree: (tree.root / "id_ed25519").symlink_to("/run/key"),
        "id_ed25519",
    ),
    Broken(
        "SEC002",
        "an index with a password",
        _write("etc/pip.conf", "[global]\nindex-url = https://user:word@index.example.com/\n"),
        "address with a password",
    ),
    Broken(
        "SEC002", "a hash in passwd", _write("etc/passwd", "a:xyZZ0aBcDeFgH:0:0::/:\n"), "a has"
    ),
    Broken("SEC002", "a password", _write("etc/shadow", "root:$6$salt$hash:1::\n"), "root has"),
    Broken(
        "SEC002",
        "a hub login",
        _write("var/cache/ddtree/.cache/huggingface/token", "x"),
        "token of the Hugging Face hub",
    ),
    Broken("SIZ002", "Debian grew", _grow("usr/share/large"), "system"),
    Broken("SIZ002", "the wheels grew", _grow(f"{SITE}/large.bin"), "dependencies"),
    Broken("SIZ002", "SGLang grew", _grow_sglang, "sglang 9.0 MiB exceed"),
    Broken(
        "SIZ002",
        "a layer without a budget",
        lambda tree: None,
        "overlay",
        {"budget_layers_mib": {"system": 8, "dependencies": 8, "sglang": 8}},
    ),
    Broken("SIZ001", "over the budget", lambda tree: None, "exceed", {"budget_gib": 1e-6}),
]
