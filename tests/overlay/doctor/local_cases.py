"""Checks on made-up subjects in this process, each with exactly the codes that it must give."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.host_checks import (
    caches,
    container,
    driver,
    gpus,
    limits,
    memory,
    network,
    shared_memory,
)
from ddtree_overlay.doctor.model import Finding, Gpu, Hardware, Subject
from ddtree_overlay.serve.manifest import Manifest
from tests.overlay.doctor.fake_host import BUILD, LIMITS, FakeHost

Produce = Callable[[Subject, Path, pytest.MonkeyPatch], Iterable[Finding]]
GIB = 1 << 30


@dataclass(frozen=True)
class LocalCase:
    name: str
    produce: Produce
    codes: tuple[str, ...] = ()
    says: str = ""


def subject(root: Path, cache: Path) -> Subject:
    """Eight GPUs, of which nothing but their number matters here."""
    pins = {"cuda": {"version": "13.0", "driver_floor": "580.65.06"}}
    return Subject(
        root=root,
        environment={},
        manifest=Manifest({"build_id": BUILD, "pins": pins}),
        hardware=Hardware(driver="580.95.05", cuda_driver=(13, 0)),
        tp=8,
        gpus_needed=8,
        cache_root=cache / BUILD,
    )


def gpu(*capability: int) -> Gpu:
    return Gpu(0, "GPU-0", "some GPU", "0000:01:00.0", (capability[0], capability[1]), GIB, 0)


def shm(free: int, needed: int = 8) -> Produce:
    def produce(it: Subject, _: Path, patch: pytest.MonkeyPatch) -> Iterable[Finding]:
        values = (4096, 4096, free // 4096, free // 4096, free // 4096, 1, 1, 1, 0, 255)
        patch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
        return shared_memory.check_shared_memory(replace(it, gpus_needed=needed))

    return produce


def no_shm(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
    (it.root / "dev/shm").rmdir()
    return shared_memory.check_shared_memory(it)


def closed_shm(it: Subject, _: Path, patch: pytest.MonkeyPatch) -> Iterable[Finding]:
    patch.setattr(os, "access", lambda *_: False)
    return list(shared_memory.check_shared_memory(it))


def locked(nnodes: int) -> Produce:
    def produce(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
        text = LIMITS.replace(
            "Max locked memory         unlimited            unlimited",
            "Max locked memory         8388608              8388608  ",
        )
        (it.root / "proc/self/limits").write_text(text)
        return limits.check_limits(replace(it, nnodes=nnodes))

    return produce


def weights(device: str, available_gib: int) -> Produce:
    """A sparse file of 64 GiB."""

    def produce(it: Subject, folder: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
        (it.root / "proc/meminfo").write_text(f"MemAvailable: {available_gib << 20} kB\n")
        with (folder / "model.safetensors").open("wb") as file:
            file.truncate(64 * GIB)
        return memory.check_memory(replace(it, model=str(folder), device=device))

    return produce


def architectures(carried: list[str], capability: tuple[int, int]) -> Produce:
    return lambda *_: gpus.kernels_for((gpu(*capability),), carried)


def ports(make: Callable[[int], dict[str, tuple[str, int]]], *, serving: bool = False) -> Produce:
    """`make` is given a port that this process listens on; /proc is the real one."""

    def produce(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            it = replace(it, ports=make(taken.getsockname()[1]), serving=serving, root=Path("/"))
            return list(network.check_ports(it))

    return produce


def meeting(address: str | None, rank: int = 0) -> Produce:
    return lambda it, *_: network.check_meeting_point(
        replace(it, nnodes=2, node_rank=rank, dist_init_addr=address)
    )


def closed(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    it = replace(it, nnodes=2, node_rank=1, dist_init_addr=address)
    return list(network.check_meeting_point(it))


def cannot(number: int, owner: int | None = None) -> Produce:
    """Writing fails with that error; the folder belongs to `owner`."""

    def produce(it: Subject, _: Path, patch: pytest.MonkeyPatch) -> Iterable[Finding]:
        it.cache_root.mkdir(parents=True)

        def fail(_: Path) -> bool:
            raise OSError(number, os.strerror(number))

        patch.setattr(caches, "_try_file", fail)
        if owner is not None:
            patch.setattr(os, "geteuid", lambda: owner + 1)
            os_stat = os.stat_result((0o40755, 1, 1, 1, owner, owner, 0, 0, 0, 0))
            patch.setattr(Path, "exists", lambda _: True)
            patch.setattr(Path, "stat", lambda *_, **__: os_stat)
        return list(caches.check_write(it))

    return produce


def mounted(kind: str, options: str, check: Callable[[Subject], Iterable[Finding]]) -> Produce:
    def produce(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
        base = str(it.cache_root.parent).replace(" ", "\\040")
        (it.root / "proc/self/mounts").write_text(
            f"overlay / overlay ro 0 0\n/dev/sda {base} ext4 rw 0 0\nx {base} {kind} {options} 0 0\n"
        )
        return [f for f in check(it) if f.code != "CAC004"]

    return produce


def not_executable(it: Subject, _: Path, patch: pytest.MonkeyPatch) -> Iterable[Finding]:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    patch.setattr("mmap.mmap", refuse)
    return list(caches.check_write(it))


def not_a_folder(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
    it.cache_root.parent.mkdir(parents=True, exist_ok=True)
    it.cache_root.write_text("a file")
    return list(caches.check_write(it))


def written(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
    it = replace(it, cache_folders=(it.cache_root / "triton", it.cache_root / "xdg"))
    found = list(caches.check_write(it))
    assert sorted(p.name for p in it.cache_root.iterdir()) == ["triton", "xdg"]
    assert not list((it.cache_root / "triton").iterdir())
    return found


def space(free: int) -> Produce:
    def produce(it: Subject, _: Path, patch: pytest.MonkeyPatch) -> Iterable[Finding]:
        usage = type("Usage", (), {"free": free})
        patch.setattr("shutil.disk_usage", lambda _: usage)
        (it.root / "proc/self/mounts").write_text("/dev/sda / ext4 rw 0 0\n")
        return list(caches.check_disk(it))

    return produce


def stale(*names: str) -> Produce:
    def produce(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
        for name in (*names, BUILD, "huggingface"):
            (it.cache_root.parent / name).mkdir(parents=True)
            (it.cache_root.parent / name / "x.so").write_bytes(bytes(1 << 20))
        return list(caches.check_stale(it))

    return produce


def libcuda(
    *files: str, cache: tuple[str, ...] = (), path: str = "", module: bool = True
) -> Produce:
    def produce(it: Subject, _: Path, __: pytest.MonkeyPatch) -> Iterable[Finding]:
        for name in files:
            file = it.root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
            link = file.with_name("libcuda.so.1")
            if link != file:
                link.symlink_to(file.name)
        if not module:
            (it.root / "proc/driver/nvidia/version").unlink()
            it = replace(it, hardware=Hardware())
        (it.root / "etc").mkdir()
        lines = b"".join(b"libcuda.so.1\0" + name.encode() + b"\0" for name in cache)
        (it.root / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0" + lines)
        environment = {"LD_LIBRARY_PATH": path} if path else {}
        return list(container.check_libcuda(replace(it, environment=environment)))

    return produce


def cuda_minor(driver_offers: tuple[int, int]) -> Produce:
    """An image of CUDA 12.8 on a driver that is new enough by its number."""
    built = Manifest({"pins": {"cuda": {"version": "12.8", "driver_floor": "570.26"}}})
    offered = Hardware(driver="570.86.10", cuda_driver=driver_offers)
    return lambda it, *_: driver.check_driver(replace(it, manifest=built, hardware=offered))


OWN = "usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
OTHER = "usr/local/cuda-13.0/compat/libcuda.so.580.65.06"
A, P = "API", "probes"

CASES = (
    LocalCase("CUDA minor too low", cuda_minor((12, 6)), ("DRV008",), "offers CUDA 12.6"),
    LocalCase("CUDA minor equal", cuda_minor((12, 8))),
    LocalCase("CUDA minor above", cuda_minor((12, 9))),
    LocalCase("CUDA major above", cuda_minor((13, 0))),
    LocalCase(
        "no floor",
        lambda it, *_: driver.check_driver(replace(it, manifest=Manifest({}))),
        ("DRV009",),
    ),
    LocalCase("kernel of a lower minor", architectures(["sm_120"], (12, 1))),
    LocalCase(
        "a targets are not portable", architectures(["sm_120a"], (12, 1)), ("GPU005",), "sm_121"
    ),
    LocalCase("a target on its own", architectures(["sm_120a"], (12, 0))),
    LocalCase("PTX of a lower major", architectures(["sm_90", "compute_90"], (12, 0))),
    LocalCase("no kernel", architectures(["sm_120", "compute_120"], (8, 0)), ("GPU005",), "sm_80"),
    LocalCase("no kernel at all", architectures([], (12, 0)), ("GPU005",), "carries none"),
    LocalCase("Docker's 64 MB", shm(64 << 20), ("SHM001",), "64 MiB"),
    LocalCase("64 MB for one GPU", shm(64 << 20, needed=1)),
    LocalCase("2 GiB", shm(2 * GIB), ("SHM002",)),
    LocalCase("16 GiB", shm(16 * GIB)),
    LocalCase("no shared memory", no_shm, ("SHM003",)),
    LocalCase("read-only shared memory", closed_shm, ("SHM003",), "cannot be written"),
    LocalCase("locked memory, one host", locked(1)),
    LocalCase("locked memory, two hosts", locked(2), ("LIM002",), "8 MiB"),
    LocalCase("weights and page cache", weights("cuda", 60), ("MEM002",), "64.0 GiB"),
    LocalCase("weights fit", weights("cuda", 200)),
    LocalCase("weights on a CPU", weights("cpu", 60), ("MEM001",)),
    LocalCase(
        "port in use",
        ports(lambda port: {A: ("127.0.0.1", port)}),
        ("NET001",),
        f"pid {os.getpid()}",
    ),
    LocalCase(
        "port of all addresses in use", ports(lambda port: {A: ("0.0.0.0", port)}), ("NET001",)
    ),
    LocalCase(
        "one port twice",
        ports(lambda port: {P: ("127.0.0.1", port), A: ("127.0.0.1", port)}, serving=True),
        ("NET002",),
        "for probes and for API",
    ),
    LocalCase("own probes", ports(lambda port: {P: ("127.0.0.1", port)}, serving=True)),
    LocalCase(
        "not our address", ports(lambda _: {A: ("192.0.2.1", 31990)}), ("NET003",), "192.0.2.1"
    ),
    LocalCase("not a name", ports(lambda _: {A: ("no.such.host.invalid", 31990)}), ("NET003",)),
    LocalCase("not a port", ports(lambda _: {A: ("127.0.0.1", 70000)}), ("NET003",)),
    LocalCase("nowhere to meet", meeting(None), ("NET004",), "not set"),
    LocalCase("no port to meet at", meeting("10.0.0.1"), ("NET004",)),
    LocalCase("name does not resolve", meeting("no.such.host.invalid:5000"), ("NET004",)),
    LocalCase("first host", meeting("127.0.0.1:5000")),
    LocalCase("first host is not there yet", closed, ("NET005",)),
    LocalCase("caches written", written),
    LocalCase("cache is a file", not_a_folder, ("CAC001",)),
    LocalCase("cache read-only", cannot(errno.EROFS), ("CAC001",), "read-only"),
    LocalCase("cache full", cannot(errno.ENOSPC), ("CAC001",), "No space"),
    LocalCase("cache of another user", cannot(errno.EACCES, owner=4321), ("CAC002",), "uid 4321"),
    LocalCase("cache noexec", mounted("ext4", "rw,noexec", caches.check_write), ("CAC003",)),
    LocalCase("cache cannot be mapped", not_executable, ("CAC003",)),
    *(
        LocalCase(f"cache on {kind}", mounted(kind, "rw", caches.check_disk), ("CAC005",), kind)
        for kind in ("nfs4", "tmpfs", "fuse.sshfs", "lustre")
    ),
    LocalCase(
        "cache in the container", mounted("overlay", "rw", caches.check_disk), ("CAC005",), "lost"
    ),
    LocalCase("cache on a disk", mounted("xfs", "rw", caches.check_disk)),
    LocalCase("little space", space(GIB), ("CAC004",), "1.0 GiB"),
    LocalCase("enough space", space(50 * GIB)),
    LocalCase("stale caches", stale("f" * 16, "dev"), ("CAC006",), "2 other caches"),
    LocalCase("no stale caches", stale()),
    LocalCase("own libcuda", libcuda(OWN)),
    LocalCase(
        "compat in the path",
        libcuda(OWN, OTHER, path="/x:/usr/local/cuda-13.0/compat"),
        ("CON001",),
        "580.65.06",
    ),
    LocalCase(
        "compat in the loader's cache",
        libcuda(
            OWN,
            OTHER,
            cache=(
                "/usr/local/cuda-13.0/compat/libcuda.so.1",
                "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            ),
        ),
        ("CON001",),
    ),
    LocalCase(
        "compat last in the cache",
        libcuda(
            OWN,
            OTHER,
            cache=(
                "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                "/usr/local/cuda-13.0/compat/libcuda.so.1",
            ),
        ),
    ),
    LocalCase(
        "compat, driver unknown",
        libcuda(OTHER, path="/usr/local/cuda-13.0/compat", module=False),
        ("CON001",),
    ),
    LocalCase("no libcuda", libcuda()),
    LocalCase("libcuda of WSL", libcuda("usr/lib/wsl/lib/libcuda.so.1.1", path="/usr/lib/wsl/lib")),
)


def host(folder: Path) -> Path:
    """A healthy host's trees."""
    return FakeHost().build(folder)
