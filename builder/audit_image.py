"""Audit what is already there: a root file system on disk, or any image on the engine.

An image is audited from inside a container of it, as the build's last stage does it: its own Python
runs the rules, its toolchain compiles, SGLang is imported. The rules are copied into the container
(nothing is mounted, so the engine may be a remote one) and are not part of what is audited.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors
import elftools
from docker.models.containers import Container

from builder import console
from builder.context import describe_target
from builder.engine import Engine
from builder.engine.images import look_up
from builder.errors import (
    AuditFailedError,
    BuilderError,
    ImageReferenceError,
    UnknownVariantError,
)
from builder.inside.audit.exceptions import FILE, load_exceptions
from builder.inside.audit.model import Context
from builder.inside.audit.rules import RULES
from builder.inside.audit.run import NothingAuditedError, audit, report, table
from builder.inside.filesystem import LayoutError, scan
from builder.inside.links import follow
from builder.inside.target import TargetError, parse_target, target_of_manifest
from builder.pins import all_targets
from builder.project import Project

MANIFEST = "opt/ddtree/manifest.json"
_PLACE = "ddtree-audit"  # in the container; the folder of the report, which the audit leaves out
_PYTHON = "/usr/bin/python3"  # Debian's, not the one that is audited
_SECONDS = 1800
_REMEDY = "name an appliance image, or a folder that one was unpacked into"


@dataclass(frozen=True)
class Audited:
    """What an audit found: the JSON report, and the same for a person."""

    report: dict[str, Any]
    lines: list[str]

    @property
    def passed(self) -> bool:
        return self.report["passed"] is True

    @property
    def findings(self) -> int:
        return len(self.report["findings"])


def pins_of(project: Project, name: str) -> dict[str, Any]:
    """This tree's pins of a target (`cu130`, `cu128-stand-in`), as the rules read them.

    Raises UnknownVariantError and the pin errors.
    """
    targets = {target.name: target for target in all_targets(project)}
    if name not in targets:
        raise UnknownVariantError(f"{name!r} is no target", f"one of: {', '.join(targets)}")
    return describe_target(project, targets[name], sglang={}, base={})


def audit_folder(root: Path, pins: dict[str, Any] | None) -> Audited:
    """Audit an unpacked root file system; without `pins`, against those of its own manifest.

    What must run inside the image (imports, compiling) is left out. Raises AuditFailedError when
    the folder cannot be audited; OSError.
    """
    try:
        if pins is None:
            manifest = follow(root, MANIFEST)
            if manifest is None:
                raise _unusable(str(root), f"{MANIFEST} is missing")
            pins = _own_pins((root / manifest).read_bytes(), str(root))
        context = Context(scan(root), _parsed(pins, str(root)))
        outcome = audit(context, RULES, load_exceptions(FILE.read_text("utf-8")))
        return Audited(report(outcome), table(outcome))
    except FileNotFoundError as exc:
        raise _unusable(str(root), f"{exc.filename} is missing") from None
    except (LayoutError, NothingAuditedError) as exc:
        raise _unusable(str(root), str(exc)) from None
    except (TypeError, ValueError) as exc:  # a pin of another type, which no rule is told
        raise _unusable(str(root), f"its pins are malformed: {exc}") from None


def audit_reference(engine: Engine, reference: str, pins: dict[str, Any] | None) -> Audited:
    """Audit an image of the engine, import and compile checks included.

    Raises ImageAbsentError, ImageReferenceError (malformed, or without `pins` and a manifest of
    ours), and AuditFailedError when it cannot be audited.
    """
    image = look_up(engine, reference, "build it, pull it, or name one that `docker images` lists")
    volumes = (image.attrs.get("Config") or {}).get("Volumes")
    if volumes:  # a container of it has mounts there, and what is mounted is not audited
        raise _unusable(reference, f"it declares volumes: {', '.join(sorted(volumes))}")
    container: Container = engine.client.containers.create(
        str(image.id),
        [
            *("-m", "builder.inside.audit", "--root", "/", "--import-checks"),
            *("--target", f"/{_PLACE}/target.json", "--report", f"/{_PLACE}/audit.json"),
        ],
        entrypoint=[_PYTHON],
        user="0",
        working_dir="/",
        network_mode="none",
        environment={"PYTHONPATH": f"/{_PLACE}/python", "PYTHONDONTWRITEBYTECODE": "1"},
        healthcheck={"test": ["NONE"]},
    )
    try:
        if pins is None:
            manifest = _read(container, f"/{MANIFEST}", reference, ImageReferenceError)
            pins = _own_pins(manifest, reference)
        _parsed(pins, reference)
        container.put_archive("/", _luggage(pins))
        with console.step(f"auditing {reference} in a container"):
            return _run(container, reference)
    finally:
        container.remove(force=True, v=True)


def _run(container: Container, reference: str) -> Audited:
    try:
        container.start()
    except docker.errors.APIError as exc:
        raise _unusable(reference, f"{_PYTHON} does not start: {exc.explanation}") from None
    status = int(container.wait(timeout=_SECONDS)["StatusCode"])
    if status not in (0, AuditFailedError.exit_code):
        said = container.logs(stdout=False, stderr=True).decode("utf-8", "replace").strip()
        last = (said.splitlines() or ["no message"])[-1]
        raise _unusable(reference, f"exit {status}: {last}")
    document = json.loads(_read(container, f"/{_PLACE}/audit.json", reference))
    lines = container.logs(stdout=True, stderr=False).decode("utf-8", "replace").splitlines()
    return Audited(document, lines)


def _luggage(pins: dict[str, Any]) -> bytes:
    """A tar archive of the rules, pyelftools and the pins, below the one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in _files(pins):
            entry = tarfile.TarInfo(f"{_PLACE}/{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _files(pins: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    yield "target.json", json.dumps(pins, sort_keys=True).encode()
    builder = Path(__file__).parent
    for name in ("__init__.py", "errors.py"):
        yield f"python/builder/{name}", (builder / name).read_bytes()
    library = Path(elftools.__file__).parent
    for top, folder in (("builder/inside", builder / "inside"), ("elftools", library)):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".toml"):
                yield f"python/{top}/{path.relative_to(folder)}", path.read_bytes()


def _read(
    container: Container,
    path: str,
    reference: str,
    absent: type[BuilderError] = AuditFailedError,
) -> bytes:
    """One file of a container that need not run. Raises `absent` where there is none."""
    try:
        stream, _ = container.get_archive(path)
    except docker.errors.NotFound:
        raise absent(f"{reference} cannot be audited: {path} is missing", _REMEDY) from None
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        member = archive.getmembers()[0]
        held = archive.extractfile(member) if member.isreg() else None
        if held is None:
            raise _unusable(reference, f"{path} is no file")
        return held.read()


def _own_pins(manifest: bytes, what: str) -> dict[str, Any]:
    try:
        return target_of_manifest(json.loads(manifest))
    except (ValueError, TargetError) as exc:
        raise _unusable(what, f"{MANIFEST}: {exc}") from None


def _parsed(pins: dict[str, Any], what: str) -> Any:
    try:
        return parse_target(pins)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise _unusable(what, f"its pins lack {exc}; give --target") from None


def _unusable(what: str, why: str) -> AuditFailedError:
    return AuditFailedError(f"{what} cannot be audited: {why}", _REMEDY)
