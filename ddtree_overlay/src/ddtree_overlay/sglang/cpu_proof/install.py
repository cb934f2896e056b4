"""Put the CPU proof path in place, in one process."""

from __future__ import annotations

import os
from typing import Any

from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError

_CHOICES = "sglang.srt.server_args.ATTENTION_BACKEND_CHOICES"
_DRAFT_BACKENDS = "sglang.srt.speculative.draft_worker_common._SUPPORTED_DRAFT_BACKENDS"


_installed = False


def install() -> None:
    """Refuse where CUDA is visible; else install everything, once per process.

    Raises:
        CpuProofError: see the package's docstring.
    """
    global _installed
    if _installed:
        return
    refuse_cuda()

    from ddtree_overlay.sglang.cpu_proof.rotary import provide_vllm

    provide_vllm()
    # Read when a KV pool is made.
    os.environ["SGLANG_NATIVE_MOVE_KV_CACHE"] = "1"

    from ddtree_overlay.sglang.cpu_proof import hooks, observer, shims

    _register_backend(hooks.find(_CHOICES, None))
    _allow_draft_backend(hooks.find(_DRAFT_BACKENDS, None))
    shims.patch_record_stream()
    hooks.apply(shims.SHIMS)
    hooks.apply(observer.shims())
    _installed = True


def refuse_cuda() -> None:
    """Raise CpuProofError where torch could use a CUDA device; does not initialise CUDA."""
    # Through NVML: cudaGetDeviceCount would spoil a later fork.
    before = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]

        visible = torch.cuda.is_available()
    finally:
        if before is None:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        else:
            os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = before
    if visible:
        raise CpuProofError(
            "DDTREE_CPU_PROOF=1, but a CUDA device is visible",
            'unset DDTREE_CPU_PROOF to serve on it, or set CUDA_VISIBLE_DEVICES="" for a proof',
        )


def _register_backend(choices: Any) -> None:
    from sglang.srt.layers.attention import (  # type: ignore[import-not-found, unused-ignore]
        attention_registry,
    )
    from sglang.srt.server_args import (  # type: ignore[import-not-found, unused-ignore]
        add_attention_backend_choices,
        add_deterministic_attention_backend_choices,
        add_radix_supported_deterministic_attention_backend_choices,
    )

    from ddtree_overlay.sglang.cpu_proof.shims import BACKEND

    if BACKEND in attention_registry.ATTENTION_BACKENDS or BACKEND in choices:
        raise CpuProofError(
            f"an attention backend {BACKEND} is registered already",
            "activate the CPU proof path once per process",
        )

    def create(runner: Any) -> Any:
        from ddtree_overlay.sglang.cpu_proof.backend import CpuTreeAttnBackend

        return CpuTreeAttnBackend(runner)

    attention_registry.register_attention_backend(BACKEND)(create)
    add_attention_backend_choices([BACKEND])
    # What --enable-deterministic-inference asks for, and with it a seed per request: the result of
    # a row does not depend on its batch, nor on whether its prefix was cached.
    add_deterministic_attention_backend_choices([BACKEND])
    add_radix_supported_deterministic_attention_backend_choices([BACKEND])
    if BACKEND not in choices:
        raise CpuProofError(
            f"--attention-backend does not offer {BACKEND} after its registration",
            "use the SGLang version that this overlay was made for",
        )


def _allow_draft_backend(supported: Any) -> None:
    from sglang.srt.speculative import (  # type: ignore[import-not-found, unused-ignore]
        draft_worker_common,
    )

    from ddtree_overlay.sglang.cpu_proof.shims import BACKEND

    if not isinstance(supported, tuple):
        raise CpuProofError(
            f"{_DRAFT_BACKENDS} is a {type(supported).__name__}, not a tuple",
            "use the SGLang version that this overlay was made for",
        )
    draft_worker_common._SUPPORTED_DRAFT_BACKENDS = (*supported, BACKEND)
