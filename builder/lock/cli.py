"""`build.py lock`: write the locks, or check that they follow from the pins."""

from __future__ import annotations

import argparse
from typing import Any

from builder import console
from builder.errors import LockDriftError
from builder.lock.files import check_lock, read_lock, write_lock
from builder.pins import Target
from builder.project import Project
from builder.target_options import add_target_options, chosen_targets


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb; the handler is `fn(args, project) -> exit code`."""
    parser = subparsers.add_parser(
        "lock",
        help="resolve the pins into requirements.lock files with hashes",
        description="Resolve the pins of each target into images/VARIANT/requirements.lock "
        "(a stand-in's into images/VARIANT/stand-in/). With --check nothing is written.",
    )
    add_target_options(parser, allow_all=True)
    parser.add_argument("--check", action="store_true", help="fail if a lock is not up to date")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="check without a package index: digests and rules only (implies --check)",
    )
    parser.add_argument("--json", action="store_true", help="result as JSON on stdout")
    parser.set_defaults(handler=run_lock)


def run_lock(args: argparse.Namespace, project: Project) -> int:
    """Handler of the verb. Raises the lock and source errors; 0 when all is well."""
    targets = chosen_targets(args, project)
    results = (
        _check(args, project, targets) if args.check or args.offline else _write(project, targets)
    )
    if args.json:
        console.result_json(results)
    return 0


def _write(project: Project, targets: list[Target]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for target in targets:
        with console.step(f"locking {target.name}"):
            changed = write_lock(project, target)
        results.append(_result(project, target, changed=changed))
        path, entries = results[-1]["lock"], results[-1]["entries"]
        console.info(f"{path}: {entries} entries, {'written' if changed else 'unchanged'}")
    return results


def _check(
    args: argparse.Namespace, project: Project, targets: list[Target]
) -> list[dict[str, Any]]:
    drifts: list[LockDriftError] = []
    for target in targets:
        try:
            with console.step(f"checking the lock of {target.name}"):
                check_lock(project, target, offline=args.offline)
        except LockDriftError as exc:
            drifts.append(exc)
    if drifts:
        raise LockDriftError(
            "; ".join(drift.what for drift in drifts),
            drifts[0].remedy if len(drifts) == 1 else "run `python3 build.py lock`",
        )
    return [_result(project, target, changed=False) for target in targets]


def _result(project: Project, target: Target, *, changed: bool) -> dict[str, Any]:
    return {
        "target": target.name,
        "lock": target.lock_file(project).relative_to(project.root).as_posix(),
        "entries": len(read_lock(project, target)),
        "changed": changed,
    }
