"""JIT: the image's own toolchain really compiles for sm_120.

The toolchain being there (JIT001) and of one release (JIT002) does not make it work: a header that
does not fit the host compiler, a missing library or an old assembler shows only when it is run.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from builder.inside.audit.device_code import DEVICE
from builder.inside.audit.linkage import system_libraries
from builder.inside.audit.model import Context, Finding
from builder.inside.audit.toolchain import TRITON, has_toolkit, toolkit_home
from builder.inside.contents import inspect
from builder.inside.elf import NotElfError, cubin_architecture

_SECONDS = 300
# 8.7 is the first PTX ISA with sm_120; Triton compiles for the architecture with its `a`.
_TARGETS = (f"sm_{DEVICE}", f"sm_{DEVICE}a")
_PTX = """\
.version 8.7
.target {target}
.address_size 64
.visible .entry probe(.param .u64 out)
{{
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %tid.x;
  st.global.u32 [%rd2], %r1;
  ret;
}}
"""
# What JIT-compiled kernels of SGLang and FlashInfer include: 16-bit floats, the math of the C
# library (which once clashed with CUDA's headers), CCCL, and a launch from the host.
_KERNEL = """\
#include <cmath>
#include <cuda/std/array>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

__global__ void probe(__nv_bfloat16* out, float scale, int count) {
  cuda::std::array<float, 2> pair{scale, 1.0f};
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = __float2bfloat16(std::sqrt(pair[0]) * __bfloat162float(out[i]));
}

extern "C" int ddtree_probe(void* out, float scale, int count) {
  probe<<<(count + 255) / 256, 256>>>(static_cast<__nv_bfloat16*>(out), scale, count);
  return static_cast<int>(cudaGetLastError());
}
"""
# Triton's own function builds its own source with its own flags; only the driver is a stub.
_LAUNCHER = """
import os, pathlib, sys, triton
from triton.runtime.build import _build
backend = pathlib.Path(triton.__file__).parent / "backends/nvidia"
scratch, stubs = sys.argv[1:]
print(_build("cuda_utils", os.fspath(backend / "driver.c"), scratch, [stubs],
             [os.fspath(backend / "include")], ["libcuda.so.1"], []))
"""
_REMEDY = "run the command in the image; the toolkit's components must fit each other and g++"


def triton_assembles(context: Context) -> Iterator[Finding]:
    """JIT004: each ptxas that Triton brings makes a cubin from a tiny PTX file."""
    for name in TRITON:
        program = context.files.site_path / name
        if not program.exists():
            continue  # JIT003 says what is missing
        for target in _TARGETS:
            context.count("JIT004")
            with tempfile.TemporaryDirectory() as scratch:
                text = _assemble(program.absolute(), target, Path(scratch))
            if text:
                where = f"{context.files.site}/{name}"
                yield Finding("JIT004", where, f"{target}: {text}", "lock a newer triton")


def _assemble(program: Path, target: str, scratch: Path) -> str:
    source, out = scratch / "probe.ptx", scratch / "probe.cubin"
    source.write_text(_PTX.format(target=target), "utf-8")
    failed = _run([str(program), f"-arch={target}", str(source), "-o", str(out)], scratch)
    if failed:
        return failed
    try:
        made = cubin_architecture(out.read_bytes())
    except (OSError, NotElfError) as exc:
        return f"made no cubin: {exc}"
    return "" if made == target else f"made a cubin for {made}"


def compiles(context: Context) -> bool:
    """Only inside the image: its programs must find its own headers and libraries."""
    return context.import_checks and has_toolkit(context)


def kernel(context: Context) -> Iterator[Finding]:
    """JIT005: nvcc and g++ make a shared object with code for sm_120 from one real kernel."""
    context.count("JIT005")
    home = toolkit_home(context)
    where = str(home.relative_to(context.files.root))
    said = os.environ.get("CUDA_HOME", "")
    if context.files.root == Path("/") and said != str(home):
        text = f"CUDA_HOME is {said or 'not set'}, the toolkit lies in {home}"
        yield Finding("JIT005", where, text, "set it in the Dockerfile")
    compiler = context.files.root / "usr/bin/g++"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        source, object_, library = (scratch / f"probe{end}" for end in (".cu", ".o", ".so"))
        source.write_text(_KERNEL, "utf-8")
        nvcc = [str(home / "bin/nvcc"), "-ccbin", str(compiler), "-std=c++17", "-O2"]
        nvcc += [f"-arch=sm_{DEVICE}", "-Xcompiler", "-fPIC", "-c", str(source), "-o", str(object_)]
        link = [str(compiler), "-shared", str(object_), "-o", str(library)]
        link += [f"-L{home / 'lib64'}", f"-L{home / 'lib64/stubs'}", "-lcudart", "-lcuda"]
        for command in (nvcc, link):
            failed = _run(command, scratch)
            if failed:
                text = f"{Path(command[0]).name}: {failed}"
                yield Finding("JIT005", where, text, _REMEDY)
                return
        yield from _made(context, library, where)


def _made(context: Context, library: Path, where: str) -> Iterator[Finding]:
    """What was linked, read as every other library is."""
    contents = inspect(library, library.name) if library.is_file() else None
    elf = contents.elf if contents else None
    if elf is None:
        yield Finding("JIT005", where, "g++ made no shared object", _REMEDY)
        return
    if not any(code.native(DEVICE) for code in elf.code):
        names = ", ".join(code.name for code in elf.code) or "nothing"
        text = f"the shared object holds {names}, no cubin for sm_{DEVICE}"
        yield Finding("JIT005", where, text, _REMEDY)
    major = context.target.cuda_major
    known = system_libraries(context.files) | {f"libcudart.so.{major}", "libcuda.so.1"}
    for name in elf.needed:
        if name not in known:
            text = f"the shared object needs {name}, which no loader here finds"
            yield Finding("JIT005", where, text, _REMEDY)


def launcher(context: Context) -> Iterator[Finding]:
    """JIT006: Triton builds the C module that it launches every kernel through (Python.h, gcc)."""
    context.count("JIT006")
    python = context.files.site_path.parents[2] / "bin/python"
    stub = toolkit_home(context) / "lib64/stubs/libcuda.so"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        stubs, out = scratch / "stubs", scratch / "out"
        stubs.mkdir()
        out.mkdir()
        # Triton links `-l:libcuda.so.1`: the driver's name, which no file of the image has.
        (stubs / "libcuda.so.1").symlink_to(stub.absolute())
        failed = _run([str(python), "-c", _LAUNCHER, str(out), str(stubs)], scratch)
        made = [path for path in out.iterdir() if inspect(path, path.name).elf]
    if failed or not made:
        text = f"Triton cannot build its launcher: {failed or 'no shared object was made'}"
        yield Finding("JIT006", "triton", text, "g++ and python3-dev must be in the image")


def _run(command: Sequence[str], scratch: Path) -> str:
    """Empty when the program succeeded, else its last line. Caches go to the scratch folder."""
    caches = dict.fromkeys(
        ("HOME", "XDG_CACHE_HOME", "TMPDIR", "TRITON_CACHE_DIR"), os.fspath(scratch)
    )
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            cwd=scratch,
            env={**inherited, **caches, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    if done.returncode == 0:
        return ""
    said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if "error" in line.lower()] or said or ["no message"]
    return f"exit {done.returncode}: {errors[0].strip()}"
