"""Remove from site-packages what sm_120 can never use, by a list of rules with reasons.

Runs in a build stage, also as a plain script: the standard library and fatbin.py beside it.
A rule that matches nothing is an error (a dead rule hides that upstream moved the file), and a rule
may name the architecture its files must hold no code for, which is checked before they go.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import mmap
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if __package__:
    from builder.inside.fatbin import Code, FatbinError, device_code
else:  # a build stage has both files in one folder, which an isolated Python does not look into
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from fatbin import (  # type: ignore[import-not-found, no-redef]
        Code,
        FatbinError,
        device_code,
    )

PRUNE_FAILED = 58
_KEYS = {"paths", "scripts", "reason", "variants", "no_code_for", "link_to"}
_KEYS |= {"optional", "optional_reason"}


class PruneError(Exception):
    """The rules are malformed, dead, unsafe, or contradicted by the files."""


@dataclass(frozen=True)
class Rule:
    """One entry of prune.toml. `paths` are globs relative to site-packages, `scripts` names in the
    environment's bin/."""

    paths: tuple[str, ...]
    reason: str
    scripts: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    no_code_for: str = ""
    link_to: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Removed:
    """What one rule took away (bytes)."""

    rule: Rule
    files: tuple[str, ...]
    size: int


def load_rules(text: str) -> list[Rule]:
    """Parse prune.toml. Raises PruneError naming the entry and the reason."""
    try:
        entries = tomllib.loads(text).get("prune", [])
    except tomllib.TOMLDecodeError as exc:
        raise PruneError(f"not valid TOML: {exc}") from None
    return [_rule(number, entry) for number, entry in enumerate(entries, 1)]


def _rule(number: int, entry: dict[str, Any]) -> Rule:
    named = [*entry.get("paths", []), *entry.get("scripts", [])]
    where = f"entry {number} ({', '.join(map(str, named))})"
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        raise PruneError(f"{where}: unknown key {unknown[0]}")
    if not named or not str(entry.get("reason", "")).strip():
        raise PruneError(f"{where}: paths and reason are required (or scripts and reason)")
    if bool(entry.get("optional")) != bool(str(entry.get("optional_reason", "")).strip()):
        raise PruneError(f"{where}: optional and optional_reason go together")
    for path in (*entry.get("paths", ()), entry.get("link_to", "x")):
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or not parts or parts[0] in ("*", "**"):
            raise PruneError(f"{where}: {path!r} must stay below one package of site-packages")
    for name in entry.get("scripts", ()):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise PruneError(f"{where}: {name!r} is no name of a script")
    architecture = entry.get("no_code_for", "")
    if architecture and not re.fullmatch(r"sm_\d+", architecture):
        raise PruneError(f"{where}: no_code_for = {architecture!r} is no architecture like sm_120")
    return Rule(
        paths=tuple(entry.get("paths", ())),
        scripts=tuple(entry.get("scripts", ())),
        reason=entry["reason"],
        variants=tuple(entry.get("variants", ())),
        no_code_for=architecture,
        link_to=entry.get("link_to", ""),
        optional=bool(entry.get("optional", False)),
    )


def prune(site: Path, rules: list[Rule], variant: str) -> list[Removed]:
    """Plan everything, then remove, then mend each owner's RECORD. Raises PruneError before."""
    site = site.resolve()
    plan = [(r, _matches(site, r)) for r in rules if not r.variants or variant in r.variants]
    sizes = _sizes(site, {name for _, files in plan for name in files})
    removed: list[Removed] = []
    gone: set[str] = set()
    links: dict[str, str] = {}
    for rule, files in plan:
        fresh = [name for name in files if name not in gone]
        removed.append(Removed(rule, tuple(fresh), sum(sizes[name] for name in fresh)))
        gone.update(fresh)
        if rule.link_to:
            links.update(dict.fromkeys(fresh, rule.link_to))
    for name, goal in links.items():
        if goal in gone or not (site / goal).is_file():
            raise PruneError(f"{name}: link_to {goal} is not a file that stays")
    records = _owners(site, gone)
    for name in sorted(gone):
        (site / name).unlink()
        if name in links:
            (site / name).symlink_to(os.path.relpath(site / links[name], (site / name).parent))
        else:
            _remove_empty_parents(site / name, site)
    for record in records:
        _mend_record(site, record, gone, links)
    return removed


def _matches(site: Path, rule: Rule) -> list[str]:
    found: set[str] = set()
    scripts: set[str] = set()
    for pattern in rule.paths:
        files = {name for hit in site.glob(pattern) for name in _files_below(site, hit)}
        if not files and not rule.optional:
            raise PruneError(
                f"dead rule: {pattern} matches nothing; drop it from prune.toml or follow the file"
            )
        found |= files
    for script in rule.scripts:
        path = _bin(site) / script
        if not path.is_file() and not rule.optional:
            raise PruneError(f"dead rule: there is no script {script} in {path.parent}")
        if path.is_file():
            scripts.add(os.path.relpath(path, site))  # as RECORD names it
    for name in found:
        if not (site / name).parent.resolve().is_relative_to(site):
            raise PruneError(f"{name}: lies outside site-packages behind a link")
        if rule.no_code_for:
            _prove(site / name, name, int(rule.no_code_for.removeprefix("sm_")))
    return sorted(found | scripts)


def _bin(site: Path) -> Path:
    """`bin/` of the environment whose `lib/pythonX.Y/site-packages` this is."""
    return site.parents[2] / "bin"


def _files_below(site: Path, path: Path) -> list[str]:
    if path.is_symlink() or path.is_file():
        return [str(path.relative_to(site))]
    return [
        str((Path(folder) / file).relative_to(site))
        for folder, _, files in os.walk(path)
        for file in files
    ]


def _sizes(site: Path, names: set[str]) -> dict[str, int]:
    """Bytes of each file. Where two distributions own it, which one's lies there is chance (they
    are installed in parallel): then what the first owner by name recorded."""
    rows: dict[str, list[str]] = {}
    for record in sorted(site.glob("*.dist-info/RECORD")):
        for row in csv.reader(record.read_text("utf-8").splitlines()):
            if row and row[0] in names:
                rows.setdefault(row[0], []).append(row[2] if len(row) > 2 else "")
    return {
        name: int(owned[0])
        if len(owned := rows.get(name, [])) > 1 and owned[0].isdigit()
        else (site / name).lstat().st_size
        for name in names
    }


def _prove(path: Path, name: str, architecture: int) -> None:
    try:
        found = _code(path)
    except FatbinError as exc:
        raise PruneError(f"{name}: {exc}: what it holds is not known") from None
    if not found:
        raise PruneError(f"{name}: holds no device code that no_code_for could speak of")
    usable = sorted({code.name for code in found if _usable(code, architecture)})
    if usable:
        raise PruneError(f"{name}: holds code that sm_{architecture} runs: {', '.join(usable)}")


def _code(path: Path) -> tuple[Code, ...]:
    if not path.stat().st_size:  # cannot be mapped
        return ()
    with (
        path.open("rb") as handle,
        mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return device_code(data)


def _usable(code: Code, device: int) -> bool:
    """What is neither machine code nor PTX counts: never claim of the unknown that it is not."""
    return code.kind not in ("cubin", "ptx") or code.native(device) or code.jit(device)


def _owners(site: Path, names: set[str]) -> list[Path]:
    """RECORD files that list one of the names. Raises PruneError for a file nobody owns."""
    owners = []
    orphans = set(names)
    for record in sorted(site.glob("*.dist-info/RECORD")):
        listed = {row[0] for row in csv.reader(record.read_text("utf-8").splitlines()) if row}
        if listed & names:
            owners.append(record)
            orphans -= listed
    orphans = {n for n in orphans if not n.endswith(".pyc")}
    if orphans:
        raise PruneError(f"{min(orphans)}: belongs to no installed distribution")
    return owners


def _mend_record(site: Path, record: Path, gone: set[str], links: dict[str, str]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in csv.reader(record.read_text("utf-8").splitlines()):
        if not row or row[0] not in gone:
            writer.writerow(row)
        elif row[0] in links:
            content = (site / links[row[0]]).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            writer.writerow([row[0], f"sha256={digest.decode()}", str(len(content))])
    scratch = record.with_name("RECORD.new")
    scratch.write_text(out.getvalue(), "utf-8")
    scratch.replace(record)


def _remove_empty_parents(path: Path, site: Path) -> None:
    for parent in path.parents:
        if parent == site or any(parent.iterdir()):
            return
        parent.rmdir()


def describe(removed: list[Removed], variant: str) -> dict[str, Any]:
    """The report that becomes part of the manifest."""
    return {
        "variant": variant,
        "bytes": sum(entry.size for entry in removed),
        "files": sum(len(entry.files) for entry in removed),
        "rules": [
            {
                "paths": [*entry.rule.paths, *(f"bin/{name}" for name in entry.rule.scripts)],
                "reason": entry.rule.reason,
                "proven_without": entry.rule.no_code_for,
                "linked_to": entry.rule.link_to,
                "files": len(entry.files),
                "bytes": entry.size,
            }
            for entry in removed
        ],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="site-packages")
    parser.add_argument("--rules", type=Path, required=True, help="prune.toml")
    parser.add_argument("--variant", required=True, help="cu128 or cu130")
    parser.add_argument("--report", type=Path, required=True, help="JSON report to write")
    args = parser.parse_args(argv)
    try:
        removed = prune(args.site, load_rules(args.rules.read_text("utf-8")), args.variant)
        document = json.dumps(describe(removed, args.variant), indent=2, sort_keys=True)
        args.report.parent.mkdir(parents=True, exist_ok=True)
        args.report.write_text(document + "\n", "utf-8")
    except (OSError, PruneError) as exc:
        print(f"prune: {exc}", file=sys.stderr)
        return PRUNE_FAILED
    for entry in sorted(removed, key=lambda e: -e.size):
        first = [*entry.rule.paths, *entry.rule.scripts][0]
        print(f"{entry.size / 2**20:9.1f} MiB {len(entry.files):6d} files  {first}")
    print(f"{sum(e.size for e in removed) / 2**20:9.1f} MiB pruned")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
