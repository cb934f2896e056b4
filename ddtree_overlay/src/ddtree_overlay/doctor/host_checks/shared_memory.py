"""Shared memory (/dev/shm): NCCL's transport without peer-to-peer, and SGLang's message queues."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.procfs import mib

# NCCL maps 9.2 MiB a connection and channel (the "size 9637888" of its error text); rings and
# trees over PCIe make up to three connections on four channels a GPU, 110 MiB. SGLang adds 24 MiB
# of message queue. More channels, several replicas and leftovers of a killed run want a multiple.
LEAST_PER_GPU = 128 << 20
COMFORTABLE_PER_GPU = 1 << 30

TOO_SMALL = Code(
    "SHM001",
    Severity.ERROR,
    "Shared memory is too small for the GPUs to exchange data through it.",
    "start with --shm-size 16g (compose: shm_size; Kubernetes: an emptyDir of medium Memory at "
    "/dev/shm)",
)
SCARCE = Code(
    "SHM002",
    Severity.WARNING,
    "Shared memory suffices for one server with few channels and leaves little room.",
    TOO_SMALL.remedy,
)
MISSING = Code(
    "SHM003",
    Severity.ERROR,
    "The folder of shared memory (/dev/shm) cannot be used.",
    "do not mount over /dev/shm; start with --shm-size 16g",
)


def check_shared_memory(subject: Subject) -> Iterator[Finding]:
    """Free bytes (not the size: files of killed runs count) for the ranks of this host."""
    folder = subject.root / "dev/shm"
    try:
        found = os.statvfs(folder)
    except OSError as error:
        yield MISSING.found(f"shared memory (/dev/shm): {error.strerror}")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield MISSING.found(f"shared memory (/dev/shm) cannot be written by uid {os.geteuid()}")
        return
    yield from judge(
        found.f_bavail * found.f_frsize,
        subject.gpus_needed if subject.device == "cuda" else subject.tp,
    )


def judge(free: int, ranks: int) -> Iterator[Finding]:
    """One rank exchanges nothing, so any size will do."""
    if ranks < 2:
        return
    least, comfortable = ranks * LEAST_PER_GPU, ranks * COMFORTABLE_PER_GPU
    if free < least:
        yield TOO_SMALL.found(
            f"{mib(free)} of shared memory are free, {ranks} ranks need {mib(least)}"
        )
    elif free < comfortable:
        yield SCARCE.found(
            f"{mib(free)} of shared memory are free, {ranks} ranks do well with {mib(comfortable)}"
        )


CHECKS = (
    Check("shared-memory", "shared memory", (TOO_SMALL, SCARCE, MISSING), check_shared_memory),
)
