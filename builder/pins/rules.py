"""Cross-pin rules: each pin may be well-formed and the whole still not fit."""

from __future__ import annotations

import re
from collections.abc import Callable

from builder.errors import PinConflictError
from builder.pins.target import Target

Clash = Callable[[str, str, str], PinConflictError]

# What JIT compiles and links with; an unpinned one follows whatever asks for it last.
JIT_COMPONENTS: dict[str, set[str]] = {
    "wheels": {
        "nvidia-cuda-nvcc",
        "nvidia-nvvm",
        "nvidia-cuda-crt",
        "nvidia-cuda-runtime",
        "nvidia-cuda-cccl",
    },
    "archives": {"cuda_nvcc", "cuda_cudart", "cuda_cccl"},
    "absent": set(),
}

# torch's PyPI builds carry one CUDA each; the local version says which one elsewhere.
_PYPI_TORCH_CUDA = {"2.9": "12.8", "2.10": "12.8", "2.11": "13.0"}


def check_target(target: Target) -> None:
    """Cross-pin rules. Raises PinConflictError with the two keys that disagree."""
    where = f"{target.variant}.toml"
    prefix = "stand_in." if target.stand_in else ""

    def clash(key: str, reason: str, remedy: str) -> PinConflictError:
        return PinConflictError(f"{where}: {prefix}{key}: {reason}", remedy)

    tag = "cu" + target.cuda.version.replace(".", "")
    if tag != target.variant:
        raise clash(
            "cuda.version",
            f"{target.cuda.version} is tag {tag}, the file is {target.variant}",
            "make cuda.version and the file name agree",
        )
    _check_torch(target, clash)
    if int(target.kernels.cuda.split(".")[0]) != target.cuda_major:
        raise clash(
            "kernels.cuda",
            f"kernels built with CUDA {target.kernels.cuda} cannot load beside CUDA "
            f"{target.cuda.version}",
            f"pin a sglang-kernel build of CUDA {target.cuda_major}",
        )
    if not target.cubin.nvrtc.startswith(target.cuda.version + "."):
        raise clash(
            "cubin.nvrtc",
            f"{target.cubin.nvrtc} is not CUDA {target.cuda.version}",
            "cubins are compiled by the variant's own NVRTC",
        )
    if "sm_120" not in target.cubin.sass:
        raise clash("cubin.sass", "sm_120 is missing", 'add "sm_120": the appliance runs on it')
    missing = sorted(JIT_COMPONENTS[target.toolchain.source] - set(target.toolchain.components))
    if missing:
        raise clash(
            "toolchain.components",
            f"no pin for {', '.join(missing)}: the resolver would choose its CUDA version",
            "pin every component that JIT uses",
        )
    for component, version in target.toolchain.components.items():
        if not version.startswith(target.cuda.version + "."):
            raise clash(
                f"toolchain.components.{component}",
                f"{version} is not CUDA {target.cuda.version}",
                "pin the variant's own minor version of every JIT component",
            )
    if target.toolchain.source == "absent" and not (target.stand_in and target.toolchain.reason):
        raise clash("toolchain.source", "absent", "only a stand-in may lack it, with a reason")
    _check_sources(target, clash)


def _check_torch(target: Target, clash: Clash) -> None:
    base, _, local = target.torch.version.partition("+")
    minor = ".".join(base.split(".")[:2])
    if target.torch.index == "pytorch" and local != target.variant:
        raise clash(
            "torch.version",
            f"{target.torch.version} from the PyTorch index must end in +{target.variant}",
            f"write {base}+{target.variant}, or index = 'pypi'",
        )
    if target.torch.index == "pypi":
        if local:
            raise clash(
                "torch.version",
                f"{target.torch.version}: PyPI carries no local versions",
                "drop the +local part, or use index = 'pytorch'",
            )
        built = _PYPI_TORCH_CUDA.get(minor)
        if built != target.cuda.version:
            raise clash(
                "torch.version",
                f"PyPI's torch {base} is built for CUDA {built or 'unknown'}, not "
                f"{target.cuda.version}",
                "use index = 'pytorch' with a +cuXXX version, or another torch",
            )


def _check_sources(target: Target, clash: Clash) -> None:
    names = [s.name for s in target.sources]
    doubled = sorted({n for n in names if names.count(n) > 1})
    if doubled:
        raise clash("source.name", f"twice: {', '.join(doubled)}", "one entry for each file")
    pinned = {s.name: s for s in target.sources}
    wants: dict[str, str] = {}
    if target.torch.index == "pytorch":
        wants.update(
            torch=target.torch.version,
            torchvision=target.torch.torchvision,
            torchaudio=target.torch.torchaudio,
        )
    if target.kernels.source == "github":
        wants[target.kernels.distribution] = target.kernels.version
    if target.toolchain.source == "archives":
        wants.update(target.toolchain.components)
    for name, version in wants.items():
        source = pinned.get(name)
        if source is None:
            raise clash("source", f"no entry for {name}", f"add [[source]] name = '{name}'")
        if source.version != version:
            raise clash(
                "source.version",
                f"{name} is {source.version} there, {version} elsewhere",
                "make both the same",
            )
    for source in target.sources:
        basename = re.sub(r"%2B", "+", source.url.rsplit("/", 1)[-1], flags=re.IGNORECASE)
        if basename != source.filename:
            raise clash(
                "source.filename",
                f"{source.filename} is not the last part of its url",
                "copy the file name from the url",
            )
