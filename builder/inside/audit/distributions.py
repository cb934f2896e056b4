"""DST: distributions fit each other, own their files alone, and are what they recorded."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from builder.inside.audit.model import Context, Finding
from builder.inside.distributions import RecordRow, normalise
from builder.inside.links import follow

OURS = ("sglang", "ddtree-overlay")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCK = "lock again, or write the override or exclusion into the variant's pins"


def requirements(context: Context) -> Iterator[Finding]:
    """DST001: what `pip check` asks, except for what the pins override or exclude on purpose.

    An override must hold itself, and an excluded distribution must really be absent.
    """
    try:
        module = _packaging(context.files.site_path)
    except ImportError:
        yield Finding("DST001", "packaging", "not installed: nothing can be checked", "lock it")
        return
    installed = {d.name: d.version for d in context.files.distributions}
    overrides = {_name_of(text): text for text in context.target.overridden}
    excluded = {normalise(name): why for name, why in context.target.excluded.items()}
    for name, text in sorted(overrides.items()):
        yield from _unmet(module, "pins", text, installed.get(name), absent_is_fine=True)
    for name in sorted(excluded.keys() & installed.keys()):
        yield Finding("DST001", name, f"{installed[name]} is installed, the pins exclude it", _LOCK)
    waived: set[str] = set()
    environment = _environment(context.files.site)
    for distribution in context.files.distributions:
        for text in distribution.requires:
            try:
                requirement = module.Requirement(text)
            except module.InvalidRequirement:
                continue  # metadata of old releases; the resolver ignored it too
            if requirement.marker and not requirement.marker.evaluate(environment):
                continue
            context.count("DST001")
            name = normalise(requirement.name)
            unmet = list(_unmet(module, distribution.name, text, installed.get(name)))
            if unmet and name in overrides:
                waived.add(f"{distribution.name}: {text} (override {overrides[name]})")
            elif unmet and name in excluded:
                waived.add(f"{distribution.name}: {text} (excluded: {excluded[name]})")
            else:
                yield from unmet
    context.notes["waived_requirements"] = sorted(waived)


def _unmet(
    module: Any, owner: str, text: str, version: str | None, *, absent_is_fine: bool = False
) -> Iterator[Finding]:
    specifier = module.Requirement(text).specifier
    if version is None and absent_is_fine:
        return
    if version is None or not specifier.contains(version, prereleases=True):
        yield Finding(
            "DST001", owner, f"requires {text}, installed is {version or 'nothing'}", _LOCK
        )


def collisions(context: Context) -> Iterator[Finding]:
    """DST002: two distributions that write one file overwrite each other, in no defined order.

    The same content recorded by each (namespace files of NVIDIA's packages) does no harm. One
    finding for each set of owners. Two versions of one distribution do so by definition.
    """
    versions: dict[str, list[str]] = {}
    for distribution in context.files.distributions:
        versions.setdefault(distribution.name, []).append(distribution.version)
    for name, several in sorted(versions.items()):
        if len(several) > 1:
            text = f"is installed {len(several)} times: {', '.join(sorted(several))}"
            yield Finding("DST002", name, text, "leave one of them out: build the image anew")
    owners: dict[str, dict[str, str]] = {}
    for distribution in context.files.distributions:
        for row in distribution.files:
            context.count("DST002")
            owners.setdefault(row.path, {})[distribution.name] = row.digest
    clashes: dict[tuple[str, ...], list[str]] = {}
    for path, digests in sorted(owners.items()):
        alike = len(set(digests.values())) == 1 and all(digests.values())
        if len(digests) > 1 and not alike and path in context.files.sizes:
            clashes.setdefault(tuple(sorted(digests)), []).append(path)
    for names, paths in sorted(clashes.items()):
        yield Finding(
            "DST002",
            " and ".join(names),
            f"both own {len(paths)} files of different content, such as {paths[0]}",
            "leave one of them out, or add a reasoned exception",
        )


def complete(context: Context) -> Iterator[Finding]:
    """DST003: every recorded file is there (pruning must have mended the RECORD)."""
    files = context.files
    for distribution in files.distributions:
        missing = [
            row.path
            for row in distribution.files
            if row.path not in files.sizes
            and not _leads_to_a_file(context, row.path)
            and not row.path.endswith(".pyc")
        ]
        context.count("DST003", len(distribution.files))
        if not distribution.files:
            yield Finding("DST003", distribution.name, "has no RECORD", "install it again")
        bare = [row.path for row in distribution.files if not row.digest and not _may_be_bare(row)]
        if bare:
            yield Finding(
                "DST003",
                distribution.name,
                f"{len(bare)} files are recorded without a hash, such as {bare[0]}",
                "install it again: what has no hash cannot be compared",
            )
        if missing:
            yield Finding(
                "DST003",
                distribution.name,
                f"{len(missing)} recorded files are missing, such as {missing[0]}",
                "install it again, or prune it with images/prune.toml",
            )


def ours(context: Context) -> Iterator[Finding]:
    """DST004: every file of our own two wheels is the recorded one."""
    for name in OURS:
        distribution = context.files.distribution(name)
        if distribution is None:
            yield Finding("DST004", name, "is not installed", "build the image again")
            continue
        for row in distribution.files:
            if row.digest:
                context.count("DST004")
                actual = _digest(context, row)
                if actual != row.digest:
                    yield Finding(
                        "DST004",
                        row.path,
                        f"{actual or 'missing: it'} differs from the RECORD of {name} "
                        f"{distribution.version}",
                        "nothing may change an installed wheel: change the overlay, build again",
                    )


def theirs(context: Context) -> Iterator[Finding]:
    """DST005: the same of all other distributions, one finding each."""
    for distribution in context.files.distributions:
        if distribution.name in OURS:
            continue
        rows = [row for row in distribution.files if row.digest]
        context.count("DST005", len(rows))
        # What is missing is DST003's.
        actual = {row.path: _digest(context, row) for row in rows}
        changed = [row for row in rows if actual[row.path] not in ("", row.digest)]
        if changed:
            yield Finding(
                "DST005",
                distribution.name,
                f"{len(changed)} of {len(rows)} recorded files have another content, such as "
                f"{changed[0].path}",
                "nothing may change an installed wheel: find what wrote there, or what it "
                "collides with",
            )


def _leads_to_a_file(context: Context, path: str) -> bool:
    """Pruning leaves links in place of files that are there twice."""
    return path in context.files.links and follow(context.files.root, path) in context.files.sizes


def _may_be_bare(row: RecordRow) -> bool:
    """The RECORD itself, its signatures and bytecode (PyPA, "Recording installed projects")."""
    return row.path.endswith((".dist-info/RECORD", "/RECORD.jws", "/RECORD.p7s", ".pyc"))


def _digest(context: Context, row: RecordRow) -> str:
    """Of the file that a row names, by the row's own algorithm; empty where there is none."""
    algorithm = row.digest.partition("=")[0]
    path: str | None = row.path
    if path not in context.files.sizes:  # pruning leaves links
        path = follow(context.files.root, row.path)
    if path not in context.files.sizes:
        return ""
    known = context.files.digests.get(path)
    if known is not None and known.startswith(algorithm + "="):
        return known
    try:
        content = (context.files.root / path).read_bytes()
        value = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=")
    except (OSError, ValueError):
        return ""
    return f"{algorithm}={value.decode()}"


def _name_of(requirement: str) -> str:
    match = _NAME.match(requirement)
    return normalise(match.group(0)) if match else ""


def _environment(site: str) -> dict[str, str]:
    """Markers of the image, not of the Python that runs the audit."""
    match = re.search(r"python(3\.\d+)", site)
    version = match.group(1) if match else "3.11"
    return {
        "python_version": version,
        "python_full_version": f"{version}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def _packaging(site: Path) -> Any:
    """`packaging.requirements`, from the audited tree where it is installed there."""
    folder = site / "packaging"
    if "packaging" not in sys.modules and (folder / "__init__.py").is_file():
        spec = importlib.util.spec_from_file_location(
            "packaging",
            folder / "__init__.py",
            submodule_search_locations=[os.fspath(folder)],
        )
        if spec is not None and spec.loader is not None:
            module: ModuleType = importlib.util.module_from_spec(spec)
            sys.modules["packaging"] = module
            spec.loader.exec_module(module)
    return importlib.import_module("packaging.requirements")
