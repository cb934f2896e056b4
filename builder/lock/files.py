"""Committed locks: reading, writing, and telling whether they still follow from the pins."""

from __future__ import annotations

import hashlib
import re

from builder.errors import LockDriftError
from builder.files import write_atomically
from builder.lock.entries import LockEntry, parse_lock
from builder.lock.inputs import resolve_inputs
from builder.lock.resolver import lock_command, resolve
from builder.lock.rules import broken_rules
from builder.pins import Target
from builder.project import Project

_SHOWN = 5


def read_lock(project: Project, target: Target) -> list[LockEntry]:
    """Entries of the committed lock. Raises LockDriftError when it is missing or malformed."""
    return parse_lock(_text(project, target))


def write_lock(project: Project, target: Target) -> bool:
    """Resolve and write the target's lock, atomically. True when its text changed."""
    path = target.lock_file(project)
    text = resolve(project, target)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_atomically(path, text.encode("utf-8"))
    return True


def check_lock(project: Project, target: Target, *, offline: bool) -> None:
    """Raise LockDriftError unless the committed lock follows from the pins.

    `offline` compares the digests in the header and the rules of the variant; otherwise the pins
    are resolved again and the texts compared.
    """
    text = _text(project, target)
    _check_digests(text, target)
    entries = parse_lock(text)
    offences = broken_rules(target, entries)
    if offences:
        raise _drift(target, offences)
    if not offline:
        fresh = resolve(project, target)
        if fresh != text:
            raise _drift(target, _differences(entries, parse_lock(fresh)) or ["other header"])


def _text(project: Project, target: Target) -> str:
    path = target.lock_file(project)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        where = path.relative_to(project.root)
        raise LockDriftError(f"{where}: no such lock", f"run `{lock_command(target)}`") from None


def _check_digests(text: str, target: Target) -> None:
    head = dict(re.findall(r"^# (inputs|body): sha256:([0-9a-f]{64})$", text, flags=re.MULTILINE))
    _, _, body = text.partition(f"# body: sha256:{head.get('body')}\n")
    if head.get("inputs") != resolve_inputs(target).digest():
        raise _drift(target, ["made from other pins than those in images/"])
    if head.get("body") != hashlib.sha256(body.encode()).hexdigest():
        raise _drift(target, ["edited by hand"])


def _drift(target: Target, reasons: list[str]) -> LockDriftError:
    shown = "; ".join(reasons[:_SHOWN])
    more = f" (and {len(reasons) - _SHOWN} more)" if len(reasons) > _SHOWN else ""
    return LockDriftError(f"lock of {target.name}: {shown}{more}", f"run `{lock_command(target)}`")


def _differences(old: list[LockEntry], new: list[LockEntry]) -> list[str]:
    """One line per distribution that differs, by name."""
    before, after = {e.name: e for e in old}, {e.name: e for e in new}
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        if was is None or now is None:
            lines.append(f"{name} is {'new' if was is None else 'gone'}")
        elif was.version != now.version:
            lines.append(f"{name} is {was.version}, the pins resolve to {now.version}")
        else:
            lines.append(f"{name}=={was.version} has other files or requirers")
    return lines
