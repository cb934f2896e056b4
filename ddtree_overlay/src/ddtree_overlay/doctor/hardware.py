"""The GPUs and the driver, as NVML (libnvidia-ml.so.1, which the toolkit mounts) has them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddtree_overlay.doctor.model import UNKNOWN_PEER, Gpu, Hardware, Link
from ddtree_overlay.doctor.pci import numa_node
from ddtree_overlay.doctor.visible import Selection, select
from ddtree_overlay.serve.launch import HOST_ROOT_VARIABLE

# A GPU in error can hold an NVML call for minutes; asking eight healthy ones takes well under 1 s.
SECONDS = 30.0
_ANCESTORS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_READ, _P2P_WRITE, _P2P_NVLINK = 0, 1, 2
_P2P_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "PCIe topology not supported",
    4: "disabled by a driver registry key",
    5: "not supported",
}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_LOST = 15  # NVML_ERROR_GPU_IS_LOST


def read_hardware(environment: Mapping[str, str], *, seconds: float = SECONDS) -> Hardware:
    """What NVML says, within `seconds`. Never raises: a failure is Hardware.error.

    CUDA_VISIBLE_DEVICES of `environment` selects and orders the GPUs as CUDA would.
    """
    box: list[Hardware] = []
    root = Path(environment.get(HOST_ROOT_VARIABLE) or "/")

    def work() -> None:
        try:
            box.append(_read(environment, root))
        except Exception as error:  # a driver that answers nonsense is a finding too
            why = f"NVML could not be read: {type(error).__name__}: {error}".splitlines()[0]
            box.append(Hardware(error=why, error_kind="other"))

    thread = threading.Thread(target=work, name="nvml", daemon=True)
    thread.start()
    thread.join(seconds)
    if box:
        return box[0]
    return Hardware(
        error=f"NVML did not answer within {seconds:.0f} s: a GPU is in error", error_kind="hung"
    )


def _read(environment: Mapping[str, str], root: Path) -> Hardware:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        return Hardware(error=f"nvidia-ml-py is not installed: {error}", error_kind="other")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _failure(nvml, error, environment, root)
    try:
        return _ask(nvml, environment, root)
    except nvml.NVMLError as error:
        return _failure(nvml, error, environment, root)
    finally:
        _optional(nvml.nvmlShutdown)


def _ask(nvml: Any, environment: Mapping[str, str], root: Path) -> Hardware:
    cuda = _optional(nvml.nvmlSystemGetCudaDriverVersion_v2)
    count = nvml.nvmlDeviceGetCount()
    handles, gpus, lost = {}, [], []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _gpu(nvml, index, handle, root)
        except nvml.NVMLError as error:
            if error.value not in {_LOST, nvml.NVML_ERROR_UNKNOWN} or count == 1:
                raise
            lost.append(f"GPU {index}: {error}")
            continue
        handles[gpu.uuid] = handle
        gpus.append(gpu)
    if lost and not gpus:
        raise nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)
    selection: Selection = select(gpus, environment)
    return Hardware(
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        cuda_driver=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        gpus=tuple(replace(gpu, index=place) for place, gpu in enumerate(selection.gpus)),
        links=_links(nvml, [handles[gpu.uuid] for gpu in selection.gpus]),
        present=count,
        lost=tuple(lost),
        unmatched=selection.unmatched,
    )


def _gpu(nvml: Any, index: int, handle: Any, root: Path) -> Gpu:
    mig = _optional(nvml.nvmlDeviceGetMigMode, handle)
    slice_ = _slice(nvml, handle) if mig and mig[0] else None
    memory = nvml.nvmlDeviceGetMemoryInfo(handle if slice_ is None else slice_)
    pci = _pci_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    mode = _optional(nvml.nvmlDeviceGetComputeMode, handle)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        pci_bus_id=pci,
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        memory_total=int(memory.total),
        memory_used=int(memory.total) - int(memory.free),
        mig_enabled=bool(mig and mig[0]),
        numa_node=numa_node(root, pci),
        processes=_processes(nvml, handle),
        compute_mode=_COMPUTE_MODES.get(mode or 0, "default"),
    )


def _slice(nvml: Any, handle: Any) -> Any:
    """The MIG device that CUDA would use, the first of this container; None without one. The whole
    GPU's memory is then not for a container to see."""
    for index in range(_optional(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        found = _optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if found is not None:
            return found
    return None


def _processes(nvml: Any, handle: Any) -> tuple[tuple[int, int], ...]:
    found: dict[int, int] = {}
    for function in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        for process in _optional(function, handle) or ():
            found[int(process.pid)] = int(process.usedGpuMemory or 0)
    return tuple(sorted(found.items(), key=lambda pair: -pair[1]))


def _links(nvml: Any, handles: Sequence[Any]) -> dict[tuple[int, int], Link]:
    return {
        (i, j): _link(nvml, handles[i], handles[j])
        for i in range(len(handles))
        for j in range(i + 1, len(handles))
    }


def _link(nvml: Any, one: Any, other: Any) -> Link:
    level = _optional(nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
    status = [
        _optional(nvml.nvmlDeviceGetP2PStatus, a, b, index)
        for a, b in ((one, other), (other, one))
        for index in (_P2P_READ, _P2P_WRITE)
    ]
    nvlink = _optional(nvml.nvmlDeviceGetP2PStatus, one, other, _P2P_NVLINK) == 0
    worst = next((value for value in status if value != 0), 0)
    return Link(
        ancestor=_ANCESTORS.get(-1 if level is None else level, "unknown"),
        nvlink=nvlink,
        peer_to_peer=UNKNOWN_PEER if worst is None else _P2P_STATUS.get(worst, UNKNOWN_PEER),
    )


def _failure(nvml: Any, error: Any, environment: Mapping[str, str], root: Path) -> Hardware:
    value = error.value
    if value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return Hardware(error=_no_library(environment, root), error_kind="library")
    if value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        what = "the NVIDIA driver's kernel module is not loaded or no GPU device is given"
        return Hardware(error=what, error_kind="driver")
    if value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        what = "driver library and kernel module have different versions (driver/library mismatch)"
        return Hardware(error=what, error_kind="mismatch")
    if value == nvml.NVML_ERROR_NO_PERMISSION:
        what = "no permission to open the GPU devices (/dev/nvidiactl, /dev/nvidia*)"
        return Hardware(error=what, error_kind="permission")
    if value == nvml.NVML_ERROR_UNKNOWN:
        what = "NVML says unknown error: the container has lost access to its GPU devices"
        return Hardware(error=what, error_kind="unknown")
    return Hardware(error=f"NVML failed: {error}", error_kind="other")


def _no_library(environment: Mapping[str, str], root: Path) -> str:
    visible = environment.get("NVIDIA_VISIBLE_DEVICES")
    if any((root / "dev").glob("nvidia[0-9]*")):
        return "GPU devices are here but no libnvidia-ml.so.1 (driver capability utility missing)"
    if (root / "proc/driver/nvidia/version").exists():
        return "the host has an NVIDIA driver, but its library is not mounted into this container"
    if visible in {"void", "none", ""}:
        return f"no driver library: NVIDIA_VISIBLE_DEVICES is {visible!r}, which asks for no GPU"
    return "no driver library (libnvidia-ml.so.1), and no sign of an NVIDIA driver on the host"


def _optional(function: Any, *arguments: Any) -> Any:
    """None where driver or GPU does not support the question. pynvml says that in two ways: by an
    NVMLError, and for a function that an older driver lacks by an exception that is none."""
    try:
        return function(*arguments)
    except Exception:
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _pci_id(bus_id: str) -> str:
    """NVML writes an eight-digit domain in capitals, sysfs four digits in lower case."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
