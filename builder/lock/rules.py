"""What must hold of a resolved set, whatever the resolver thinks of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from builder.errors import LockResolveError
from builder.lock.entries import LockEntry
from builder.lock.inputs import pinned_versions
from builder.pins import Target

# CUDA 12 components are published as NAME-cu12, CUDA 13 ones as plain NAME. Only these follow the
# toolkit; nvidia-ml-py or nvidia-mathdx, say, do not.
_COMPONENTS = frozenset(
    f"nvidia-{part}"
    for part in (
        *("cublas", "cufft", "cufile", "curand", "cusolver", "cusparse", "npp", "nvfatbin"),
        *("nvjitlink", "nvjpeg", "nvptxcompiler", "nvtx", "nvvm"),
    )
)
# Of these the first number of the version is the CUDA major itself.
_VERSIONED = re.compile(r"nvidia-(cuda-.+|nvvm|nvjitlink|nvtx|nvfatbin|nvptxcompiler)")
_BINDINGS = frozenset({"cuda-bindings", "cuda-python", "cuda-toolkit"})
_IN_NAME = re.compile(r"(?:^|[-_])(?:cu|cuda)(\d{2})\d?x?(?=$|[-_])")
_IN_LOCAL = re.compile(r"\+cu(\d{2})\d")


def check_rules(target: Target, entries: Sequence[LockEntry]) -> None:
    """Raise LockResolveError, first offence first, if the set breaks a rule of the variant."""
    offences = broken_rules(target, entries)
    if offences:
        more = f" (and {len(offences) - 1} more)" if len(offences) > 1 else ""
        raise LockResolveError(
            f"{target.name}: {offences[0]}{more}",
            f"add a constraint, an override or an exclusion to images/{target.variant}.toml",
        )


def broken_rules(target: Target, entries: Sequence[LockEntry]) -> list[str]:
    """Every offence, one line each; empty when the set may be installed."""
    found = [line for entry in entries if (line := _cuda_mix(entry, target.cuda_major))]
    by_name: dict[str, LockEntry] = {}
    for entry in entries:
        if entry.name in by_name:
            found.append(f"{entry.name} is there twice")
        by_name[entry.name] = entry
        if not entry.hashes:
            found.append(f"{entry.name}=={entry.version} has no hash")
    for name, version in pinned_versions(target).items():
        got = by_name.get(name)
        if got is None or got.version != version:
            is_there = "absent" if got is None else got.version
            found.append(f"{name} is {is_there}, the pins say {version}")
    for excluded in target.lock.exclude:
        if excluded.distribution in by_name:
            found.append(f"{excluded.distribution} is excluded: {excluded.reason}")
    if "sglang" in by_name:
        found.append("sglang is in the lock; it is installed as the patched wheel")
    for source in target.sources:
        locked = by_name.get(source.name)
        if source.kind == "wheel" and locked is not None and locked.hashes != (source.sha256,):
            found.append(f"{source.name}: other hashes than the one its [[source]] pins")
    return found


def _cuda_mix(entry: LockEntry, major: int) -> str | None:
    """Why this entry belongs to another CUDA major, if it does."""
    name, version = entry.name, entry.version
    suffix = _IN_NAME.search(name) or _IN_LOCAL.search(version)
    if suffix is not None:
        if int(suffix[1]) != major:
            return f"{name}=={version} is for CUDA {suffix[1]}, the variant is CUDA {major}"
        return None
    first = int(re.match(r"\d*", version)[0] or 0)  # type: ignore[index]
    if name in _BINDINGS or (_VERSIONED.fullmatch(name) and major >= 13):
        return f"{name}=={version} is not CUDA {major}" if first != major else None
    if major < 13 and (name in _COMPONENTS or name.startswith("nvidia-cuda-")):
        return f"{name}=={version} has no -cu{major} suffix: CUDA 13 or later, beside CUDA {major}"
    return None
