"""Hosts, and exactly which codes the doctor finds on each; run in a child with the stub NVML."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.overlay.doctor.fake_host import LIMITS, MODEL, FakeGpu, FakeHost, gpus


@dataclass(frozen=True)
class HostCase:
    """`says`: texts that the findings must contain."""

    name: str
    host: FakeHost
    codes: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ("--tp", "8")
    variables: dict[str, str] = field(default_factory=dict)
    peer_to_peer: bool | None = None
    exit_code: int | None = None


def changed(number: int, **changes: object) -> tuple[FakeGpu, ...]:
    """Eight GPUs of which one differs."""
    return tuple(
        replace(gpu, **changes) if gpu.number == number else gpu  # type: ignore[arg-type]
        for gpu in gpus()
    )


HEALTHY = FakeHost()
ALL_PAIRS = [(i, j) for i in range(8) for j in range(i + 1, 8)]
NO_P2P = tuple(f"p2p {i} {j} 1" for i, j in ALL_PAIRS)
SOCKETS = tuple(f"topology {i} {j} {50 if i // 4 != j // 4 else 30}" for i, j in ALL_PAIRS)
CGROUP_V1 = "4:cpu,cpuacct:/docker/x\n5:memory:/docker/x\n6:pids:/docker/x\n"

CASES = (
    HostCase("healthy", HEALTHY, peer_to_peer=True),
    HostCase("one of eight is used", HEALTHY, arguments=("--tp", "1"), peer_to_peer=False),
    HostCase("seven of eight", FakeHost(gpus=gpus(7)), ("GPU001",), ("7 of 8", "0000:01:00.0")),
    HostCase(
        "one fell off the bus",
        FakeHost(gpus=gpus(7), on_bus=gpus(8)),
        ("GPU001",),
        ("0000:71:00.0",),
    ),
    HostCase(
        "one fell off, seven asked for",
        FakeHost(gpus=gpus(7), on_bus=gpus(8)),
        ("GPU010",),
        ("0000:71:00.0",),
        arguments=("--tp", "1"),
        variables={"NVIDIA_VISIBLE_DEVICES": "all"},
    ),
    HostCase(
        "profile for eight on seven",
        FakeHost(gpus=gpus(7)),
        ("GPU001", "PRF001"),
        ("profile dense-8gpu is made for 8 GPUs, and 7 can be used",),
        arguments=("--profile", "dense-8gpu", "--draft-model", "/none"),
    ),
    HostCase(
        "profile of another architecture",
        FakeHost(gpus=gpus(capability=90, total_mib=80 << 10)),
        ("PRF001",),
        ("sm_120, and GPUs are sm_90; for 90 GiB a GPU, and one has 80.0 GiB",),
        arguments=("--profile", "dense-8gpu", "--draft-model", "/none"),
    ),
    HostCase(
        "others' GPUs before --base-gpu-id",
        FakeHost(
            gpus=tuple(
                replace(g, used_mib=95000 if g.number < 4 else 4, mode=2 if g.number < 4 else 0)
                for g in gpus()
            )
        ),
        arguments=("--tp", "4", "--base-gpu-id", "4"),
    ),
    HostCase(
        "--base-gpu-id beyond the last",
        HEALTHY,
        ("GPU001",),
        ("4 of 8 GPUs from --base-gpu-id 4 on",),
        arguments=("--tp", "8", "--base-gpu-id", "4"),
    ),
    HostCase(
        "a slice of MIG",
        FakeHost(gpus=gpus(1, mig=1)),
        ("GPU006",),
        arguments=("--tp", "1"),
        variables={"CUDA_VISIBLE_DEVICES": "MIG-12345678-0000-4000-8000-000000000000"},
        exit_code=0,
    ),
    HostCase(
        "lost",
        FakeHost(gpus=changed(3, result=15)),
        ("GPU002",),
        ("GPU 3", "lost"),
        exit_code=74,
    ),
    HostCase(
        "lost, and not needed",
        FakeHost(gpus=changed(3, result=15)),
        ("GPU002",),
        arguments=("--tp", "4"),
        exit_code=0,
    ),
    HostCase(
        "mixed models",
        FakeHost(gpus=changed(5, name="NVIDIA GeForce RTX 5090")),
        ("GPU004",),
        ("RTX 5090 (GPU 5)", MODEL),
    ),
    HostCase(
        "mixed memory", FakeHost(gpus=changed(2, total_mib=90000)), ("GPU004",), ("87.9 GiB",)
    ),
    HostCase("MIG", FakeHost(gpus=gpus(mig=1)), ("GPU006",), ("GPU 7 (0000:71:00.0)",)),
    HostCase(
        "occupied",
        FakeHost(gpus=changed(6, used_mib=40000), nvml=("process 6 4242 39000",)),
        ("GPU007",),
        ("GPU 6 (0000:61:00.0)", "pid 4242 38.1 GiB"),
    ),
    HostCase(
        "all occupied alike",
        FakeHost(gpus=gpus(used_mib=30000)),
        ("GPU007",),
        ("66.3 GiB free",),
        exit_code=0,
    ),
    HostCase("all taken", FakeHost(gpus=gpus(used_mib=80000)), ("GPU007",), exit_code=74),
    HostCase("occupied by whom is hidden", FakeHost(gpus=changed(0, used_mib=90000)), ("GPU007",)),
    HostCase(
        "unbalanced",
        FakeHost(gpus=changed(6, used_mib=15000)),
        ("GPU009",),
        arguments=("--tp", "8", "--memory-fraction", "0.5"),
    ),
    HostCase(
        "unbalanced, and SGLang told to go on",
        FakeHost(gpus=changed(6, used_mib=15000)),
        ("GPU009",),
        arguments=("--tp", "8", "--memory-fraction", "0.5"),
        variables={"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"},
        exit_code=0,
    ),
    HostCase("prohibited", FakeHost(gpus=changed(1, mode=2)), ("GPU008",), ("prohibited",)),
    HostCase("exclusive", FakeHost(gpus=changed(1, mode=3)), ("GPU008",), ("exclusive process",)),
    HostCase(
        "index that is not there",
        HEALTHY,
        ("GPU003",),
        ("CUDA_VISIBLE_DEVICES=9",),
        arguments=("--tp", "2"),
        variables={"CUDA_VISIBLE_DEVICES": "0,1,9,2"},
    ),
    HostCase(
        "UUID that is not there",
        HEALTHY,
        ("GPU003",),
        ("NVIDIA_VISIBLE_DEVICES=GPU-dead",),
        variables={"NVIDIA_VISIBLE_DEVICES": "GPU-dead"},
    ),
    HostCase(
        "hidden by CUDA_VISIBLE_DEVICES",
        HEALTHY,
        ("GPU001",),
        ("hides 5",),
        variables={"CUDA_VISIBLE_DEVICES": "4,5,6"},
    ),
    HostCase("no library, no driver", FakeHost(gpus=(), library=False, module=None), ("DRV001",)),
    HostCase(
        "no --gpus",
        FakeHost(gpus=(), library=False),
        ("DRV001",),
        ("has an NVIDIA driver, but its library is not mounted",),
    ),
    HostCase(
        "capability utility missing",
        FakeHost(library=False),
        ("DRV001",),
        ("utility",),
    ),
    HostCase("module not loaded", FakeHost(gpus=(), init=9, module=None), ("DRV002",)),
    HostCase("driver updated", FakeHost(gpus=(), init=18), ("DRV003",), ("mismatch",)),
    HostCase("daemon-reload", FakeHost(gpus=(), init=999), ("DRV004",), ("unknown error",)),
    HostCase("only GPU unknown", FakeHost(gpus=gpus(1, result=999)), ("DRV004",)),
    HostCase("all GPUs unknown", FakeHost(gpus=gpus(8, result=999)), ("DRV004",)),
    HostCase("no permission", FakeHost(gpus=(), init=4), ("DRV005",)),
    HostCase("other failure", FakeHost(gpus=(), init=17), ("DRV006",)),
    HostCase(
        "old driver",
        FakeHost(driver="570.86.10", module="570.86.10", cuda=12080),
        ("DRV007",),
        ("570.86.10", "580.65.06"),
    ),
    HostCase("wrong minor", FakeHost(cuda=12090), ("DRV008",), ("offers CUDA 12.9",)),
    HostCase("newer driver", FakeHost(driver="595.10", module="595.10", cuda=13020)),
    HostCase(
        "across sockets", FakeHost(nvml=SOCKETS), ("LNK001",), ("16 of 28",), peer_to_peer=True
    ),
    HostCase(
        "no P2P",
        FakeHost(nvml=NO_P2P),
        ("LNK002",),
        ("28 of 28", "chipset not supported"),
        peer_to_peer=False,
    ),
    HostCase(
        "no P2P, switched off",
        FakeHost(nvml=NO_P2P),
        arguments=("--tp", "8", "--peer-to-peer", "off"),
        peer_to_peer=False,
    ),
    HostCase(
        "no P2P, forced",
        FakeHost(nvml=("p2p 2 5 4",)),
        ("LNK003",),
        ("2 and 5", "registry key"),
        arguments=("--tp", "8", "--peer-to-peer", "on"),
        peer_to_peer=True,
    ),
    HostCase(
        "P2P that the driver does not tell, forced",
        FakeHost(nvml=tuple(f"p2p {i} {j} 6" for i, j in ALL_PAIRS)),
        ("LNK002",),
        ("the driver does not say",),
        arguments=("--tp", "8", "--peer-to-peer", "on"),
        exit_code=0,
    ),
    HostCase(
        "P2P switched off by NCCL's variable",
        HEALTHY,
        variables={"NCCL_P2P_DISABLE": "1"},
        peer_to_peer=False,
    ),
    HostCase(
        "IOMMU on",
        FakeHost(gpus=gpus(group="DMA-FQ"), iommus=("dmar0",), command_line="quiet"),
        ("LNK004",),
        ("DMA-FQ",),
        peer_to_peer=False,
    ),
    HostCase(
        "IOMMU on, old kernel",
        FakeHost(gpus=gpus(group=""), iommus=("dmar0",), command_line="quiet"),
        ("LNK004",),
        ("dmar0",),
        peer_to_peer=False,
    ),
    HostCase(
        "IOMMU passes through, old kernel",
        FakeHost(gpus=gpus(group=""), iommus=("dmar0",)),
        peer_to_peer=True,
    ),
    HostCase("IOMMU passes through", FakeHost(gpus=gpus(group="identity"), iommus=("dmar0",))),
    HostCase(
        "ACS redirects",
        FakeHost(gpus=changed(4, acs=0x1D)),
        ("LNK005",),
        ("0000:40:01.0",),
        peer_to_peer=False,
    ),
    HostCase("ACS cannot be read", FakeHost(gpus=gpus(acs=None)), ("LNK006",), peer_to_peer=False),
    HostCase("narrow link", FakeHost(gpus=changed(7, width=(8, 16))), ("LNK007",), ("x8 of x16",)),
    HostCase(
        "few files, small stack",
        FakeHost(
            limits=LIMITS.replace("1048576 ", "4096    ").replace(
                "8388608              unlimited", "1048576              1048576  "
            )
        ),
        ("LIM001", "LIM003"),
        ("at most 4096",),
    ),
    HostCase(
        "pids of cgroup v2",
        FakeHost(cgroup_files=(("pids.max", "1000\n"),)),
        ("LIM004",),
        ("1000", "5120"),
    ),
    HostCase(
        "pids of rootless Podman",
        FakeHost(cgroup_files=(("pids.max", "2048\n"),)),
        ("LIM004",),
        exit_code=0,
    ),
    HostCase(
        "pids of cgroup v1",
        FakeHost(cgroup=CGROUP_V1, cgroup_files=(("pids/docker/x/pids.max", "900"),)),
        ("LIM004",),
        ("900",),
    ),
    HostCase(
        "nproc",
        FakeHost(
            limits=LIMITS.replace(
                "Max processes             unlimited            unlimited",
                "Max processes             2000                 2000     ",
            )
        ),
        ("LIM004",),
        ("2000",),
    ),
    HostCase("few CPUs", FakeHost(cpus="0-3,32-35"), ("CPU001",), ("8 CPUs allowed",)),
    HostCase(
        "quota of cgroup v2",
        FakeHost(
            cgroup="0::/pod/x\n",
            cgroup_files=(("pod/cpu.max", "400000 100000"), ("pod/x/cpu.max", "max 100000")),
        ),
        ("CPU001",),
        ("4 CPU quota",),
    ),
    HostCase(
        "quota of cgroup v1",
        FakeHost(
            cgroup=CGROUP_V1,
            cgroup_files=(
                ("cpu,cpuacct/cpu.cfs_quota_us", "250000"),
                ("cpu,cpuacct/cpu.cfs_period_us", "100000"),
            ),
        ),
        ("CPU001",),
        ("2.5 CPU quota",),
    ),
    HostCase("far NUMA memory", FakeHost(memory_nodes="0"), ("CPU002",), ("GPU 4, 5, 6, 7",)),
    HostCase("far CPUs", FakeHost(cpus="32-63"), ("CPU002",), ("NUMA node 0 of GPU 0",)),
    HostCase("scarce memory", FakeHost(available_kib=20 << 20), ("MEM001",), exit_code=0),
    HostCase("little memory", FakeHost(available_kib=8 << 20), ("MEM001",), ("8.0 GiB",)),
    HostCase(
        "memory of cgroup v2",
        FakeHost(cgroup_files=(("memory.max", str(10 << 30)),)),
        ("MEM001",),
        ("10.0 GiB",),
    ),
    HostCase(
        "memory of cgroup v1",
        FakeHost(cgroup=CGROUP_V1, cgroup_files=(("memory/memory.limit_in_bytes", str(9 << 30)),)),
        ("MEM001",),
        ("9.0 GiB",),
    ),
    HostCase(
        "no limit in cgroup v1",
        FakeHost(
            cgroup=CGROUP_V1,
            cgroup_files=(("memory/memory.limit_in_bytes", "9223372036854771712"),),
        ),
    ),
    HostCase("root", FakeHost(uid=0), ("CON002",)),
    HostCase("writable root", FakeHost(mounts="overlay / overlay rw 0 0\n"), ("CON003",)),
    HostCase("online", HEALTHY, ("CON004",), variables={"HF_HUB_OFFLINE": "0"}),
)
