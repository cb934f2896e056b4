"""The container itself: which libcuda it loads, its user, its root file system, the Hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddtree_overlay.doctor.model import Check, Code, Finding, Severity, Subject
from ddtree_overlay.doctor.procfs import mounts, read_text, status

_INFO = Severity.INFO
SHADOWED = Code(
    "CON001",
    Severity.ERROR,
    "A libcuda other than the driver's is found first: CUDA fails with error 803.",
    "remove its folder (cuda/compat) from LD_LIBRARY_PATH and from what is mounted into the "
    "container",
)
AS_ROOT = Code(
    "CON002",
    _INFO,
    "The container runs as root; nothing in it needs that.",
    "leave out --user, or give the user of the cache folders",
)
WRITABLE_ROOT = Code(
    "CON003",
    _INFO,
    "The container's root file system is writable; nothing in it needs that.",
    "start with --read-only --tmpfs /tmp:exec",
)
ONLINE = Code(
    "CON004",
    _INFO,
    "The Hugging Face Hub may be asked at start: a start can depend on the network.",
    "set HF_HUB_OFFLINE=1, as the image does, once the models are local",
)
_SYSTEM_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "lib/x86_64-linux-gnu")


def check_libcuda(subject: Subject) -> Iterator[Finding]:
    """The libcuda.so.1 that the loader finds first, against the kernel module's version."""
    library = first_libcuda(subject.root, subject.environment)
    if library is None:
        return
    shown = "/" + str(library.relative_to(subject.root))
    # Three digits: on WSL the file is libcuda.so.1.1, whatever the driver's version is.
    found = re.search(r"libcuda\.so\.(\d{3,}\.\d[\d.]*)$", str(library.resolve()))
    driver = kernel_module(subject.root) or subject.hardware.driver
    if found and driver:
        if found.group(1) != driver:
            yield SHADOWED.found(f"{shown} is of driver {found.group(1)}, the host has {driver}")
    elif "compat" in library.parts:
        yield SHADOWED.found(f"{shown} comes before the driver's own")


def kernel_module(root: Path) -> str | None:
    """The loaded module's version, from /proc/driver/nvidia/version."""
    text = read_text(root / "proc/driver/nvidia/version") or ""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d[\d.]*)", text)
    return found.group(1) if found else None


def first_libcuda(root: Path, environment: Mapping[str, str]) -> Path | None:
    """In the dynamic loader's order: LD_LIBRARY_PATH, its cache, the system's folders."""
    folders = [part for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part]
    candidates = [root / folder.lstrip("/") / "libcuda.so.1" for folder in folders]
    candidates += [root / path.lstrip("/") for path in cached_libcuda(root)]
    candidates += [root / folder / "libcuda.so.1" for folder in _SYSTEM_FOLDERS]
    return next((path for path in candidates if path.exists()), None)


def cached_libcuda(root: Path) -> list[str]:
    """Paths of libcuda.so.1 in /etc/ld.so.cache, in its order, which is the order of search."""
    try:
        cache = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return []
    found = re.findall(rb"\0(/[^\0]{1,4000}/libcuda\.so\.1)(?=\0)", cache)
    return list(dict.fromkeys(path.decode("utf-8", "replace") for path in found))


def check_user(subject: Subject) -> Iterator[Finding]:
    """The effective uid, as /proc has it."""
    fields = (status(subject.root, "Uid") or "").split()
    if len(fields) > 1 and fields[1] == "0":
        yield AS_ROOT.found("runs as uid 0")


def check_root(subject: Subject) -> Iterator[Finding]:
    """The mount at /."""
    roots = [mount for mount in mounts(subject.root) if mount.point == "/"]
    if roots and "rw" in roots[-1].options:
        yield WRITABLE_ROOT.found("/ is mounted rw")


def check_hub(subject: Subject) -> Iterator[Finding]:
    """HF_HUB_OFFLINE as huggingface_hub reads it."""
    value = subject.environment.get("HF_HUB_OFFLINE", "")
    if value.upper() not in {"1", "ON", "YES", "TRUE"}:
        yield ONLINE.found(f"HF_HUB_OFFLINE is {value or 'not set'}")


CHECKS = (
    Check("libcuda", "the driver's own libcuda", (SHADOWED,), check_libcuda, "cuda"),
    Check("user", "user of the container", (AS_ROOT,), check_user),
    Check("read-only", "root file system", (WRITABLE_ROOT,), check_root),
    Check("offline", "Hugging Face Hub", (ONLINE,), check_hub),
)
