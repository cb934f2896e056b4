"""`python -m builder.inside.audit --root / --target target.json --report audit.json`"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from builder.errors import AuditFailedError
from builder.inside.audit.exceptions import FILE, ExceptionsError, load_exceptions
from builder.inside.audit.model import Context
from builder.inside.audit.rules import RULES
from builder.inside.audit.run import NothingAuditedError, audit, report, table
from builder.inside.filesystem import LayoutError, scan
from builder.inside.target import TargetError, read_target

UNUSABLE = 56


def main(argv: list[str] | None = None) -> int:
    """51 when a rule has findings, 56 when the audit itself could not be done."""
    parser = argparse.ArgumentParser(prog="builder.inside.audit", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the file system to audit")
    parser.add_argument("--target", type=Path, required=True, help="target.json of the builder")
    parser.add_argument("--report", type=Path, required=True, help="JSON report to write")
    parser.add_argument(
        "--import-checks",
        action="store_true",
        help="also import SGLang with the image's own Python (only inside the image)",
    )
    args = parser.parse_args(argv)
    try:
        target = read_target(args.target)
        known = load_exceptions(FILE.read_text("utf-8"))
        ours = _below(args.root, args.report.parent)
        files = scan(args.root, frozenset({ours}) if ours else frozenset())
        outcome = audit(Context(files, target, args.import_checks), RULES, known)
    except (TargetError, LayoutError, NothingAuditedError, ExceptionsError, OSError) as exc:
        print(f"audit: {exc}", file=sys.stderr)
        return UNUSABLE
    scratch = args.report.with_name(args.report.name + ".new")
    scratch.write_text(json.dumps(report(outcome), indent=2, sort_keys=True) + "\n", "utf-8")
    scratch.replace(args.report)
    print("\n".join(table(outcome)))
    return 0 if outcome.passed else AuditFailedError.exit_code


def _below(root: Path, folder: Path) -> str:
    """The report's folder is no part of the image."""
    try:
        name = str(folder.resolve().relative_to(root.resolve()))
    except ValueError:
        return ""
    return "" if name == "." else name


if __name__ == "__main__":
    raise SystemExit(main())
