"""On what the self-test runs, and how the receipt names it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddtree_overlay.serve.errors import SelftestNotRunError

HOST_ROOT_VARIABLE = "DDTREE_HOST_ROOT"
# Not nvidiactl and nvidia-uvm, which a host may show without giving a GPU.
GPU_NODES = ("nvidia[0-9]*", "dxg")


def choose_device(asked: str, environment: Mapping[str, str]) -> str:
    """ "cpu" or "cuda". Raises SelftestNotRunError where "cuda" is asked for and there is no GPU.

    auto is CUDA where a device node is visible and CUDA_VISIBLE_DEVICES does not hide it.
    """
    if asked == "cpu":
        return "cpu"
    hidden = environment.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}
    nodes = gpu_nodes(environment)
    if nodes and not hidden:
        return "cuda"
    if asked == "cuda":
        raise SelftestNotRunError(
            "--device cuda: " + ("CUDA_VISIBLE_DEVICES hides the GPUs" if nodes else "no GPU"),
            "give the container a GPU (docker run --gpus all), or use --device cpu",
        )
    return "cpu"


def gpu_nodes(environment: Mapping[str, str]) -> list[str]:
    """Names of the GPUs' device nodes that this container has."""
    dev = _root(environment) / "dev"
    return sorted({node.name for pattern in GPU_NODES for node in dev.glob(pattern)})


def describe(device: str, tp: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """The receipt's "device": processor, and for CUDA the driver and the GPUs."""
    found: dict[str, Any] = {
        "kind": device,
        "tp": tp,
        "cpu": _cpu(environment),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
    }
    if device == "cuda":
        from ddtree_overlay.doctor.hardware import read_hardware

        hardware = read_hardware(environment)
        found["driver"] = hardware.driver
        found["gpus"] = [
            {
                "name": gpu.name,
                "uuid": gpu.uuid,
                "capability": "{}.{}".format(*gpu.capability),
                "memory_bytes": gpu.memory_total,
            }
            for gpu in hardware.gpus
        ]
        if hardware.error:
            found["nvml_error"] = hardware.error
    return found


def name_of(device: Mapping[str, Any]) -> str:
    """The device in a few words."""
    gpus = device.get("gpus")
    if gpus:
        return f"{len(gpus)}x {gpus[0]['name']}, driver {device['driver']}, tp {device['tp']}"
    if device["kind"] == "cuda":
        return f"CUDA, tp {device['tp']}"
    return f"CPU: {device['cpu']}, {device['cores']} cores"


def _cpu(environment: Mapping[str, str]) -> str:
    try:
        text = (_root(environment) / "proc" / "cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _root(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(HOST_ROOT_VARIABLE) or "/")
