"""Every kind of finding about the image: overlay and toolchain."""

from __future__ import annotations

from ddtree_overlay.doctor.model import Code, Severity

_AS_BUILT = "use the image as it was built: docker pull it again by digest, mount nothing over it"
_ERROR, _INFO = Severity.ERROR, Severity.INFO

PROBE_FAILED = Code(
    "OVL001",
    _ERROR,
    "The process that tries the overlay crashed, hung, or said nothing.",
    "run ddtree doctor --bundle and report it; a GPU in error (host: dmesg) also looks like this",
)
EXTENSION = Code("OVL002", _ERROR, "The overlay's extension does not load.", _AS_BUILT)
WRONG_RESULT = Code(
    "OVL003",
    _ERROR,
    "A kernel of the overlay gives another result than its reference.",
    "do not serve from this device; try another GPU (CUDA_VISIBLE_DEVICES), then report it",
)
NOT_REGISTERED = Code(
    "OVL004", _ERROR, "SGLang does not know DDTREE, or its worker cannot be imported.", _AS_BUILT
)
OTHER_CUDA = Code(
    "OVL005", _ERROR, "torch is of another CUDA or version than the image's manifest.", _AS_BUILT
)
SGLANG_KERNELS = Code("OVL006", _ERROR, "SGLang's own kernels do not load.", _AS_BUILT)
PLUGIN = Code(
    "OVL007",
    _ERROR,
    "A plugin of SGLang cannot be loaded; SGLang would only log it.",
    "remove the package that brings it, or correct it",
)
NO_TORCH_GPU = Code(
    "OVL008",
    _ERROR,
    "torch cannot use a GPU.",
    "run the container with --gpus all on a host whose driver fits the image",
)
NO_CAPTURE = Code(
    "OVL009",
    _ERROR,
    "SGLang's class of the target hands no layers to a DFlash drafter.",
    "use a target that SGLang supports for DFLASH, or the profile nospec",
)

COMPILER = Code("TLC001", _ERROR, "There is no C++ compiler for just-in-time kernels.", _AS_BUILT)
NINJA = Code("TLC002", _ERROR, "There is no ninja for just-in-time kernels.", _AS_BUILT)
NVCC = Code("TLC003", _ERROR, "There is no working nvcc for just-in-time kernels.", _AS_BUILT)
OTHER_NVCC = Code("TLC004", _ERROR, "nvcc is of another CUDA than the image.", _AS_BUILT)
HEADERS = Code("TLC005", _ERROR, "CUDA's headers or libraries are incomplete.", _AS_BUILT)
TRITON_PTXAS = Code("TLC006", _ERROR, "Triton's own ptxas is missing or does not run.", _AS_BUILT)
STAND_IN = Code(
    "TLC007",
    _INFO,
    "A stand-in image: it has no CUDA toolkit and cannot serve on a GPU.",
    "build the image without --stand-in for a GPU",
)
