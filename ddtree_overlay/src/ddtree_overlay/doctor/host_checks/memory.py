"""Host memory: what the server's processes need, and the page cache for the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.procfs import UNLIMITED, cgroup_memory, memory_available, mib

# Resident size of a rank with torch, CUDA and NCCL loaded, and of the processes beside them.
PER_RANK = 3 << 30
BESIDE = 4 << 30
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")

TOO_LITTLE = Code(
    "MEM001",
    Severity.ERROR,
    "Too little memory: the kernel would kill the server while it loads.",
    "raise --memory (Kubernetes: the memory limit), free memory on the host, or lower tp",
)
SLOW_LOAD = Code(
    "MEM002",
    Severity.WARNING,
    "The weights do not fit into memory beside the processes: ranks read them from disk anew.",
    "raise --memory (Kubernetes: the memory limit) to the size of the weights and 30 GiB",
)


def check_memory(subject: Subject) -> Iterator[Finding]:
    """The lesser of what the host has and what the cgroups allow."""
    host = memory_available(subject.root)
    usable = min(UNLIMITED if host is None else float(host), cgroup_memory(subject.root))
    weights = weights_bytes(subject.model) + weights_bytes(subject.draft_model)
    on_cpu = subject.device != "cuda"
    ranks = subject.tp if on_cpu else subject.gpus_needed
    # On a CPU the weights themselves are there; a rank without CUDA is a third of the size.
    processes = ranks * (1 << 30) + weights if on_cpu else BESIDE + ranks * PER_RANK
    if usable < processes:
        # PER_RANK is on the safe side; what is above half of it may serve.
        may = not on_cpu and usable >= processes / 2
        yield TOO_LITTLE.found(
            f"{mib(usable)} of memory, {mib(processes)} are {'advised' if may else 'needed'}",
            severity=Severity.WARNING if may else None,
        )
    elif not on_cpu and usable < processes + weights:
        yield SLOW_LOAD.found(f"{mib(usable)} of memory, weights of {mib(weights)}")


def weights_bytes(model: str | None) -> int:
    """Size of a local model's weight files; 0 for none and for a Hub name."""
    folder = Path(model) if model else None
    if folder is None or not folder.is_dir():
        return 0
    total = 0
    for pattern in WEIGHTS:
        for path in folder.glob(pattern):
            try:
                total += path.stat().st_size
            except OSError:
                continue
    return total


CHECKS = (Check("memory", "host memory", (TOO_LITTLE, SLOW_LOAD), check_memory),)
