"""Small appliance trees made on the spot: real ELF files with chosen linkage, real metadata."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.inside.audit.model import Context
from builder.inside.filesystem import scan
from builder.inside.target import parse_target

VENV = "opt/ddtree/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"
TOOLKIT = "nvidia/cu13"
EPOCH = 1788134400
# Headers of real cubins: (ABI version, e_version, e_flags) as NVRTC 13.0.88 and 12.8.93 write them.
CUBIN_13 = {"sm_90": 0x6005A04, "sm_120": 0x6007802, "sm_121": 0x6007902}


def raw_target(**changes: Any) -> dict[str, Any]:
    """A target.json for CUDA 13.0, with top-level keys replaced."""
    return {
        "name": "cu130",
        "variant": "cu130",
        "stand_in": False,
        "stand_in_reason": "",
        "version": "0.1.0",
        "label_prefix": "dev.example",
        "source_date_epoch": EPOCH,
        "cuda": {"version": "13.0", "driver_floor": "580.65.06"},
        "torch": {
            "version": "2.11.0",
            "torchvision": "0.26.0",
            "torchaudio": "2.11.0",
            "triton": "3.6.0",
        },
        "kernels": {"version": "0.4.5", "cuda": "13.0"},
        "cubin": {"nvrtc": "13.0.88", "sass": ["sm_90", "sm_120"], "ptx": "compute_120"},
        "toolchain": {
            "source": "wheels",
            "home": TOOLKIT,
            "components": {"nvidia-cuda-nvcc": "13.0.88"},
            "reason": "",
        },
        "lock_sha256": "1" * 64,
        "excluded": [],
        "overridden": [],
        "sglang": {
            "version": "0.5.17+ddtree.abcdef01",
            "base_tree": "b" * 64,
            "patched_tree": "c" * 64,
            "wheel_sha256": "d" * 64,
        },
        "base": {"kind": "bootstrap", "detail": "bookworm"},
        "build_id": "0123456789abcdef",
        "budget_gib": 1.0,
        "budget_layers_mib": {"system": 8, "dependencies": 8, "sglang": 8, "overlay": 8},
        **changes,
    }


def cubin(
    architecture: str, release: str = "13.0.88", *, abi: int = 8, flags: int | None = None
) -> bytes:
    """An ELF header of a cubin with the compiler's notes behind it."""
    number = architecture.removeprefix("sm_").rstrip("af")
    header = bytearray(64)
    header[:9] = b"\x7fELF\x02\x01\x01\x41" + bytes([abi])
    struct.pack_into("<HHI", header, 16, 2, 190, 1)
    struct.pack_into("<I", header, 48, CUBIN_13[f"sm_{number}"] if flags is None else flags)
    minor = ".".join(release.split(".")[:2])
    note = f"\0Cuda compilation tools, release {minor}, V{release}\0-arch {architecture} \0"
    return bytes(header) + note.encode()


def ptx(architecture: str = "sm_120", release: str = "13.0.88") -> str:
    """A PTX file's head as NVRTC writes it."""
    minor = ".".join(release.split(".")[:2])
    return (
        f"// Cuda compilation tools, release {minor}, V{release}\n"
        f".version 9.0\n.target {architecture}\n.address_size 64\n"
    )


def fatbin(
    *entries: tuple[int, int, int],
    version: int = 1,
    header: int = 16,
    entry_version: int = 0x101,
    isa: tuple[int, int] = (9, 0),
) -> bytes:
    """A fat binary with (kind, architecture, flags) entries and dummy payloads of 16 bytes."""
    body = b""
    for kind, architecture, flags in entries:
        entry = bytearray(64)
        struct.pack_into("<HHIQ", entry, 0, kind, entry_version, 64, 16)
        struct.pack_into("<HH", entry, 24, isa[1], isa[0])
        struct.pack_into("<I", entry, 28, architecture)
        struct.pack_into("<Q", entry, 40, flags)
        body += bytes(entry) + b"x" * 16
    return struct.pack("<IHHQ", 0xBA55ED50, version, header, len(body)) + body


def shared_library(
    path: Path,
    *,
    soname: str = "",
    needed: Sequence[str] = (),
    defined: Sequence[str] = (),
    undefined: Sequence[str] = (),
    weak: Sequence[str] = (),
    runpath: str = "",
    code: bytes = b"",
    provides: Sequence[str] = (),
    requires: Mapping[str, str] | None = None,
) -> None:
    """Compile one with gcc. NEEDED entries are satisfied at link time by empty stubs.

    `code` becomes its section .nv_fatbin, `provides` are versions that it defines, and `requires`
    are versions that it needs, by the library that has them.
    """
    scratch = path.parent / f".build-{path.name}"
    scratch.mkdir(parents=True)
    versioned = requires or {}
    try:
        for name in needed:
            _gcc(
                ["-shared", "-nostdlib", f"-Wl,-soname,{name}", "-x", "c", "/dev/null"],
                scratch / name,
            )
        for number, (name, version) in enumerate(versioned.items()):
            stub = scratch / f"stub{number}.c"
            stub.write_text(f"void versioned_{number}(void){{}}\n")
            script = _version_script(scratch, {version: f"global: versioned_{number};"})
            _gcc(["-shared", "-nostdlib", f"-Wl,-soname,{name}", script, str(stub)], scratch / name)
        calls = [*undefined, *weak, *(f"versioned_{n}" for n in range(len(versioned)))]
        source = "".join(f"void {name}(void){{}}\n" for name in defined)
        source += "".join(f"extern void {name}(void);\n" for name in calls)
        source += "".join(f"#pragma weak {name}\n" for name in weak)
        body = "".join(f"{name}();" for name in calls)
        source += f"void entry_of_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}(void){{{body}}}\n"
        if code:
            (scratch / "code.bin").write_bytes(code)
            source += (
                '__asm__(".section .nv_fatbin,\\"a\\"\\n.incbin \\"'
                + str(scratch / "code.bin")
                + '\\"\\n.previous");\n'
            )
        (scratch / "code.c").write_text(source)
        flags = ["-shared", "-nostdlib", "-fPIC", "-Wl,--no-as-needed", "-Wl,--build-id=none"]
        flags += [f"-Wl,-soname,{soname or path.name}"]
        flags += [f"-Wl,-rpath,{runpath}"] if runpath else []
        if provides:
            flags.append(_version_script(scratch, dict.fromkeys(provides, "")))
        stubs = [str(scratch / name) for name in (*needed, *versioned)]
        _gcc([*flags, str(scratch / "code.c"), *stubs], path)
    finally:
        shutil.rmtree(scratch)


def _version_script(scratch: Path, versions: Mapping[str, str]) -> str:
    script = scratch / f"versions-{len(list(scratch.iterdir()))}.map"
    script.write_text("".join(f"{v} {{ {names} }};\n" for v, names in versions.items()))
    return f"-Wl,--version-script={script}"


def _gcc(arguments: Sequence[str], output: Path) -> None:
    subprocess.run(
        ["gcc", "-Wno-builtin-declaration-mismatch", *arguments, "-o", str(output)],
        check=True,
        capture_output=True,
    )


class Tree:
    """A root file system that a test may break."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / SITE

    def write(self, name: str, content: str | bytes) -> Path:
        """A file relative to the root, executable when it starts with #!."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
        if data.startswith(b"#!"):
            path.chmod(0o755)
        return path

    def library(self, name: str, **options: Any) -> None:
        """Replace a library relative to site-packages."""
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        shared_library(path, **options)

    def program(self, name: str, release: str) -> None:
        """A program that answers --version as NVIDIA's do."""
        minor = ".".join(release.split(".")[:2])
        self.write(name, f"#!/bin/sh\necho 'Cuda compilation tools, release {minor}, V{release}'\n")

    def ptxas(self, name: str, release: str) -> None:
        """One that also makes the two cubins that the audit asks for."""
        self.program(name, release)
        path = self.root / name
        text = path.read_text().replace("\necho", '\ncase "$1" in --version) echo')
        path.write_text(
            f'{text.rstrip()};;\n*) cp "$(dirname "$0")/probe.${{1#-arch=}}.cubin" "$4";;\nesac\n'
        )
        for arch in ("sm_120", "sm_120a"):
            self.write(f"{Path(name).parent}/probe.{arch}.cubin", cubin(arch))

    def install(
        self,
        name: str,
        version: str,
        files: Sequence[str] = (),
        requires: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Record files (already there, or given with content) as a distribution."""
        for path, content in (extra or {}).items():
            self.write(f"{SITE}/{path}", content)
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        # A licence text with a line of blanks, as SGLang's metadata has one.
        head += "License: one\n        \n        two\n"
        head += "".join(f"Requires-Dist: {text}\n" for text in requires)
        self.write(f"{SITE}/{info}/METADATA", head + "\nRequires-Dist: not-a-header\n")
        rows = []
        for path in (*files, *(extra or {}), f"{info}/METADATA"):
            data = (self.site / path).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(data)}")
        rows.append(f"{info}/RECORD,,")
        self.write(f"{SITE}/{info}/RECORD", "\n".join(rows) + "\n")

    def context(self, *, import_checks: bool = False, **changes: Any) -> Context:
        """Scan now, for a target with these keys replaced."""
        return Context(scan(self.root), parse_target(raw_target(**changes)), import_checks)


STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
C10_CALL = "_ZN3c103fooEv"
SHIM = "aoti_torch_get_dtype"  # of torch's C interface
C10_CHECK = f"_ZN3c106detail14torchCheckFailEPKcS2_jRK{STRING}"
FIELDS = ("budget", "topk", "allow_hybrid_unsafe")
SYSTEM = "usr/lib/x86_64-linux-gnu"
SM120 = "sglang/kernels/ops/attention/extend_attention.py"
CUDNN, NCCL = "9.19.0.56", "2.28.9"
# Asked for SGLang it answers; given a folder it builds Triton's launcher there.
PYTHON = """#!/bin/sh
if [ -n "$3" ]; then cp "$(dirname "$0")/../../../../usr/lib/probe.so" "$3/cuda_utils.so"; exit; fi
echo noise
echo '{"algorithm": "DDTREE", "fields": ["speculative_ddtree_budget", "speculative_ddtree_topk",
"speculative_ddtree_allow_hybrid_unsafe"]}' | tr -d '\\n'
"""


def clean_tree(root: Path) -> Tree:
    """A tree that every rule passes."""
    tree = Tree(root)
    _system(tree)
    _torch(tree)
    _sglang(tree)
    _overlay(tree)
    _toolkit(tree)
    # Names no torch library, yet needs what torch exports, as cuda.core does.
    tree.library("cuda/core/cu13/_tensor_bridge.so", undefined=[SHIM])
    tree.install("packaging", "26.0")
    tree.install("torchvision", "0.26.0", requires=["torch==2.11.0", "numpy; extra == 'x'"])
    tree.install("torchaudio", "2.11.0")
    tree.write("usr/include/python3.11/Python.h", "")
    tree.write(f"{VENV}/bin/ninja", "#!/bin/sh\n")
    tree.write(f"{VENV}/bin/python", PYTHON)
    for sticky in ("tmp", "var/tmp"):
        (tree.root / sticky).mkdir(parents=True)
        (tree.root / sticky).chmod(0o1777)
    cache = tree.root / "var/cache/ddtree"
    cache.mkdir(parents=True)
    cache.chmod(0o2775)
    tree.write("etc/debian_version", "12.11\n")
    tree.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    tree.write("etc/shadow", "root:*:20000::::::\ndaemon:!:20000::::::\nnobody::20000::::::\n")
    tree.write("etc/ld.so.conf.d/libc.conf", "# libc\n/usr/local/lib/\n")
    tree.write(
        "var/lib/dpkg/status",
        "Package: g++\nStatus: install ok installed\nArchitecture: amd64\nVersion: 4:12.2.0-3\n\n"
        "Package: gone\nStatus: deinstall ok not-installed\nArchitecture: amd64\nVersion: 1\n",
    )
    return tree


# Writes what was asked for with -o, as a compiler does.
COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done
cp "$(dirname "$0")/../lib/probe.so" "$out"
"""


def _system(tree: Tree) -> None:
    """glibc and libstdc++ by their version definitions, and a compiler."""
    for name, versions in (
        ("libc.so.6", ("GLIBC_2.2.5", "GLIBC_2.34")),
        ("libstdc++.so.6.0.30", ("GLIBCXX_3.4", "CXXABI_1.3")),
    ):
        path = tree.root / SYSTEM / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shared_library(path, soname=".".join(name.split(".")[:3]), provides=versions)
    (tree.root / SYSTEM / "libstdc++.so.6").symlink_to("libstdc++.so.6.0.30")
    tree.write("usr/bin/g++", COMPILER)
    shared_library(
        tree.root / "usr/lib/probe.so",
        soname="probe.so",
        needed=["libcudart.so.13", "libcuda.so.1"],
        requires={"libc.so.6": "GLIBC_2.34", "libstdc++.so.6": "GLIBCXX_3.4"},
        runpath=f"/{SITE}/{TOOLKIT}/lib",
        code=fatbin((2, 120, 0)),
    )


def _torch(tree: Tree) -> None:
    tree.library("torch/lib/libc10.so", defined=[C10_CALL, C10_CHECK, SHIM])
    tree.library(
        "torch/lib/libtorch_cpu.so",
        needed=["libc10.so", "libcudart.so.13"],
        runpath="$ORIGIN:$ORIGIN/../../nvidia/cu13/lib",
    )
    version = (
        "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"
    )
    tree.write(f"{SITE}/torch/version.py", version)
    tree.library("torch/lib/libtorch_cuda.so", code=fatbin((2, 90, 0), (2, 120, 0), (1, 120, 0)))
    names = ("libc10.so", "libtorch_cpu.so", "libtorch_cuda.so")
    tree.install(
        "torch",
        "2.11.0",
        [f"torch/lib/{name}" for name in names],
        requires=[f"nvidia-cudnn-cu13=={CUDNN}; x == 'y'", f"nvidia-nccl-cu13=={NCCL}"],
    )
    major, minor, patch, _ = CUDNN.split(".")
    header = f"#define CUDNN_MAJOR {major}\n#define CUDNN_MINOR {minor}\n"
    header += f"#define CUDNN_PATCHLEVEL {patch}\n"
    tree.install("nvidia-cudnn-cu13", CUDNN, extra={"nvidia/cudnn/include/cudnn_version.h": header})
    said = f"NCCL version {NCCL}+cuda13.0"
    tree.install("nvidia-nccl-cu13", NCCL, extra={"nvidia/nccl/lib/libnccl.so.2": said})


SM120_BRANCHES = {
    "sglang/srt/utils/common.py": "is_sm120_supported = partial(check, majors=[12])\n",
    "sglang/kernels/ops/quantization/fp8_kernel.py": (
        "_is_sm120_supported = is_sm120_supported()\nstages = 1 if _is_sm120_supported else 4\n"
    ),
    "sglang/srt/layers/quantization/fp8_utils.py": "if not is_sm120_supported():\n    pass\n",
    "sglang/srt/layers/attention/attention_registry.py": (
        "if is_sm120_supported() or other:\n    pass\n"
    ),
    SM120: (
        "if _is_cuda and CUDA_CAPABILITY[0] == 12:\n    BLOCK_M, BLOCK_N = (64, 128)\n"
        "elif _is_cuda and CUDA_CAPABILITY[0] >= 9:\n    BLOCK_M, BLOCK_N = (128, 64)\n"
    ),
}


def _sglang(tree: Tree) -> None:
    fields = "".join(f"    speculative_ddtree_{name}: int = 0\n" for name in FIELDS)
    tree.library(
        "sgl_kernel/common_ops.abi3.so",
        needed=["libtorch_cpu.so", "libc10.so", "libcudart.so.13", "libcuda.so.1"],
        undefined=[C10_CALL, C10_CHECK, "cuInit"],
    )
    tree.install("sglang-kernel", "0.4.5", ["sgl_kernel/common_ops.abi3.so"])
    tree.install(
        "sglang",
        "0.5.17+ddtree.abcdef01",
        requires=["torch==2.11.0", "sglang-kernel==0.4.5"],
        extra={
            "sglang/srt/speculative/spec_info.py": (
                "class SpeculativeAlgorithm:\n    DFLASH = 1\n    DDTREE = 2\n"
            ),
            "sglang/srt/server_args.py": (
                f"class ServerArgs:\n{fields}\nif is_sm120_supported():\n    pass\n"
            ),
            **SM120_BRANCHES,
        },
    )


def _overlay(tree: Tree) -> None:
    tree.library(
        "ddtree_overlay/_C.cpython-311-x86_64-linux-gnu.so",
        needed=["libtorch_cpu.so", "libc10.so"],
        undefined=[C10_CHECK],
    )
    _kernels(tree)
    info = {
        "torch": "2.11.0+cu130",
        "variant": "cu130",
        "cxx11_abi": True,
        "nvrtc": "13.0.88",
        "sass": ["sm_90", "sm_120"],
        "ptx": "compute_120",
    }
    tree.write(f"{SITE}/ddtree_overlay/_build_info.json", json.dumps(info))
    folder = tree.site / "ddtree_overlay"
    files = [str(p.relative_to(tree.site)) for p in sorted(folder.rglob("*")) if p.is_file()]
    tree.install("ddtree-overlay", "0.1.0", files)


def _kernels(tree: Tree) -> None:
    """Two kernels for each architecture, and their description."""
    resources = {"registers": 62, "static_shared": 0}
    resources |= {"stack": 0, "spill_stores": 0, "spill_loads": 0}
    files: list[dict[str, Any]] = []
    for kernel in ("build_tree", "walk_tree"):
        for arch in ("sm_90", "sm_120", "compute_120"):
            kind = "ptx" if arch == "compute_120" else "cubin"
            code = ptx().encode() if kind == "ptx" else cubin(arch)
            name = f"{kernel}.{arch}.{kind}"
            tree.write(f"{SITE}/ddtree_overlay/kernels/{name}", code)
            files.append(
                {
                    "file": name,
                    "kernel": kernel,
                    "arch": arch,
                    "kind": kind,
                    "sha256": hashlib.sha256(code).hexdigest(),
                    "entries": {f"ddtree_{kernel}": None if kind == "ptx" else resources},
                }
            )
    description = {"schema": 2, "nvrtc": "13.0.88", "options": [], "files": files}
    tree.write(f"{SITE}/ddtree_overlay/kernels/kernels.json", json.dumps(description))


def _toolkit(tree: Tree) -> None:
    home = f"{SITE}/{TOOLKIT}"
    tree.library(f"{TOOLKIT}/lib/libcudart.so.13", soname="libcudart.so.13")
    for name in ("nvrtc", "cublas", "cublasLt"):
        soname = f"lib{name}.so.13"
        tree.library(f"{TOOLKIT}/lib/{soname}", soname=soname)
    for name in ("cudart", "nvrtc", "cublas", "cublasLt"):
        (tree.site / TOOLKIT / f"lib/lib{name}.so").symlink_to(f"lib{name}.so.13")
    tree.library(f"{TOOLKIT}/lib/stubs/libcuda.so", soname="libcuda.so.1", defined=["cuInit"])
    (tree.site / TOOLKIT / "lib64").symlink_to("lib")
    for name in ("nvcc", "ptxas", "cudafe++", "fatbinary", "nvlink"):
        tree.program(f"{home}/bin/{name}", "13.0.88")
    # And nvcc leaves what the linker then takes.
    nvcc = tree.root / home / "bin/nvcc"
    nvcc.write_text(
        nvcc.read_text() + 'while [ $# -gt 0 ]; do [ "$1" = -o ] && : >"$2"; shift; done\n'
    )
    # cicc knows no --version; it carries the line.
    tree.write(
        f"{home}/nvvm/bin/cicc",
        "#!/bin/sh\necho Missing input file\nexit 1\n"
        "# Cuda compilation tools, release 13.0, V13.0.88\n",
    )
    tree.write(f"{home}/nvvm/libdevice/libdevice.10.bc", "")
    for name in ("cuda_runtime.h", "crt/host_config.h", "cccl/cuda/std/version"):
        tree.write(f"{home}/include/{name}", "")
    tree.write(f"{home}/include/cuda.h", "#define CUDA_VERSION 13000\n")
    tree.write(f"{home}/include/cuda_runtime_api.h", "#define CUDART_VERSION  13000\n")
    tree.install("nvidia-cuda-nvcc", "13.0.88", [f"{TOOLKIT}/bin/nvcc"])
    tree.install("nvidia-cuda-runtime", "13.0.96", [f"{TOOLKIT}/lib/libcudart.so.13"])
    tree.ptxas(f"{SITE}/triton/backends/nvidia/bin/ptxas", "12.8.93")
    tree.install("triton", "3.6.0", ["triton/backends/nvidia/bin/ptxas"])
