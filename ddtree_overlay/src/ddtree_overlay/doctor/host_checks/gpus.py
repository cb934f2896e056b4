"""Are the GPUs all there, alike, usable by this image's kernels, and free?"""

from __future__ import annotations

from collections.abc import Iterator

from ddtree_overlay import _kernels
from ddtree_overlay.doctor import pci
from ddtree_overlay.doctor.host_checks.memory import weights_bytes
from ddtree_overlay.doctor.model import Check, Code, Finding, Gpu, Severity, Subject
from ddtree_overlay.doctor.visible import TOOLKIT_VARIABLE

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING
TOO_FEW = Code(
    "GPU001",
    _ERROR,
    "Fewer GPUs can be used than the configuration needs.",
    "give the container all GPUs (--gpus all) or lower tp; a GPU that is missing on the host as "
    "well (nvidia-smi) fell off the bus: see Xid lines in dmesg, reseat or power-cycle",
)
LOST = Code(
    "GPU002",
    _ERROR,
    "The driver lists a GPU that it cannot open.",
    "look for Xid lines in the host's dmesg; reset the GPU (nvidia-smi --gpu-reset) or reboot; "
    "until then hide it with CUDA_VISIBLE_DEVICES and lower tp",
)
UNMATCHED = Code(
    "GPU003",
    _ERROR,
    "The variable that selects GPUs names one that this container does not have.",
    "correct CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES, or unset it (nvidia-smi -L lists "
    "the UUIDs)",
)
MIXED = Code(
    "GPU004",
    _WARNING,
    "The GPUs differ: all run at the pace, and with the memory, of the least.",
    "select GPUs of one model with CUDA_VISIBLE_DEVICES and set tp to their number",
)
NO_KERNEL = Code(
    "GPU005",
    _ERROR,
    "None of the image's kernels runs on the GPU.",
    "use an image built for this GPU (cubin.sass in images/<variant>.toml) or hide the GPU with "
    "CUDA_VISIBLE_DEVICES",
)
MIG = Code(
    "GPU006",
    _ERROR,
    "MIG is enabled: its slices cannot work together, and a slice has less memory.",
    "disable it on the host (nvidia-smi -i N -mig 0, then reset the GPU)",
)
OCCUPIED = Code(
    "GPU007",
    _ERROR,
    "Other processes hold GPU memory that the server will claim.",
    "end those processes on the host, or lower memory_fraction",
)
COMPUTE_MODE = Code(
    "GPU008",
    _ERROR,
    "The GPU's compute mode refuses CUDA processes.",
    "set the default mode on the host: nvidia-smi -i N -c DEFAULT",
)
UNBALANCED = Code(
    "GPU009",
    _ERROR,
    "Free memory differs so much between GPUs that SGLang refuses to start.",
    "end the processes that hold the memory on the host, or select other GPUs with "
    "CUDA_VISIBLE_DEVICES",
)
OFF_THE_BUS = Code(
    "GPU010",
    _WARNING,
    "All GPUs were asked for, and the driver does not list one that is on the PCI bus.",
    "on the host see nvidia-smi and Xid lines in dmesg: reset or reseat the GPU, power-cycle the "
    "host; a GPU bound to vfio-pci belongs to a virtual machine",
)
# SGLang's own bound (srt/distributed/bootstrap.py): the least against the most.
BALANCE = 0.9
_BALANCE_SWITCH = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
# The CUDA context and library workspaces of each rank, and a little for fluctuation.
CONTEXT_BYTES = 1 << 30


def label(gpu: Gpu) -> str:
    """How messages name a GPU."""
    return f"GPU {gpu.index} ({gpu.pci_bus_id})"


def check_count(subject: Subject) -> Iterator[Finding]:
    """All GPUs that are needed can be opened; names those on the bus that NVML does not list."""
    hardware = subject.hardware
    if hardware.error is not None:
        return
    enough = len(subject.gpus) >= subject.gpus_needed
    if hardware.unmatched:
        # CUDA itself does not read the toolkit's variable.
        harmless = enough and all(name.startswith(TOOLKIT_VARIABLE) for name in hardware.unmatched)
        yield UNMATCHED.found(
            f"no such GPU here: {', '.join(hardware.unmatched)}",
            severity=_WARNING if harmless else None,
        )
    if hardware.lost:
        yield LOST.found("; ".join(hardware.lost), severity=_WARNING if enough else None)
        return
    on_bus = pci.nvidia_gpus(subject.root)
    missing = sorted(set(on_bus) - {gpu.pci_bus_id for gpu in hardware.gpus})
    if not enough and not hardware.unmatched:
        where = f"; on the bus but not usable here: {', '.join(missing)}" if missing else ""
        hidden = hardware.present - len(hardware.gpus)
        where += f"; CUDA_VISIBLE_DEVICES hides {hidden}" if hidden > 0 else ""
        seen = ", ".join(gpu.pci_bus_id for gpu in hardware.gpus) or "none"
        first = f" from --base-gpu-id {subject.first_gpu} on" if subject.first_gpu else ""
        yield TOO_FEW.found(
            f"{len(subject.gpus)} of {subject.gpus_needed} GPUs{first} ({seen}){where}"
        )
    elif subject.environment.get(TOOLKIT_VARIABLE) == "all" and hardware.present < len(on_bus):
        yield OFF_THE_BUS.found(
            f"the driver lists {hardware.present} GPUs, the bus has {len(on_bus)}; not among "
            f"those in use: {', '.join(missing)}"
        )


def check_alike(subject: Subject) -> Iterator[Finding]:
    """Of the GPUs that will be used, model, capability and memory (to 1 %) are the same."""
    used = subject.gpus
    kinds: dict[tuple[str, tuple[int, int]], list[Gpu]] = {}
    for gpu in used:
        kinds.setdefault((gpu.name, gpu.capability), []).append(gpu)
    if len(kinds) > 1:
        parts = [
            f"{name} (GPU {', '.join(str(gpu.index) for gpu in group)})"
            for (name, _), group in kinds.items()
        ]
        yield MIXED.found(f"GPUs of {len(kinds)} kinds: {'; '.join(parts)}")
        return
    sizes = [gpu.memory_total for gpu in used]
    if sizes and max(sizes) > min(sizes) * 1.01:
        least = min(used, key=lambda gpu: gpu.memory_total)
        yield MIXED.found(
            f"memory differs: {label(least)} has {gib(min(sizes))}, others up to {gib(max(sizes))}"
        )


def check_kernels(subject: Subject) -> Iterator[Finding]:
    """Capabilities against the overlay's kernel files; a wheel without files is H3's finding."""
    try:
        carried = sorted({file.arch for file in _kernels.read_kernels()})
    except _kernels.KernelFileError:
        return
    yield from kernels_for(subject.gpus, carried)


def kernels_for(gpus: tuple[Gpu, ...], carried: list[str]) -> Iterator[Finding]:
    """A finding for each capability that none of the carried architectures fits."""
    for capability in sorted({gpu.capability for gpu in gpus}):
        if _kernels.choose_architecture(capability, carried) is None:
            which = [gpu for gpu in gpus if gpu.capability == capability]
            yield NO_KERNEL.found(
                f"{which[0].name} (GPU {', '.join(str(gpu.index) for gpu in which)}) is sm_"
                f"{capability[0]}{capability[1]}; the image carries {', '.join(carried) or 'none'}"
            )


def check_mig(subject: Subject) -> Iterator[Finding]:
    """An error for several GPUs; a single one can serve a small model from a slice."""
    on = [gpu for gpu in subject.gpus if gpu.mig_enabled]
    if on:
        yield MIG.found(
            f"MIG is enabled on {', '.join(map(label, on))}",
            severity=None if subject.gpus_needed > 1 else _WARNING,
        )


def check_memory(subject: Subject) -> Iterator[Finding]:
    """Free memory against memory_fraction of the whole, plus the CUDA context; one line a GPU."""
    used = subject.gpus
    free = {gpu: gpu.memory_total - gpu.memory_used for gpu in used}
    least = min(used, key=lambda gpu: free[gpu], default=None)
    if least is None:
        return
    tolerated = subject.environment.get(_BALANCE_SWITCH, "").lower() in {"0", "false", "no", "off"}
    unbalanced = free[least] < BALANCE * max(free.values())
    short = list(_occupied(subject, grave=unbalanced and not tolerated))
    yield from short
    if unbalanced and not short:
        yield UNBALANCED.found(
            f"{label(least)} has {gib(free[least])} free, others up to "
            f"{gib(max(free.values()))}; held by {_holders(least)}",
            severity=_WARNING if tolerated else None,
        )


def _occupied(subject: Subject, *, grave: bool) -> Iterator[Finding]:
    """SGLang takes its fraction of what is free at its start, so that less than all of it means a
    smaller KV cache, and no start only where the weights do not fit (or unknown ones hardly can).
    """
    fraction = subject.memory_fraction
    weights = weights_bytes(subject.model) / (subject.tp * subject.pp)
    weights += weights_bytes(subject.draft_model) / subject.tp
    if fraction is None:
        return
    for gpu in subject.gpus:
        free = gpu.memory_total - gpu.memory_used
        needed = min(
            int(gpu.memory_total * fraction) + CONTEXT_BYTES,
            int(gpu.memory_total * 0.98),
        )
        if free < needed:
            fits = free * fraction > weights * 1.05 if weights else free > gpu.memory_total / 2
            yield OCCUPIED.found(
                f"{label(gpu)}: {gib(free)} free, {gib(needed)} wanted; held by {_holders(gpu)}",
                severity=_WARNING if fits and not grave else None,
            )


def _holders(gpu: Gpu) -> str:
    held = ", ".join(f"pid {pid} {gib(size)}" for pid, size in gpu.processes[:4])
    return held or "processes that are not visible from this container"


def check_mode(subject: Subject) -> Iterator[Finding]:
    """Prohibited is an error; exclusive modes allow the server but not a check beside it."""
    for gpu in subject.gpus:
        if gpu.compute_mode != "default":
            yield COMPUTE_MODE.found(
                f"{label(gpu)} is in compute mode {gpu.compute_mode}",
                severity=None if gpu.compute_mode == "prohibited" else _WARNING,
            )


def gib(size: int) -> str:
    """Bytes as GiB."""
    return f"{size / 2**30:.1f} GiB"


CHECKS = (
    Check(
        "gpu-count",
        "GPUs that are needed",
        (TOO_FEW, LOST, UNMATCHED, OFF_THE_BUS),
        check_count,
        "cuda",
    ),
    Check("gpu-alike", "GPUs of one kind", (MIXED,), check_alike, "gpu"),
    Check("gpu-kernels", "kernels for the GPUs", (NO_KERNEL,), check_kernels, "gpu"),
    Check("gpu-mig", "MIG is off", (MIG,), check_mig, "gpu"),
    Check("gpu-memory", "GPU memory is free", (OCCUPIED, UNBALANCED), check_memory, "gpu"),
    Check("gpu-mode", "compute mode", (COMPUTE_MODE,), check_mode, "gpu"),
)
