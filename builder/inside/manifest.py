"""The manifest: every pin, and beside it what the file system really holds."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from builder.inside.audit.torch_abi import PACKAGE, torch_version
from builder.inside.distributions import normalise
from builder.inside.elf import NotElfError, cubin_architecture
from builder.inside.filesystem import FileSystem
from builder.inside.target import Target

LARGEST = 25
_MORE_PINS = (
    "base_image",
    "budget_gib",
    "budget_layers_mib",
    "excluded",
    "label_prefix",
    "overridden",
    "python",
    "resolve_before",
    "sources",
    "tools",
)
_SYSTEM = "(Debian and other files outside site-packages)"


class ObservationError(Exception):
    """The file system contradicts a pin, or lacks what the manifest must tell."""


def manifest(
    files: FileSystem, target: Target, *, audit: dict[str, Any], pruned: dict[str, Any]
) -> dict[str, Any]:
    """The document at /opt/ddtree/manifest.json. Raises ObservationError."""
    if audit.get("passed") is not True or audit.get("target") != target.name:
        raise ObservationError("the audit report is of another target, or it did not pass")
    if pruned.get("variant") != target.variant:
        raise ObservationError("the pruning report is of another variant")
    observed = observe(files)
    _compare(target, observed)
    raw = target.raw
    return {
        "schema": 1,
        "name": target.name,
        "variant": target.variant,
        "stand_in": target.stand_in,
        "stand_in_reason": target.stand_in_reason,
        "version": target.version,
        "build_id": raw["build_id"],
        "source_date_epoch": target.source_date_epoch,
        "base": raw["base"],
        "sglang": {**raw["sglang"], "version": observed["sglang"]},
        "pins": {
            key: raw[key]
            for key in ("cuda", "torch", "kernels", "cubin", "toolchain", "lock_sha256")
        }
        | {key: raw[key] for key in _MORE_PINS if key in raw},
        "observed": observed,
        "sizes": sizes(files),
        "pruned": {key: pruned[key] for key in ("bytes", "files", "rules")},
        "audit": {
            "elf_files": audit["elf_files"],
            "rules": [rule["code"] for rule in audit["rules"] if rule["ran"]],
            "waived": len(audit["waived"]),
            "notes": audit["notes"],
        },
    }


def observe(files: FileSystem) -> dict[str, Any]:
    """Versions as they are found on disk."""
    torch = torch_version(files)
    installed = {d.name: d.version for d in files.distributions}
    return {
        "torch": torch.get("__version__"),
        "torch_cuda": torch.get("cuda"),
        "sglang": installed.get("sglang"),
        "sglang_kernel": installed.get("sglang-kernel"),
        "overlay": installed.get("ddtree-overlay"),
        "python": re.sub(r"^.*python(3\.\d+).*$", r"\1", files.site),
        "distributions": installed,
        "debian": debian(files.root),
        "cubins": kernels(files),
    }


def debian(root: Path) -> dict[str, Any]:
    """Release and packages; the hash is over sorted `name=version:architecture` lines."""
    version = root / "etc/debian_version"
    packages = sorted(_packages(root / "var/lib/dpkg"))
    return {
        "version": version.read_text("utf-8").strip() if version.is_file() else "unknown",
        "packages": len(packages),
        "packages_sha256": hashlib.sha256("".join(f"{p}\n" for p in packages).encode()).hexdigest(),
    }


def _packages(folder: Path) -> set[str]:
    """dpkg's own list; images without dpkg keep one file a package in status.d."""
    sources = [folder / "status", *sorted((folder / "status.d").glob("*"))]
    found: set[str] = set()
    for source in (path for path in sources if path.is_file()):
        for paragraph in source.read_text("utf-8", "replace").split("\n\n"):
            fields = dict(
                re.findall(r"^(Package|Version|Architecture|Status): (.+)$", paragraph, re.M)
            )
            if "Package" in fields and "not-installed" not in fields.get("Status", ""):
                found.add("{Package}={Version}:{Architecture}".format_map(fields))
    return found


def kernels(files: FileSystem) -> dict[str, dict[str, str]]:
    """The overlay's kernel files: architecture read from the file, and its hash."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((files.site_path / PACKAGE / "kernels").glob("*.*.*")):
        code = path.read_bytes()
        if path.suffix == ".cubin":
            try:
                architecture = cubin_architecture(code)
            except NotElfError as exc:
                raise ObservationError(f"{path.name}: {exc}") from None
        elif path.suffix == ".ptx":
            match = re.search(rb"^\.target\s+sm_([0-9]+[af]?)", code, re.M)
            architecture = f"compute_{match.group(1).decode()}" if match else "unknown"
        else:
            continue
        found[path.name] = {"arch": architecture, "sha256": hashlib.sha256(code).hexdigest()}
    return found


def sizes(files: FileSystem) -> dict[str, Any]:
    """Bytes: in all, by distribution (the largest), by top-level folder."""
    owner: dict[str, str] = {}
    for distribution in files.distributions:
        for row in distribution.files:
            owner.setdefault(row.path, distribution.name)
    packages: dict[str, int] = {}
    folders: dict[str, int] = {}
    for path, size in files.sizes.items():
        inside = files.below_site(path)
        name = owner.get(path) or (f"{inside.split('/')[0]} (no owner)" if inside else _SYSTEM)
        packages[name] = packages.get(name, 0) + size
        top = path.split("/")[0]
        folders[top] = folders.get(top, 0) + size
    ordered = sorted(packages.items(), key=lambda pair: (-pair[1], pair[0]))[:LARGEST]
    return {
        "total_bytes": files.total,
        "files": len(files.sizes),
        "packages": dict(ordered),
        "folders": folders,
    }


def _compare(target: Target, observed: dict[str, Any]) -> None:
    distributions: dict[str, str] = observed["distributions"]
    local = f"{target.torch}+{target.variant}"
    pairs: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("torch", observed["torch"], (target.torch, local)),
        ("torch.version.cuda", observed["torch_cuda"], (target.cuda,)),
        ("sglang-kernel", observed["sglang_kernel"], (target.kernels,)),
        ("sglang", observed["sglang"], (target.raw["sglang"]["version"],)),
    ]
    for key in ("torchvision", "torchaudio", "triton"):
        pinned = target.raw["torch"][key]
        pairs.append((key, distributions.get(key), (pinned, f"{pinned}+{target.variant}")))
    for name, version in target.components.items():
        if target.toolchain_source == "wheels":
            pairs.append((name, distributions.get(normalise(name)), (version,)))
    for what, found, allowed in pairs:
        if found not in allowed:
            raise ObservationError(f"{what}: the image holds {found}, pinned is {allowed[0]}")
    found_architectures = {entry["arch"] for entry in observed["cubins"].values()}
    if found_architectures != {*target.sass, target.ptx}:
        raise ObservationError(
            f"kernels: the image holds {', '.join(sorted(found_architectures)) or 'none'}, "
            f"pinned are {', '.join([*target.sass, target.ptx])}"
        )
