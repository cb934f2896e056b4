"""Hands the kernel files of every visible GPU to the extension, which loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay._kernels import (
    FOLDER,
    KernelFile,
    KernelMissingError,
    KernelSet,
    check_files,
    read_kernels,
    select_kernels,
)

__all__ = ["describe", "load_kernels", "use_kernels_of_visible_devices"]

_chosen: dict[int, KernelSet] = {}


def use_kernels_of_visible_devices(folder: Path = FOLDER) -> None:
    """Chooses and checks the kernel files for each GPU that torch sees; nothing where there is
    none. Loads nothing and creates no CUDA context.

    Raises KernelMissingError for the first GPU that no kernel of `folder` fits, KernelFileError for
    a file that is not what kernels.json says.
    """
    if not torch.version.cuda or not torch.cuda.is_available():
        return
    files = read_kernels(folder)
    checked: set[str] = set()
    for index in range(torch.cuda.device_count()):
        name = f"cuda:{index} ({torch.cuda.get_device_name(index)})"
        kernels = select_kernels(name, torch.cuda.get_device_capability(index), files)
        if kernels.arch not in checked:
            check_files(kernels)
            checked.add(kernels.arch)
        torch.ops.ddtree._use_kernels(index, [_argument(file) for file in kernels.files])
        _chosen[index] = kernels


def load_kernels(device: Any) -> None:
    """Loads all kernels of a device now; on a CPU there are none. The first op would do it too, but
    not inside a graph capture, which forbids it; and PTX takes the driver seconds to compile.

    device: a torch.device, its text, or the index of a GPU. Raises RuntimeError naming the driver
    function that failed and the remedy, KernelMissingError when torch did not see the GPU at the
    import of ddtree_overlay.ops.
    """
    index = _gpu(device)
    if index is not None:
        _kernels_of(index)
        torch.ops.ddtree._load_kernels(index)


def describe(device: Any) -> str:
    """What runs on a device, such as "sm_120 cubins" or "compute_120 PTX, compiled by the driver".
    Raises KernelMissingError when torch did not see the GPU at import."""
    index = _gpu(device)
    return "C++ ops of the CPU" if index is None else _kernels_of(index).description


def _kernels_of(index: int) -> KernelSet:
    kernels = _chosen.get(index)
    if kernels is None:
        seen = ", ".join(f"cuda:{known}" for known in sorted(_chosen)) or "no GPU"
        raise KernelMissingError(
            f"no kernels were chosen for cuda:{index}: torch saw {seen} when ddtree_overlay.ops "
            "was imported; make the GPU visible before that"
        )
    return kernels


def _gpu(device: Any) -> int | None:
    """The GPU's index, None for the CPU. Raises ValueError for a device without ops."""
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise ValueError(f"device is {device}; the ddtree ops run on cpu and cuda devices")
    return int(torch.cuda.current_device() if device.index is None else device.index)


def _argument(file: KernelFile) -> str:
    """As csrc/loaded_kernels.cpp reads it: the path and the kernels in it."""
    return f"{file.path}:{','.join(file.entries)}"
