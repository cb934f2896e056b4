"""Resource limits of the container: open files, locked memory, stack, processes."""

from __future__ import annotations

from collections.abc import Iterator

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.procfs import cgroup_tasks, limit, mib

_WARNING = Severity.WARNING
# SGLang raises its soft limits itself, as far as the hard ones go (srt/utils set_ulimit).
FILES = 65535
STACK = 8 << 20
# A rank starts some hundred threads: CUDA, NCCL, torch's pools, the compile workers.
TASKS_PER_RANK = 512
TASKS_BESIDE = 1024
# Without pools of compile workers a rank still has about a hundred: below that it cannot start.
LEAST_PER_RANK = 128

OPEN_FILES = Code(
    "LIM001",
    _WARNING,
    "Few files may be open: each connection, weight file and compiled kernel is one.",
    "start with --ulimit nofile=65535:65535 (compose: ulimits)",
)
LOCKED = Code(
    "LIM002",
    _WARNING,
    "Locked memory is limited: RDMA between hosts cannot register its buffers.",
    "start with --ulimit memlock=-1 (compose: ulimits)",
)
SMALL_STACK = Code(
    "LIM003",
    _WARNING,
    "The stack limit is small: compilers of kernels recurse deeply and crash.",
    "start with --ulimit stack=67108864 (compose: ulimits)",
)
FEW_TASKS = Code(
    "LIM004",
    Severity.ERROR,
    "Too few processes and threads are allowed for the server's ranks.",
    "raise --pids-limit (or --ulimit nproc); Kubernetes: the kubelet's podPidsLimit",
)


def check_limits(subject: Subject) -> Iterator[Finding]:
    """Limits of this process, which the server inherits, and the cgroup's pids.max."""
    files = limit(subject.root, "Max open files")
    if files and files[1] < FILES:
        yield OPEN_FILES.found(f"at most {files[1]:.0f} open files, {FILES} are advised")
    locked = limit(subject.root, "Max locked memory")
    if subject.nnodes > 1 and locked and locked[1] < float("inf"):
        yield LOCKED.found(f"at most {mib(locked[1])} of locked memory, unlimited is advised")
    stack = limit(subject.root, "Max stack size")
    if stack and stack[1] < STACK:
        yield SMALL_STACK.found(f"stack of at most {mib(stack[1])}, {mib(STACK)} are advised")
    ranks = subject.gpus_needed if subject.device == "cuda" else subject.tp
    needed = TASKS_BESIDE + TASKS_PER_RANK * ranks
    processes = limit(subject.root, "Max processes")
    # The soft one: nobody raises it for the server.
    allowed = min(processes[0] if processes else float("inf"), cgroup_tasks(subject.root))
    if allowed < needed:
        scarce = allowed >= LEAST_PER_RANK * (ranks + 1)
        yield FEW_TASKS.found(
            f"at most {allowed:.0f} processes and threads, {needed} are advised",
            severity=Severity.WARNING if scarce else None,
        )


CHECKS = (
    Check(
        "limits",
        "resource limits",
        (OPEN_FILES, LOCKED, SMALL_STACK, FEW_TASKS),
        check_limits,
    ),
)
