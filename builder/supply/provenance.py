"""How an image was made, as a SLSA provenance predicate (slsa.dev/provenance/v1).

What it can claim is SLSA Build Level 1: provenance exists, in the standard form, made by the same
program that ran the build, and names the image by digest. Level 2 needs a hosted build platform
that signs what its tenants cannot forge; this builder runs on a machine of whoever holds the key,
so that even signed the predicate is as trustworthy as that person. A hosted runner that calls
this builder may attest more, under a builder id of its own.

Everything that went in is named by hash, and the build is reproducible: whoever doubts the
predicate can build the commit again and compare the digest.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packageurl import PackageURL

from builder.inside.inventory import encode
from builder.lock.entries import LockedFile, LockEntry
from builder.pins import Target
from builder.supply.subject import Subject

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE_VERSION = "v1"
_TOOLS = (
    "cyclonedx-python-lib",
    "docker",
    "jinja2",
    "license-expression",
    "pydantic",
    "spdx-tools",
)
_REVISION = re.compile(r"(?P<commit>[0-9a-f]{40}|[0-9a-f]{64})(?P<dirty>-dirty)?")
_PATCHED_TREE = "builder/patches/treehash.py over the unpacked wheel with the patch series applied"


def predicate(
    subject: Subject,
    target: Target,
    inventory: Mapping[str, Any],
    lock: Sequence[LockEntry],
) -> dict[str, Any]:
    """The predicate: a function of the image, the pins and the builder.

    It names no time and no run (both are optional in SLSA): one image has one provenance, whoever
    pushes it, and when it was built is in its receipt `built`.
    """
    base = f"https://{subject.domain}"
    return {
        "buildDefinition": {
            "buildType": f"{base}/build/{BUILD_TYPE_VERSION}",
            "externalParameters": {
                "target": target.name,
                "variant": target.variant,
                "standIn": target.stand_in,
            },
            "internalParameters": {
                "buildId": inventory["build_id"],
                "sourceDateEpoch": subject.epoch,
                "resolveBefore": target.shared.resolve_before,
                "sglangPatchedTree": {
                    "sha256": target.shared.sglang.patched_tree,
                    "of": _PATCHED_TREE,
                },
            },
            "resolvedDependencies": dependencies(subject, target, inventory, lock),
        },
        "runDetails": {
            "builder": {
                "id": f"{base}/builder/local",
                "version": {
                    f"{subject.name}-builder": subject.version,
                    "python": platform.python_version(),
                    **{f"python:{name}": found for name in _TOOLS if (found := _installed(name))},
                },
            },
            "byproducts": [
                {
                    "name": f"/opt/ddtree/{name}",
                    "digest": {"sha256": digest},
                    "mediaType": "application/json",
                }
                for name, digest in sorted(
                    {
                        **inventory["documents"],
                        "inventory.json": hashlib.sha256(encode(dict(inventory))).hexdigest(),
                    }.items()
                )
            ],
        },
    }


def dependencies(
    subject: Subject, target: Target, inventory: Mapping[str, Any], lock: Sequence[LockEntry]
) -> list[dict[str, Any]]:
    """in-toto resource descriptors of all that went in: source, base, lock, wheels, tools."""
    shared = target.shared
    found = [
        *_source(subject),
        _base(inventory),
        {
            "name": "requirements.lock",
            "digest": {"sha256": inventory["pins"]["lock_sha256"]},
            "annotations": {"distributions": len(lock)},
        },
        {
            "name": shared.sglang.wheel,
            "uri": _pypi("sglang", shared.sglang.version, shared.sglang.wheel),
            "digest": {"sha256": shared.sglang.sha256},
            "annotations": {"baseTree": shared.sglang.base_tree, "patched": True},
        },
    ]
    urls = {source.sha256: source for source in target.sources}
    for entry in lock:
        wheel = installed_wheel(entry, inventory)
        if wheel is None or wheel.sha256 in urls:
            continue
        found.append(
            {
                "name": wheel.filename,
                "uri": _pypi(entry.name, entry.version, wheel.filename),
                "digest": {"sha256": wheel.sha256},
            }
        )
    for source in target.sources:
        found.append(
            {
                "name": source.filename,
                "uri": source.url,
                "digest": {"sha256": source.sha256},
                "annotations": {"evidence": source.evidence},
            }
        )
    for name, tool in (("uv", shared.tools.uv), ("pyelftools", shared.tools.pyelftools)):
        found.append(
            {
                "name": f"{name} {tool.version}",
                "uri": _pypi(name, tool.version),
                "digest": {"sha256": tool.sha256},
                "annotations": {"usedFor": "building; not in the image"},
            }
        )
    return found


def installed_wheel(entry: LockEntry, inventory: Mapping[str, Any]) -> LockedFile | None:
    """Which of an entry's files was installed, as its WHEEL's tags tell; None if that is not clear.

    The lock's own hash covers all files of all entries, so that an unclear one is covered too.
    """
    installed = next(
        (d for d in inventory["python"]["distributions"] if d["name"] == entry.name), None
    )
    if installed is None or installed["version"] != entry.version:
        return None
    if len(entry.files) == 1:
        return entry.files[0]
    tags = set(installed["tags"])
    matching = [file for file in entry.files if tags and _tags(file.filename) == tags]
    return matching[0] if len(matching) == 1 else None


def _tags(filename: str) -> set[str]:
    """A file name's `cp39-abi3-linux_a.linux_b` as the tags it stands for (PEP 425)."""
    parts = filename.removesuffix(".whl").split("-")[-3:]
    if len(parts) != 3:
        return set()
    python, abi, system = (part.split(".") for part in parts)
    return {f"{p}-{a}-{s}" for p in python for a in abi for s in system}


def _source(subject: Subject) -> list[dict[str, Any]]:
    """The commit, unless none is known; a tree that differs from it says so."""
    label = subject.labels.get("org.opencontainers.image.revision", "")
    match = _REVISION.fullmatch(label)
    if match is None:
        return []
    descriptor: dict[str, Any] = {"name": "source", "digest": {"gitCommit": match["commit"]}}
    if match["dirty"]:
        descriptor["annotations"] = {"modified": True}
    return [descriptor]


def _base(inventory: Mapping[str, Any]) -> dict[str, Any]:
    """The base image by digest, or the layer bootstrapped from Debian's packages."""
    base = inventory["pins"]["base"]
    debian = inventory["debian"]
    annotations: dict[str, Any] = {
        "kind": base["kind"],
        "debian": debian["version"],
        "packagesSha256": debian["packages_sha256"],
    }
    name, _, digest = str(base["detail"]).rpartition("@sha256:")
    if base["kind"] == "registry" and name:
        uri = f"docker://{name}@sha256:{digest}"
        described = {"name": name, "uri": uri, "digest": {"sha256": digest}}
    else:
        facts = dict(part.split("=", 1) for part in str(base["detail"]).split() if "=" in part)
        layer = facts.get("layer-sha256", "")
        annotations["mmdebstrap"] = facts.get("mmdebstrap", "")
        described = {"name": f"Debian {debian['version']}, bootstrapped"}
        # The hash over the packages' versions identifies it where the layer's is not known.
        described["digest"] = {"sha256": layer or debian["packages_sha256"]}
    return {**described, "annotations": annotations}


def _pypi(name: str, number: str, filename: str = "") -> str:
    qualifiers = {"file_name": filename} if filename else {}
    return PackageURL("pypi", None, name, number, qualifiers).to_string()


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
