"""The appliance's own metrics, in Prometheus' text format, and each GPU's memory from NVML."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_overlay.serve.status import Phase, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class GpuMemory:
    """Of one GPU, in bytes."""

    index: int
    uuid: str
    name: str
    used: int
    total: int


def read_gpu_memory() -> tuple[GpuMemory, ...]:
    """From NVML; nothing where there is none, or it fails."""
    try:
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        try:
            return tuple(_one(pynvml, index) for index in range(int(pynvml.nvmlDeviceGetCount())))
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # a metric must not fail for whatever a driver does
        return ()


def _one(pynvml: Any, index: int) -> GpuMemory:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    uuid, name = (
        value.decode() if isinstance(value, bytes) else str(value)
        for value in (pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle))
    )
    return GpuMemory(index, uuid, name, int(memory.used), int(memory.total))


class GpuSampler:
    """The last reading, taken in a thread of its own: a driver that hangs must not hold a probe."""

    def __init__(self, read: Callable[[], tuple[GpuMemory, ...]] = read_gpu_memory) -> None:
        self._read = read
        self._lock = threading.Lock()  # of _thread: two readers must not start one thread twice
        self._thread: threading.Thread | None = None
        self._sample: tuple[GpuMemory, ...] = ()
        self._at = float("-inf")

    def sample(
        self, *, fresh: float = 2.0, wait: float = 1.0, stale: float = 60.0
    ) -> Iterable[GpuMemory]:
        """A reading at most `fresh` seconds old if one can be had in `wait` seconds, else the last
        one if it is not older than `stale`, else none."""
        if time.monotonic() - self._at > fresh:
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._take, name="nvml", daemon=True)
                    self._thread.start()
                thread = self._thread
            thread.join(wait)
        return self._sample if time.monotonic() - self._at <= stale else ()

    def _take(self) -> None:
        sample = self._read()
        self._sample, self._at = sample, time.monotonic()


def render_metrics(status: Status, gpus: Iterable[GpuMemory]) -> str:
    """GET /metrics of the probe port."""
    state, gpus = status.as_json(), tuple(gpus)
    lines: list[str] = []

    def gauge(name: str, text: str, *samples: tuple[Mapping[str, str], float | None]) -> None:
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines.extend([f"# HELP ddtree_{name} {text}", f"# TYPE ddtree_{name} gauge"])
            lines.extend(f"ddtree_{name}{_labels(labels)} {value:g}" for labels, value in known)

    gauge("up", "The appliance's supervisor works.", ({}, float(state["live"])))
    gauge(
        "phase",
        "1 for the phase that the appliance is in.",
        *(({"phase": p.value}, float(p.value == state["phase"])) for p in Phase),
    )
    gauge("phase_seconds", "Seconds in the present phase.", ({}, state["phase_seconds"]))
    gauge("uptime_seconds", "Seconds since the appliance started.", ({}, state["up_seconds"]))
    gauge("ready", "The server takes requests.", ({}, float(state["ready"])))
    gauge("progress", "0 if requests wait and nothing comes out.", ({}, float(state["progress"])))
    gauge("requests_in_flight", "Requests that the server has not ended.", ({}, state["in_flight"]))
    gauge(
        "last_output_age_seconds",
        "Seconds since any token came out.",
        ({}, state["last_output_age"]),
    )
    gauge(
        "stalled_seconds",
        "Seconds without output while requests wait.",
        ({}, state["stalled_seconds"] or 0.0),
    )
    for name, text, values in (
        ("used", "Memory in use on a GPU, by anybody.", [gpu.used for gpu in gpus]),
        ("total", "Memory of a GPU.", [gpu.total for gpu in gpus]),
    ):
        # Whole numbers: %g would round bytes to six digits.
        samples = [
            f"ddtree_gpu_memory_{name}_bytes"
            f"{_labels({'gpu': str(gpu.index), 'uuid': gpu.uuid, 'name': gpu.name})} {value}"
            for gpu, value in zip(gpus, values, strict=True)
        ]
        if samples:
            metric = f"ddtree_gpu_memory_{name}_bytes"
            lines.extend([f"# HELP {metric} {text}", f"# TYPE {metric} gauge", *samples])
    gauge("build_info", "What was built, as labels.", (status.build, 1.0))
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + pairs + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
