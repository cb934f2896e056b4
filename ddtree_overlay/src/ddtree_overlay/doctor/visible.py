"""Which GPUs a CUDA process will see: CUDA_VISIBLE_DEVICES, as the CUDA driver reads it.

NVIDIA_VISIBLE_DEVICES is the container toolkit's: its indices number the host's GPUs and have been
applied before this runs, so only UUIDs in it can still be compared. CUDA C++ Programming Guide,
"CUDA environment variables".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtree_overlay.doctor.model import Gpu

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
TOOLKIT_VARIABLE = "NVIDIA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Selection:
    """The visible GPUs in CUDA's order, and entries that name no GPU of this container."""

    gpus: tuple[Gpu, ...]
    unmatched: tuple[str, ...]


def select(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> Selection:
    """Apply the variables. CUDA ignores everything from the first invalid entry on; so do we."""
    missing = [
        f"{TOOLKIT_VARIABLE}={entry}"
        for entry in _entries(environment.get(TOOLKIT_VARIABLE, ""))
        if entry.startswith("GPU-") and not _by_uuid(gpus, entry)
    ]
    value = environment.get(CUDA_VARIABLE)
    if value is None:
        return Selection(tuple(gpus), tuple(missing))
    chosen: list[Gpu] = []
    for entry in _entries(value):
        gpu = _named(gpus, entry)
        if gpu is None or gpu in chosen:
            if entry != "-1":
                missing.append(f"{CUDA_VARIABLE}={entry}")
            break
        chosen.append(gpu)
    return Selection(tuple(chosen), tuple(missing))


def _entries(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _named(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if entry.startswith("MIG-"):
        # Which slice is CUDA's to tell; it uses one at a time.
        return next((gpu for gpu in gpus if gpu.mig_enabled), None)
    return _by_uuid(gpus, entry) if entry.startswith("GPU-") else None


def _by_uuid(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    """A UUID may be abbreviated as long as it stays unique."""
    found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None
