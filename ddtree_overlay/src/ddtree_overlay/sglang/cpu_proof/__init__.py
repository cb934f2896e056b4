"""SGLang on a CPU with the shipped DFLASH and DDTREE code, for proofs. Never for a GPU server.

`activate` is an entry point of SGLang's plugin group `sglang.srt.plugins`: every SGLang process
calls it before it parses arguments. It does nothing, and imports nothing, unless the environment
says DDTREE_CPU_PROOF=1. Then it

- registers the attention backend `ddtree_cpu` (`--attention-backend ddtree_cpu`, see `.backend`),
  also as a draft backend;
- replaces what SGLang 0.5.17 cannot do on a CPU (see `.shims`), after checking that each target
  exists with the parameters that the replacement was written for.

It ends the process with exit code 67 (`CpuProofError`), one line of what happened and one of what
to do, where DDTREE_CPU_PROOF is neither 0 nor 1, where a CUDA device is visible, and where
anything fails: SGLang itself only logs a plugin that raises, and would run on without it.

DDTREE_CPU_PROOF_TRACE=FILE appends one JSON line per verify forward of the target, see `.trace`.
"""

from __future__ import annotations

import os
import sys

__all__ = ["SWITCH", "activate"]

SWITCH = "DDTREE_CPU_PROOF"


def activate() -> None:
    """Activate the CPU proof path if the environment asks for it.

    Raises:
        SystemExit: code 67, see the module's docstring. Deliberately not an Exception.
    """
    setting = os.environ.get(SWITCH, "")
    if setting in ("", "0"):
        return

    from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError

    try:
        if setting != "1":
            raise CpuProofError(
                f"{SWITCH}={setting!r} is neither 0 nor 1",
                f"set {SWITCH}=1 for a CPU proof, or unset it",
            )
        from ddtree_overlay.sglang.cpu_proof.install import install

        install()
    except CpuProofError as error:
        _exit(error)
    except Exception as error:
        _exit(
            CpuProofError(
                f"the CPU proof path cannot be activated: {type(error).__name__}: {error}",
                f"use the SGLang version that this overlay was made for, or unset {SWITCH}",
            )
        )


def _exit(error: object) -> None:
    from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError

    assert isinstance(error, CpuProofError)
    print(*error.lines(), sep="\n", file=sys.stderr, flush=True)
    raise SystemExit(error.exit_code)
