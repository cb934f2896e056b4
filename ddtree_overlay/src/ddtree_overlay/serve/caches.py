"""Where the server's process keeps what it compiles and downloads, by variable.

Compiled kernels belong to one build of the image: below `cache_dir`/<build id>. Downloads belong to
none. Each variable was looked up in the installed version of the library that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddtree_overlay.serve.plan import Value

BYTECODE = "PYTHONPYCACHEPREFIX"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
COMPILED = {
    # triton/knobs.py; also where its autotuner and SGLang's own Triton kernels go
    "TRITON_CACHE_DIR": "triton",
    # torch/_inductor/runtime/cache_dir_utils.py
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    # torch/utils/cpp_extension.py
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    # flashinfer/jit/env.py; it appends .cache/flashinfer/<version>/<architectures>
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    # tvm_ffi/cpp/extension.py and sglang/kernels/jit/utils/compile.py
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    # the driver's own, for PTX that it compiles
    "CUDA_CACHE_PATH": "cuda",
    # sglang/srt/environ.py: P2P probe, FlashInfer's tuning, compiled graphs
    "SGLANG_CACHE_DIR": "sglang",
    # sglang/srt/layers/deep_gemm_wrapper/compile_utils.py, which sets DG_JIT_CACHE_DIR from it
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    # tilelang/env.py
    "TILELANG_CACHE_DIR": "tilelang",
    # quack/autotuner.py
    "QUACK_CACHE_DIR": "quack",
    # numba/core/config.py
    "NUMBA_CACHE_DIR": "numba",
    # outlines/caching.py
    "OUTLINES_CACHE_DIR": "outlines",
    # Python's own: the image ships no bytecode, and SGLang's takes ten seconds and more to make
    BYTECODE: "bytecode",
    # whatever else follows the convention
    "XDG_CACHE_HOME": "xdg",
}
"""Variable to folder below the build's own."""
DOWNLOADED = {"HF_HOME": "huggingface"}
"""Variable to folder below `cache_dir`: models and tokenizers do not depend on the build."""
UNKNOWN_BUILD = "dev"
CUDA_CACHE_BYTES = 4 * 2**30
"""The driver's default of 1 GiB is less than what eight processes of large modules compile."""


def cache_variables(
    cache_dir: str, build_id: str, environment: Mapping[str, str]
) -> dict[str, Value]:
    """Variable to value. One that the user set is kept; the image's own XDG_CACHE_HOME, which is
    the root itself, is not the user's.

    build_id: of the manifest; anything that cannot be a folder's name counts as unknown.
    """
    root = Path(cache_dir)
    keyed = root / (build_id if _is_name(build_id) else UNKNOWN_BUILD)
    why = f"computed: below cache_dir, by build {keyed.name}"
    wanted = {name: Value(str(keyed / folder), why) for name, folder in COMPILED.items()}
    for name, folder in DOWNLOADED.items():
        wanted[name] = Value(str(root / folder), "computed: below cache_dir, for every build")
    wanted["CUDA_CACHE_MAXSIZE"] = Value(str(CUDA_CACHE_BYTES), "computed: room for every rank")
    for name in wanted:
        given = environment.get(name)
        if given and not (name == "XDG_CACHE_HOME" and Path(given) == root):
            wanted[name] = Value(given, f"environment {name}")
    if not environment.get(BYTECODE):
        # The image sets it, since its own files are not to change; an empty one counts as unset.
        wanted[NO_BYTECODE] = Value("", f"computed: bytecode is kept below {BYTECODE}")
    return wanted


def cache_folders(environment: Mapping[str, Value]) -> tuple[Path, ...]:
    """The folders among a plan's variables, to be created and checked before the server starts."""
    names = [*COMPILED, *DOWNLOADED]
    return tuple(Path(environment[name].value) for name in names if name in environment)


def _is_name(build_id: str) -> bool:
    safe = build_id.replace("-", "").replace("_", "").replace(".", "").isalnum()
    return bool(build_id) and safe and build_id.strip(".") != "" and build_id != "unknown"
