"""A host below a folder: /proc, /sys and /dev as eight GPUs over PCIe give them, and its NVML."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

MODEL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
BUILD = "0123456789abcdef"
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             unlimited            unlimited            processes
Max open files            1024                 1048576              files
Max locked memory         unlimited            unlimited            bytes
"""


@dataclass(frozen=True)
class FakeGpu:
    """One GPU of the stub; `result` is what opening it returns (15: lost)."""

    number: int
    name: str = MODEL
    capability: int = 120
    total_mib: int = 97887
    used_mib: int = 4
    mig: int = -1
    mode: int = 0
    result: int = 0
    acs: int | None = 0  # the bridge's control register; None: extended space not readable
    width: tuple[int, int] = (16, 16)
    group: str | None = None  # type of its IOMMU group

    @property
    def bus(self) -> int:
        return 0x10 * self.number + 1

    @property
    def pci(self) -> str:
        return f"0000:{self.bus:02x}:00.0"

    @property
    def bridge(self) -> str:
        return f"0000:{self.bus - 1:02x}:01.0"

    @property
    def uuid(self) -> str:
        return f"GPU-{self.number:08x}-0000-4000-8000-000000000000"

    @property
    def node(self) -> int:
        return self.number // 4


def gpus(count: int = 8, **changes: object) -> tuple[FakeGpu, ...]:
    """Alike GPUs."""
    return tuple(replace(FakeGpu(number), **changes) for number in range(count))  # type: ignore[arg-type]


@dataclass(frozen=True)
class FakeHost:
    """What a test varies; the defaults are a host without a single finding."""

    gpus: tuple[FakeGpu, ...] = field(default_factory=gpus)
    on_bus: tuple[FakeGpu, ...] | None = None  # if more than NVML lists
    driver: str = "580.95.05"
    cuda: int = 13000
    init: int = 0
    nvml: tuple[str, ...] = ()  # further statements of the stub
    library: bool = True
    module: str | None = "580.95.05"
    command_line: str = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt"
    mounts: str = "overlay / overlay ro,relatime 0 0\n"
    limits: str = LIMITS
    uid: int = 10001
    cpus: str = "0-63"
    memory_nodes: str = "0-1"
    available_kib: int = 512 << 20
    cgroup: str = "0::/\n"
    cgroup_files: tuple[tuple[str, str], ...] = ()
    sockets: str = ""
    iommus: tuple[str, ...] = ()

    def build(self, root: Path) -> Path:
        """Write the trees; returns root."""
        _write(root / "proc/cmdline", self.command_line)
        _write(root / "proc/meminfo", f"MemAvailable:   {self.available_kib} kB\n")
        _write(root / "proc/self/mounts", self.mounts)
        _write(root / "proc/self/limits", self.limits)
        _write(
            root / "proc/self/status",
            f"Uid:\t{self.uid}\t{self.uid}\t{self.uid}\t{self.uid}\n"
            f"Cpus_allowed_list:\t{self.cpus}\nMems_allowed_list:\t{self.memory_nodes}\n",
        )
        _write(root / "proc/self/cgroup", self.cgroup)
        _write(root / "proc/self/net/tcp", "  sl  local_address\n" + self.sockets)
        if self.module:
            text = (
                f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {self.module}  Release\n"
            )
            _write(root / "proc/driver/nvidia/version", text)
        for name, text in self.cgroup_files:
            _write(root / "sys/fs/cgroup" / name, text)
        for name in self.iommus:
            (root / "sys/class/iommu" / name).mkdir(parents=True)
        _write(root / "sys/devices/system/node/node0/cpulist", "0-31\n")
        _write(root / "sys/devices/system/node/node1/cpulist", "32-63\n")
        (root / "dev/shm").mkdir(parents=True)
        for gpu in self.on_bus or self.gpus:
            _write(root / f"dev/nvidia{gpu.number}", "")
            self._device(root, gpu)
        return root

    def _device(self, root: Path, gpu: FakeGpu) -> None:
        bridge = root / f"sys/devices/pci0000:{gpu.bus - 1:02x}" / gpu.bridge
        _write(bridge / "class", "0x060400\n")
        space = bytes(64) if gpu.acs is None else _config_space(gpu.acs)
        bridge.joinpath("config").write_bytes(space)
        device = bridge / gpu.pci
        for name, text in (
            ("class", "0x030200"),
            ("vendor", "0x10de"),
            ("numa_node", str(gpu.node)),
            ("current_link_width", str(gpu.width[0])),
            ("max_link_width", str(gpu.width[1])),
        ):
            _write(device / name, text + "\n")
        for folder in (bridge, device):
            _link(root / "sys/bus/pci/devices" / folder.name, folder)
        if gpu.group is not None:
            group = root / f"sys/kernel/iommu_groups/{gpu.number}"
            _link(group / "devices" / gpu.pci, device)
            if gpu.group:
                _write(group / "type", gpu.group + "\n")

    def stub(self) -> str:
        """The description that nvml_stub.c reads."""
        lines = [f"init {self.init}", f"driver {self.driver}", f"cuda {self.cuda}", *self.nvml]
        lines += [
            f"gpu {g.uuid} 0000{g.pci.upper()} {g.capability} {g.total_mib} {g.used_mib} {g.mig} "
            f"{g.mode} {g.result} {g.name}"
            for g in self.gpus
        ]
        return "\n".join(lines)


def manifest(path: Path, *, cuda: str = "13.0", floor: str = "580.65.06") -> Path:
    """A manifest with what the checks read."""
    pins = {"cuda": {"version": cuda, "driver_floor": floor}}
    path.write_text(json.dumps({"build_id": BUILD, "variant": "cu130", "pins": pins}))
    return path


def _config_space(control: int) -> bytes:
    """Two extended capabilities: advanced error reporting, then ACS."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x1F, control)
    return bytes(space)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
