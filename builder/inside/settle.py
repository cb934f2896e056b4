"""Forget what the installer noted about the moment of the installation.

uv writes the time of a wheel that came from a folder into `uv_cache.json`, which only its own
`--reinstall` logic reads: two builds would differ. The file goes, and its line in RECORD.

Runs in a build stage as a plain script: standard library only, no import of its own package.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path

NAME = "uv_cache.json"
SETTLE_FAILED = 59


class SettleError(Exception):
    """A RECORD is not what the specification says: UTF-8, CSV."""


def settle(site: Path) -> list[str]:
    """Names of the .dist-info folders that were changed, sorted. Raises OSError, SettleError."""
    changed = []
    for note in sorted(site.glob(f"*.dist-info/{NAME}")):
        record = note.with_name("RECORD")
        own = f"{note.parent.name}/{NAME}"
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        try:
            with record.open(encoding="utf-8", newline="") as lines:
                rows = [row for row in csv.reader(lines) if row and row[0] != own]
        except (ValueError, csv.Error) as exc:
            raise SettleError(f"{record}: {exc}") from None
        writer.writerows(rows)
        scratch = record.with_name("RECORD.new")
        scratch.write_text(out.getvalue(), "utf-8")
        scratch.replace(record)
        note.unlink()
        changed.append(note.parent.name)
    return changed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="site-packages")
    args = parser.parse_args(argv)
    try:
        changed = settle(args.site)
    except (OSError, SettleError) as exc:
        print(f"settle: {exc}", file=sys.stderr)
        return SETTLE_FAILED
    print(f"settled {len(changed)} distributions: {', '.join(changed) or 'none'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
