"""Arguments and environment of both servers, by device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddtree_overlay.selftest.model_files import Models

SEED = 20261130
CONTEXT = 512
POOL_TOKENS = 8192
# What the CPU proof stands on, see ddtree_overlay.sglang.cpu_proof. The seeded sampler is a Triton
# kernel (interpreted there) in a compiled function, and the image has no compiler for CPUs.
CPU_ENVIRONMENT = {
    "DDTREE_CPU_PROOF": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    # Two servers share the cores, and the order of a sum must not depend on how many are free.
    "OMP_NUM_THREADS": "1",
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # Else /health generates a token, which is counted.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    # A crash is diagnosed for a minute otherwise, in which the server neither answers nor ends.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}
# Where libraries write what they compile. (HOME too, for those that do not ask.)
CACHES = ("HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
# All that a server inherits of our settings, which are those of the server that is configured here.
KEPT = ("DDTREE_MANIFEST", "DDTREE_HOST_ROOT")


@dataclass(frozen=True)
class Configuration:
    """What is the same for both servers.

    device:  "cpu" or "cuda"
    tp:      tensor-parallel ranks
    """

    device: str
    tp: int
    models: Models

    def plain(self) -> list[str]:
        """SGLang's arguments without speculation; address left out."""
        argv = ["--model-path", str(self.models.target), "--served-model-name", "selftest"]
        argv += ["--max-total-tokens", str(POOL_TOKENS), "--context-length", str(CONTEXT)]
        # The pool's size is given. The fraction only must not run out where the other server takes
        # memory while this one measures it.
        argv += ["--mem-fraction-static", "0.8", "--max-running-requests", "16"]
        argv += ["--random-seed", str(SEED), "--log-level-http", "warning"]
        argv += ["--enable-metrics", "--decode-log-interval", "1"]
        # A tiny model likes blanks better than an end.
        argv += ["--constrained-json-disable-any-whitespace"]
        if self.tp > 1:
            argv += ["--tp-size", str(self.tp)]
        if self.device == "cpu":
            argv += ["--device", "cpu", "--attention-backend", "ddtree_cpu", "--dtype", "float32"]
            argv += ["--disable-cuda-graph", "--enable-deterministic-inference"]
        else:
            # As a profile serves: CUDA graphs, overlap scheduling, FlashInfer.
            argv += ["--device", "cuda", "--attention-backend", "flashinfer"]
            argv += ["--dtype", "bfloat16", "--cuda-graph-max-bs-decode", "8"]
        return argv

    def tree(self) -> list[str]:
        """The same with DDTREE."""
        budget = self.models.budget
        argv = [*self.plain(), "--speculative-algorithm", "DDTREE"]
        argv += ["--speculative-draft-model-path", str(self.models.draft)]
        argv += ["--speculative-ddtree-budget", str(budget)]
        return [*argv, "--speculative-ddtree-topk", str(budget)]

    @property
    def seeds(self) -> bool:
        """Whether a request's seed alone decides its draws: under deterministic inference only."""
        return self.device == "cpu"

    def environment(self, given: Mapping[str, str], folder: Path) -> dict[str, str]:
        """A server's environment: `given` without our settings, caches below `folder` where those
        named in `given` cannot be written."""
        kept = {k: v for k, v in given.items() if not k.startswith("DDTREE_") or k in KEPT}
        kept |= ENVIRONMENT | (CPU_ENVIRONMENT if self.device == "cpu" else {})
        if self.device == "cpu" and self.tp > 1:
            # Each rank binds its threads to a core of its own, if there is one.
            cores = os.cpu_count() or 1
            kept["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(i % cores) for i in range(self.tp))
        for name in CACHES:
            if not _writable(kept.get(name)):
                kept[name] = str(folder / "cache")
        for name in ("USER", "LOGNAME"):
            # torch asks for the user's name, which an arbitrary UID does not have.
            kept.setdefault(name, "ddtree")
        return kept


def _writable(folder: str | None) -> bool:
    """Whether files can be made in the folder, or in the nearest one above it that exists."""
    if not folder:
        return False
    path = Path(folder)
    nearest = next((one for one in (path, *path.parents) if one.exists()), path)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
