"""Whether the weights of target and drafter fit the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from ddtree_overlay.doctor.model import Check, Finding, Severity, Subject
from ddtree_overlay.doctor.model_checks import codes
from ddtree_overlay.doctor.model_checks.source import Source, each
from ddtree_overlay.doctor.model_checks.weights import SECONDS, read_weights

_DEFAULT_FRACTION = 0.9
"""SGLang computes one of about this where none is given."""
_COMFORT = 0.9
"""Of the share of memory; above it a request's KV cache hardly fits beside the weights."""


def check_memory(subject: Subject) -> Iterable[Finding]:
    """The weights of target and drafter against the share of every GPU that they may take."""
    gpus = subject.gpus or subject.hardware.gpus
    sizes: dict[str, int] = {}

    def measure(source: Source) -> Iterable[Finding]:
        sizes[source.role] = read_weights(source).data_bytes
        return ()

    if not subject.dummy_weights:
        list(each(subject, measure))
    if not gpus or not sum(sizes.values()):
        return
    fraction = subject.memory_fraction or _DEFAULT_FRACTION
    # Ranks split the layers evenly but for norms; a drafter is split over tp and not over pp.
    per_gpu = sizes.get("model", 0) / (subject.tp * subject.pp)
    per_gpu += sizes.get("draft model", 0) / subject.tp
    smallest = min(gpus, key=lambda gpu: gpu.memory_total)
    share = smallest.memory_total * fraction
    table = ", ".join(f"{role} {_gib(size)}" for role, size in sizes.items())
    line = (
        f"{table} over {subject.tp * subject.pp} GPUs is {_gib(per_gpu)} each; {fraction:g} of "
        f"GPU {smallest.index}'s {_gib(smallest.memory_total)} is {_gib(share)}"
    )
    if per_gpu > share:
        softened = Severity.WARNING if subject.shrinks_weights else None
        yield codes.NO_ROOM.found(line, severity=softened)
    elif per_gpu > _COMFORT * share:
        yield codes.LITTLE_ROOM.found(line)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


CHECKS = (
    Check(
        "weights-memory",
        "The weights fit the GPUs' memory",
        (codes.NO_ROOM, codes.LITTLE_ROOM),
        check_memory,
        needs="gpu",
        seconds=SECONDS,
    ),
)
