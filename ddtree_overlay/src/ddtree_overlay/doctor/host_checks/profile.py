"""The profile in use against the host for which its numbers were computed."""

from __future__ import annotations

from collections.abc import Iterator

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject

# What a driver keeps for itself of a GPU's memory is not missing.
TOLERANCE = 0.95

OTHER_HOST = Code(
    "PRF001",
    Severity.WARNING,
    "The profile is made for other GPUs than these: it may serve, and its numbers do not fit.",
    "name the profile that is made for this host (ddtree profiles), or name none: then one is "
    "chosen",
)


def check_host(subject: Subject) -> Iterator[Finding]:
    """Number, capability and memory of the GPUs. What cannot work at all, other checks refuse."""
    wanted, gpus = subject.requires, subject.hardware.gpus
    lacking = []
    if len(gpus) < wanted.gpus:
        lacking.append(f"{wanted.gpus} GPUs, and {len(gpus)} can be used")
    if wanted.capability is not None:
        others = sorted({gpu.capability for gpu in subject.gpus} - {wanted.capability})
        if others:
            lacking.append(f"{_sm(wanted.capability)}, and GPUs are {', '.join(map(_sm, others))}")
    least = min((gpu.memory_total for gpu in subject.gpus), default=None)
    if least is not None and least < wanted.memory_gib * TOLERANCE * 2**30:
        lacking.append(f"{wanted.memory_gib:g} GiB a GPU, and one has {least / 2**30:.1f} GiB")
    if lacking:
        yield OTHER_HOST.found(f"profile {subject.profile} is made for {'; for '.join(lacking)}")


def _sm(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}"


CHECKS = (Check("profile", "profile made for these GPUs", (OTHER_HOST,), check_host, "gpu"),)
