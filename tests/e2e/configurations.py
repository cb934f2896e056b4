"""The servers of the end-to-end proof: how each is started and what is asked of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.e2e import frontends, greedy, lifecycle, sampled
from tests.e2e.session import Group

CONTEXT = 512
POOL = 16384
# Under the twelve requests of `lifecycle.pressure`, which want over 1500 tokens.
SMALL_POOL = 900

CPU = ("--device", "cpu", "--attention-backend", "ddtree_cpu", "--disable-cuda-graph")
INTERPRETED = ("--device", "cpu", "--attention-backend", "triton", "--disable-cuda-graph")


@dataclass(frozen=True)
class Configuration:
    """One server.

    algorithm:    "", "DFLASH" or "DDTREE"
    budget:       of DDTREE
    device:       where and with which attention backend it runs, as arguments
    arguments:    further ones
    environment:  further variables
    groups:       what is asked, in order
    dtype:        of weights and KV
    nodes:        dump the logits of the first trees' nodes (DDTREE on a CPU)
    """

    groups: Sequence[Group]
    algorithm: str = ""
    budget: int = 0
    device: Sequence[str] = CPU
    arguments: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    pool: int = POOL
    nodes: bool = False

    def argv(self, models: Path) -> list[str]:
        """The server's arguments, its address left out."""
        argv = ["--model-path", str(models / "target"), "--dtype", self.dtype, *self.device]
        # The pool's size is given; the fraction only must not run out where another server, starting
        # beside this one, takes memory while it is measured.
        argv += ["--max-total-tokens", str(self.pool), "--mem-fraction-static", "0.8"]
        argv += ["--context-length", str(CONTEXT), "--random-seed", "20261129"]
        argv += ["--enable-metrics", "--decode-log-interval", "1", "--log-level-http", "warning"]
        # A tiny model likes blanks better than an end.
        argv += ["--constrained-json-disable-any-whitespace", "--tool-call-parser", "qwen25"]
        if self.algorithm:
            argv += ["--speculative-algorithm", self.algorithm]
            argv += ["--speculative-draft-model-path", str(models / "draft")]
        if self.algorithm == "DDTREE":
            argv += ["--speculative-ddtree-budget", str(self.budget)]
            argv += ["--speculative-ddtree-topk", str(min(self.budget, 32))]
        return argv + list(self.arguments)


SYNCHRONOUS = ("--disable-overlap-schedule",)
COMMON: tuple[Group, ...] = (greedy.sequential, greedy.concurrent, greedy.endings)
WHOLE: tuple[Group, ...] = (
    greedy.sequential,
    greedy.sequential_streamed,
    greedy.concurrent,
    greedy.concurrent_streamed,
    greedy.endings,
    greedy.edges,
    lifecycle.staggered,
    lifecycle.aborts,
    lifecycle.context,
    frontends.openai,
    frontends.grammar,
)
REFERENCE: tuple[Group, ...] = (
    *COMMON,
    greedy.edges,
    lifecycle.staggered,
    lifecycle.context,
    lifecycle.pressure,
    frontends.openai,
    frontends.grammar,
    sampled.samples,
)

_TREE = Configuration((), algorithm="DDTREE", budget=16, arguments=SYNCHRONOUS)
_TRITON = replace(
    _TREE,
    groups=(lifecycle.few,),
    device=INTERPRETED,
    environment={"TRITON_INTERPRET": "1"},
)
# A seeded draw is a Triton kernel (interpreted here) in a compiled function, and an image for serving
# need not have a compiler for CPUs.
_SEEDED = Configuration(
    (sampled.seeded,),
    arguments=("--enable-deterministic-inference", *SYNCHRONOUS),
    environment={"TORCHDYNAMO_DISABLE": "1", "TRITON_INTERPRET": "1"},
)

CONFIGURATIONS: dict[str, Configuration] = {
    "plain": Configuration(REFERENCE, arguments=SYNCHRONOUS),
    "dflash": Configuration(
        # Not at the end of the context (`lifecycle.context`), nor where a stop and the length lie
        # within one round (`greedy.edges`; of `endings` too, by chance).
        (greedy.sequential, greedy.concurrent),
        algorithm="DFLASH",
        arguments=SYNCHRONOUS,
    ),
    "ddtree16": replace(_TREE, groups=(*WHOLE, frontends.refusals, sampled.samples)),
    "ddtree4": replace(
        _TREE, budget=4, groups=(greedy.sequential, greedy.concurrent_streamed, greedy.endings)
    ),
    "ddtree16-nodes": replace(_TREE, groups=(lifecycle.few, lifecycle.staggered), nodes=True),
    "ddtree16-overlap": replace(
        _TREE,
        arguments=(),
        groups=(
            greedy.sequential,
            greedy.edges,
            lifecycle.staggered,
            lifecycle.aborts,
            lifecycle.context,
        ),
    ),
    # Hardly conservative: it takes in more than fits, and has to take some of it back.
    "ddtree16-pressure": replace(
        _TREE,
        arguments=("--schedule-conservativeness", "0.05"),
        pool=SMALL_POOL,
        groups=(lifecycle.pressure,),
    ),
    # Two ranks over gloo: the vocabulary-parallel head and one tree for both.
    "ddtree16-tp2": replace(
        _TREE,
        arguments=(*SYNCHRONOUS, "--tp-size", "2"),
        environment={"SGLANG_CPU_OMP_THREADS_BIND": f"0|{(os.cpu_count() or 1) - 1}"},
        groups=(greedy.concurrent,),
    ),
    "ddtree16-triton": _TRITON,
    "plain-seeded": _SEEDED,
    "ddtree16-seeded": replace(_SEEDED, algorithm="DDTREE", budget=16),
    **{
        f"ddtree{budget}": replace(_TREE, budget=budget, groups=(greedy.sequential,))
        for budget in (8, 32, 64)
    },
}

# What CI runs, longest first. The rest is for benchmarks/acceptance.py.
PROOF = tuple(name for name in CONFIGURATIONS if name not in ("ddtree8", "ddtree32", "ddtree64"))
