"""CPUs for the ranks, and NUMA nodes near the GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.procfs import cgroup_cpus, number_set, status

# Each rank's scheduler keeps a core busy; tokenizer, detokenizer and HTTP server share two more.
BESIDE = 2

TOO_FEW = Code(
    "CPU001",
    Severity.WARNING,
    "Fewer CPUs than busy processes: GPUs wait for their schedulers.",
    "raise or remove --cpus, --cpuset-cpus (Kubernetes: the CPU limit), or lower tp",
)
FAR = Code(
    "CPU002",
    Severity.WARNING,
    "The container may not use the CPUs or memory of a NUMA node that GPUs hang on.",
    "remove --cpuset-cpus and --cpuset-mems, or select the GPUs of the allowed node",
)


def check_count(subject: Subject) -> Iterator[Finding]:
    """The least of the affinity mask and the cgroups' quota."""
    listed = status(subject.root, "Cpus_allowed_list")
    affinity = len(number_set(listed)) if listed else os.cpu_count() or 1
    quota = cgroup_cpus(subject.root)
    usable = min(float(affinity), quota)
    ranks = subject.gpus_needed if subject.device == "cuda" else 0
    if ranks and usable < ranks + BESIDE:
        why = "CPU quota" if quota < affinity else "CPUs allowed"
        yield TOO_FEW.found(
            f"{usable:g} {why}, {ranks + BESIDE} are wanted for tp on {ranks} GPU(s)"
        )


def check_nodes(subject: Subject) -> Iterator[Finding]:
    """Nodes of the GPUs against the CPUs and the memory nodes that we may use."""
    wanted = {gpu.numa_node for gpu in subject.hardware.gpus if gpu.numa_node is not None}
    memory = status(subject.root, "Mems_allowed_list")
    cpus = status(subject.root, "Cpus_allowed_list")
    barred = set()
    if memory:
        barred |= wanted - number_set(memory)
    if cpus:
        allowed = number_set(cpus)
        for node in wanted:
            path = subject.root / f"sys/devices/system/node/node{node}/cpulist"
            try:
                if not number_set(path.read_text()) & allowed:
                    barred.add(node)
            except (OSError, ValueError):
                continue
    if barred:
        gpus = [str(g.index) for g in subject.hardware.gpus if g.numa_node in barred]
        nodes = ", ".join(map(str, sorted(barred)))
        yield FAR.found(f"NUMA node {nodes} of GPU {', '.join(gpus)} is not allowed")


CHECKS = (
    Check("cpus", "CPUs", (TOO_FEW,), check_count, "cuda"),
    Check("numa", "NUMA nodes of the GPUs", (FAR,), check_nodes, "gpu"),
)
