"""What the metadata of installed Python distributions says of their licence, origin and content.

Core metadata 2.4 (PEP 639) has a licence expression and lists the licence files; older metadata has
a free text and classifiers. A wheel may carry bills of materials of what was compiled into it
(PEP 770, `.dist-info/sboms/`): crates of a Rust extension, libraries that auditwheel copied.
"""

from __future__ import annotations

import json
import re
from email import message_from_string
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

from builder.inside.distributions import Distribution, normalise
from builder.inside.filesystem import FileSystem

# Names of files that hold a licence or a notice which it demands.
_LICENCE = re.compile(
    r"^(un)?licen[cs]e|^copying|^copyright|^notice|^eula|third.?party.?(notice|lic)", re.I
)
_CODE = (".py", ".pyc", ".pyi", ".h", ".hpp", ".so", ".json")
_SHORT = 120  # a License field that is longer, or has more lines, is a text and no name
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def describe(files: FileSystem, distribution: Distribution) -> dict[str, Any]:
    """One distribution's entry; paths are relative to the root."""
    folder = files.root / distribution.folder
    metadata = _message(folder / "METADATA")
    stated = metadata.get_all("License-File") or []
    texts = licence_files(files, distribution)
    names = {d.name for d in files.distributions}
    requires = {
        normalise(match[1])
        for text in distribution.requires
        if "extra ==" not in text and (match := _REQUIREMENT.match(text))
    }
    wheel = _message(folder / "WHEEL")
    return {
        "name": distribution.name,
        "version": distribution.version,
        "folder": distribution.folder,
        "licence": stated_licence(metadata),
        "licence_files": texts,
        "licence_files_missing": sorted(
            name
            for name in stated
            if not any((folder / place / name).is_file() for place in ("licenses", "."))
            # Before PEP 639 the folders of the source tree were dropped.
            and not (folder / PurePosixPath(name).name).is_file()
        ),
        "homepage": _homepage(metadata),
        "installer": _line(folder / "INSTALLER"),
        "requires": sorted(requires & names - {distribution.name}),
        "tags": sorted(wheel.get_all("Tag") or []),
        "embedded": embedded(files, distribution),
    }


def stated_licence(metadata: Message) -> dict[str, Any]:
    """The three places where metadata may name a licence, as they are."""
    text = str(metadata.get("License") or "").strip()
    lines = text.splitlines()
    found: dict[str, Any] = {}
    if expression := str(metadata.get("License-Expression") or "").strip():
        found["expression"] = expression
    if text and len(lines) == 1 and len(text) <= _SHORT and text.upper() != "UNKNOWN":
        found["name"] = text
    elif len(lines) > 1 or len(text) > _SHORT:
        # The text itself stands in METADATA, which is in the image.
        found["text_begins"] = " ".join(lines[0].split())[:_SHORT]
    classifiers = [
        value.strip().rpartition("::")[2].strip()
        for value in metadata.get_all("Classifier") or []
        if value.strip().startswith("License ::")
    ]
    if classifiers:
        found["classifiers"] = sorted(set(classifiers))
    return found


def licence_files(files: FileSystem, distribution: Distribution) -> list[str]:
    """Every file of the distribution that by its name is a licence or a notice, and is there."""
    inside = f"{distribution.folder}/licenses/"
    return sorted(
        row.path
        for row in distribution.files
        if (
            row.path.startswith(inside)
            or (_LICENCE.search(PurePosixPath(row.path).name) and not row.path.endswith(_CODE))
        )
        and row.path in files.sizes
    )


def vendored(files: FileSystem, owner: dict[str, str]) -> list[dict[str, Any]]:
    """Distributions that lie inside another one (setuptools/_vendor/*.dist-info)."""
    found = []
    for path in sorted(files.sizes):
        below = files.below_site(path)
        if not below.endswith(".dist-info/METADATA") or below.count("/") == 1:
            continue
        metadata = _message(files.root / path)
        folder = path.rpartition("/")[0]
        found.append(
            {
                "name": normalise(str(metadata.get("Name") or "")),
                "version": str(metadata.get("Version") or ""),
                "folder": folder,
                "licence": stated_licence(metadata),
                "licence_files": sorted(
                    name
                    for name in files.sizes
                    if name.startswith(folder + "/") and _LICENCE.search(PurePosixPath(name).name)
                ),
                "homepage": _homepage(metadata),
                "owner": owner.get(path, ""),
            }
        )
    return found


def embedded(files: FileSystem, distribution: Distribution) -> list[dict[str, str]]:
    """Components of the wheel's own bills of materials (CycloneDX JSON), once each.

    Left out: what they exclude, and the wheel itself. Addresses of the machine that built the
    wheel (`download_url=file:...`) are cut off.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    folder = files.root / distribution.folder / "sboms"
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text("utf-8"))
            listed = [c for c in document.get("components", []) if isinstance(c, dict)]
        except (ValueError, AttributeError, TypeError):
            continue  # the wheel's maker wrote something else there
        for component in listed:
            purl = re.sub(r"\?download_url=file:[^#]*", "", str(component.get("purl") or ""))
            name, version = str(component.get("name") or ""), str(component.get("version") or "")
            own = (
                purl.startswith("pkg:pypi/")
                and normalise(purl.removeprefix("pkg:pypi/").partition("@")[0]) == distribution.name
            )
            if not name or component.get("scope") == "excluded" or own:
                continue
            entry = {"name": name, "version": version, "purl": purl, "stated_in": path.name}
            if component.get("scope") == "optional":
                entry["scope"] = "optional"  # may have been left out of this wheel
            if licence := _cyclonedx_licence(component.get("licenses")):
                entry["licence"] = licence
            found.setdefault((name, version), entry)
    return [found[key] for key in sorted(found)]


def _cyclonedx_licence(licenses: Any) -> str:
    names = []
    for choice in licenses if isinstance(licenses, list) else []:
        if not isinstance(choice, dict):
            continue
        if "expression" in choice:
            names.append(str(choice["expression"]))
        elif isinstance(choice.get("license"), dict):
            names.append(str(choice["license"].get("id") or choice["license"].get("name") or ""))
    return " AND ".join(
        sorted({f"({n})" if " " in n and len(names) > 1 else n for n in names if n})
    )


def _message(path: Path) -> Message:
    """Headers only; a missing file has none."""
    if not path.is_file():
        return Message()
    text = path.read_text("utf-8", "replace")
    # A licence text may hold lines of blanks, which the parser would take for the end.
    head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    return message_from_string(re.sub(r"(?m)^[ \t]+$", " .", head))


def _homepage(metadata: Message) -> str:
    stated = str(metadata.get("Home-page") or "").strip()
    if stated and stated.upper() != "UNKNOWN":
        return stated
    links = {}
    for value in metadata.get_all("Project-URL") or []:
        label, _, url = value.partition(",")
        links[label.strip().lower()] = url.strip()
    for label in ("homepage", "home", "home page", "repository", "source", "source code", "github"):
        if label in links:
            return links[label]
    return ""


def _line(path: Path) -> str:
    return path.read_text("utf-8", "replace").strip() if path.is_file() else ""
