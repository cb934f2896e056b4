"""`ddtree doctor`: the checks of `serve`, alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ddtree_overlay.doctor.bundle import write_bundle
from ddtree_overlay.doctor.hardware import read_hardware
from ddtree_overlay.doctor.model import Check, Hardware
from ddtree_overlay.doctor.registry import CHECKS
from ddtree_overlay.doctor.report import document, problem_lines, summary_lines
from ddtree_overlay.doctor.runner import Report, refuse_unknown, run_checks
from ddtree_overlay.doctor.subject import subject_of
from ddtree_overlay.serve.derive import derive
from ddtree_overlay.serve.errors import UsageError
from ddtree_overlay.serve.manifest import read_manifest
from ddtree_overlay.serve.resolve import resolve

HELP = """\
usage: ddtree doctor [--json] [--bundle FILE.tar.gz] [--only a,b] [--skip-checks a,b] [--fast]
                     [--list] [any argument of serve]

Checks driver, GPUs, PCIe, limits, ports, caches, image and (if one is given) the model, as serve
does before it loads anything. Each finding is two lines: ERROR, WARNING or INFO, a code and what
was found; then what to do. Codes and their meaning: README.md, "Doctor".

  docker run --rm --gpus all --shm-size 16g IMAGE doctor
  docker run --rm --gpus all --shm-size 16g -v /models:/models:ro IMAGE doctor \\
    --model /models/Qwen3-8B --draft-model /models/Qwen3-8B-DFlash-b16 --json

  --json           one JSON object on stdout instead of text
  --bundle FILE    also write a tar.gz for support, into a mounted folder; secrets are hidden
  --only a,b       run these checks only
  --skip-checks    leave these out; the report names them (serve takes it too)
  --fast           leave out checks that start the stack (all-reduce, overlay)
  --list           name all checks and stop

Exit code: 0 no errors (there may be warnings), 74 errors were found, 75 the bundle cannot be
written, others as for serve.
"""


@dataclass(frozen=True)
class Options:
    """The doctor's own arguments, and the rest, which are serve's."""

    as_json: bool
    listing: bool
    fast: bool
    bundle: Path | None
    only: tuple[str, ...]
    rest: tuple[str, ...]


def doctor_command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    checks: Sequence[Check] = CHECKS,
    out: TextIO | None = None,
) -> int:
    """The exit code. Raises EntryError for a configuration or arguments that cannot be used."""
    out = out or sys.stdout
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="", file=out)
        return 0
    options = parse(arguments)
    if options.listing:
        print_checks(checks, as_json=options.as_json, file=out)
        return 0
    refuse_unknown(options.only, checks, "--only")
    plan = resolve(options.rest, environment, need_model=False)
    refuse_unknown(plan.get("skip_checks"), checks, "--skip-checks")
    manifest = read_manifest(environment)
    hardware = read_hardware(environment) if plan.get("device") == "cuda" else Hardware()
    plan = derive(plan, hardware, environment=environment, need_model=False)
    subject = subject_of(plan, hardware, manifest, environment)
    report = run_checks(
        subject,
        skip=plan.get("skip_checks"),
        only=options.only,
        slow=not options.fast,
        progress=None if options.as_json else _say_slow,
        checks=checks,
    )
    if options.bundle is not None:
        write_bundle(options.bundle, report, subject, plan)
    if options.as_json:
        print(json.dumps(document(report, hardware), indent=2), file=out)
    else:
        print("\n".join([*problem_lines(report), *summary_lines(report)]), file=out)
        if options.bundle is not None:
            print(f"support bundle: {options.bundle}", file=out)
    return report.exit_code


def parse(arguments: Sequence[str]) -> Options:
    """Take out the doctor's own arguments. Raises UsageError for one without its value."""
    switches = {"--json": False, "--list": False, "--fast": False}
    values: dict[str, str] = {}
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        part = waiting.pop(0)
        name, equals, value = part.partition("=")
        if part in switches:
            switches[part] = True
        elif name in {"--bundle", "--only"}:
            if not equals:
                value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else ""
            if not value:
                wanted = "a file to write" if name == "--bundle" else "names of checks"
                raise UsageError(f"{name} without a value", f"give {wanted}: {name} ...")
            values[name] = value
        else:
            rest.append(part)
    return Options(
        as_json=switches["--json"],
        listing=switches["--list"],
        fast=switches["--fast"],
        bundle=Path(values["--bundle"]) if "--bundle" in values else None,
        only=tuple(part.strip() for part in values.get("--only", "").split(",") if part.strip()),
        rest=tuple(rest),
    )


def print_checks(checks: Sequence[Check], *, as_json: bool, file: TextIO) -> None:
    """All checks: name, title, codes."""
    if as_json:
        rows = [
            {
                "name": check.name,
                "title": check.title,
                "codes": [code.id for code in check.codes],
                "slow": check.slow,
            }
            for check in checks
        ]
        print(json.dumps(rows, indent=2), file=file)
        return
    width = max(len(check.name) for check in checks)
    for check in checks:
        codes = ", ".join(code.id for code in check.codes)
        slow = " (slow)" if check.slow else ""
        print(f"{check.name:<{width}}  {check.title}{slow}: {codes}", file=file)


def print_problems(report: Report, *, file: TextIO) -> None:
    """What `serve` says before it starts: errors and warnings, then the summary."""
    print("\n".join([*problem_lines(report, info=False), *summary_lines(report)]), file=file)


def _say_slow(check: Check) -> None:
    if check.slow:
        print(f"doctor: {check.name} ...", file=sys.stderr, flush=True)
