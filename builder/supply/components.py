"""The parts of an image as both bills of materials name them, made from its inventory.

Debian's shared libraries stand for themselves in their packages, which are what is updated; the
native files of everything else are parts of their own, inside the distribution that owns them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from packageurl import PackageURL

from builder.pins import Target
from builder.pins.schema import SourcePin
from builder.supply.corrections import Corrections
from builder.supply.expressions import kind_of
from builder.supply.licences import (
    Licence,
    debian_licence,
    embedded_licence,
    library_licence,
    python_licence,
)

Kind = Literal["debian", "python", "embedded", "native", "kernel", "archive"]
_OVERLAY = "ddtree-overlay"
_NVIDIA = "LicenseRef-NVIDIA-Proprietary"
# `libgomp-e985bcbb.so.1.0.0`, `libpng16.60f56faa.so.16`, `libz3.so.4.15`
_STEM = re.compile(r"^(?:lib)?(?P<stem>[A-Za-z][A-Za-z0-9_+]*?)_?(?:[-.][0-9a-f]{8})*\.so")


@dataclass(frozen=True)
class Component:
    """One part. `ref` is unique in the image and the same for the same image content."""

    ref: str
    kind: Kind
    name: str
    version: str  # empty where nothing states it
    purl: str
    licence: Licence
    parent: str = ""  # ref of the part it lies in; empty: the image itself
    requires: tuple[str, ...] = ()  # refs
    sha256: str = ""
    path: str = ""  # in the image, without a leading slash
    homepage: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def components(
    inventory: Mapping[str, Any], target: Target, corrections: Corrections
) -> list[Component]:
    """Every part, containers before what lies in them, sorted otherwise."""
    found = [
        *_debian(inventory, corrections),
        *_python(inventory, corrections),
        *(_archive(source) for source in target.sources if source.kind == "archive"),
    ]
    by_name = {component.ref: component for component in found}
    found += _natives(inventory, corrections, by_name)
    overlay = by_name.get(_python_ref(_OVERLAY))
    found += [_kernel(entry, overlay) for entry in inventory["kernels"]]
    return found


def _debian(inventory: Mapping[str, Any], corrections: Corrections) -> Iterator[Component]:
    release = str(inventory["debian"]["version"]).partition(".")[0]
    packages = inventory["debian"]["packages"]
    refs: dict[str, list[str]] = {}
    for entry in packages:
        refs.setdefault(entry["name"], []).append(_debian_ref(entry))
    for entry in packages:
        qualifiers = {"arch": entry["architecture"], "distro": f"debian-{release}"}
        if (entry["source"], entry["source_version"]) != (entry["name"], entry["version"]):
            same = entry["source_version"] == entry["version"]
            suffix = "" if same else f"@{entry['source_version']}"
            qualifiers["upstream"] = entry["source"] + suffix
        yield Component(
            ref=_debian_ref(entry),
            kind="debian",
            name=entry["name"],
            version=entry["version"],
            purl=_purl("deb", entry["name"], entry["version"], "debian", qualifiers),
            licence=debian_licence(entry, corrections),
            requires=tuple(ref for name in entry["depends"] for ref in refs[name]),
            homepage=entry["homepage"],
            properties={"source": f"{entry['source']} {entry['source_version']}"},
        )


def _python(inventory: Mapping[str, Any], corrections: Corrections) -> Iterator[Component]:
    for entry in inventory["python"]["distributions"]:
        licence = python_licence(entry, corrections)
        yield Component(
            ref=_python_ref(entry["name"]),
            kind="python",
            name=entry["name"],
            version=entry["version"],
            purl=_purl("pypi", entry["name"], entry["version"]),
            licence=licence,
            requires=tuple(_python_ref(name) for name in entry["requires"]),
            path=entry["folder"],
            homepage=entry["homepage"],
        )
        absorbed = _absorbed(inventory, entry)
        for part in entry["embedded"]:
            # A file of its own carries what is said of it; what is only optional may not be there.
            if part["name"] in absorbed or part.get("scope") == "optional":
                continue
            yield Component(
                ref=f"embedded:{entry['name']}/{part['name']}@{part['version']}",
                kind="embedded",
                name=part["name"],
                version=part["version"],
                purl=part["purl"],
                licence=embedded_licence(part, licence, corrections),
                parent=_python_ref(entry["name"]),
                properties={"stated-in": f"{entry['folder']}/sboms/{part['stated_in']}"},
            )
    for entry in inventory["python"]["vendored"]:
        owner = str(entry["owner"]).partition(":")[2]
        yield Component(
            ref=f"vendored:{owner}/{entry['name']}",
            kind="python",
            name=entry["name"],
            version=entry["version"],
            purl=_purl("pypi", entry["name"], entry["version"]),
            licence=python_licence(entry, corrections),
            parent=_python_ref(owner) if owner else "",
            path=entry["folder"],
            homepage=entry["homepage"],
        )


def _natives(
    inventory: Mapping[str, Any], corrections: Corrections, known: Mapping[str, Component]
) -> Iterator[Component]:
    site = f"{inventory['python']['site']}/"
    distributions = {entry["name"]: entry for entry in inventory["python"]["distributions"]}
    for entry in inventory["native"]:
        kind, _, name = entry["owner"].partition(":")
        if kind == "debian":
            continue
        owner = known.get(_python_ref(name)) if kind == "python" else None
        below = entry["path"].removeprefix(site)
        correction = corrections.library(below)
        foreign = entry["bundled"] or (correction is not None and owner is not None)
        stated = _stated(entry, distributions.get(name, {}).get("embedded", []))
        version = stated.get("version", "")
        if owner is not None and not foreign:
            version = owner.version
        project = correction.project if correction else ""
        properties = {"owner": entry["owner"] or "made by the build"}
        for key in ("soname", "file_version", "machine"):
            if key in entry:
                properties[key.replace("_", "-")] = entry[key]
        if foreign:
            properties["bundled"] = "true"
        if project:
            properties["project"] = project
        if stated:
            properties["stated-in"] = stated["stated_in"]
            properties["stated-purl"] = stated["purl"]
        title = PurePosixPath(entry["path"]).name
        yield Component(
            ref=f"file:{entry['path']}",
            kind="native",
            name=title,
            version=version,
            purl=_purl("generic", title, version, "", {"checksum": f"sha256:{entry['sha256']}"}),
            licence=library_licence(below, foreign, owner.licence if owner else None, corrections),
            parent=owner.ref if owner else "",
            sha256=entry["sha256"],
            path=entry["path"],
            properties={key: value for key, value in properties.items() if value},
        )


def _kernel(entry: Mapping[str, Any], overlay: Component | None) -> Component:
    name = PurePosixPath(entry["path"]).name
    version = overlay.version if overlay else ""
    return Component(
        ref=f"file:{entry['path']}",
        kind="kernel",
        name=name,
        version=version,
        purl=_purl("generic", name, version, "", {"checksum": f"sha256:{entry['sha256']}"}),
        licence=overlay.licence if overlay else Licence("NOASSERTION", "unknown", "no owner"),
        parent=overlay.ref if overlay else "",
        sha256=entry["sha256"],
        path=entry["path"],
        properties={"architecture": entry["arch"]},
    )


def _archive(source: SourcePin) -> Component:
    """A redistributable archive of the CUDA toolkit, unpacked into the image."""
    qualifiers = {"checksum": f"sha256:{source.sha256}", "download_url": source.url}
    return Component(
        ref=f"archive:{source.name}",
        kind="archive",
        name=source.name,
        version=source.version,
        purl=_purl("generic", source.name, source.version, "", qualifiers),
        licence=Licence(_NVIDIA, kind_of(_NVIDIA, {_NVIDIA: "proprietary"}), "NVIDIA's archive"),
        sha256=source.sha256,
        properties={"evidence": source.evidence},
    )


def _stem(name: str) -> str:
    match = _STEM.match(name)
    return match["stem"].lower() if match else ""


def _names(name: str) -> set[str]:
    """`libjpeg / libjpeg-turbo` names `jpeg` and `jpeg-turbo`."""
    return {part.strip().lower().removeprefix("lib") for part in name.split("/")}


def _stated(entry: Mapping[str, Any], embedded: list[dict[str, str]]) -> dict[str, str]:
    """What the wheel's own bill of materials says of a bundled library."""
    stem = _stem(PurePosixPath(entry["path"]).name) if entry["bundled"] else ""
    return next((part for part in embedded if stem and stem in _names(part["name"])), {})


def _absorbed(inventory: Mapping[str, Any], distribution: Mapping[str, Any]) -> set[str]:
    owner = f"python:{distribution['name']}"
    return {
        stated["name"]
        for entry in inventory["native"]
        if entry["owner"] == owner and (stated := _stated(entry, distribution["embedded"]))
    }


def _debian_ref(entry: Mapping[str, Any]) -> str:
    return f"deb:{entry['name']}:{entry['architecture']}"


def _python_ref(name: str) -> str:
    return f"pypi:{name}"


def _purl(
    kind: str,
    name: str,
    version: str,
    namespace: str = "",
    qualifiers: Mapping[str, str] | None = None,
) -> str:
    return PackageURL(
        kind, namespace or None, name, version or None, dict(qualifiers or {})
    ).to_string()
