"""What the built file system is: manifest, labels and inventory, observed, never echoed.

`python -m builder.inside.observe --root / --target target.json --audit audit.json \
    --prune prune.json --out manifest.json --labels labels.json --inventory inventory.json`

Where a value can be read from a file it is; a pin that the file system contradicts is an error.
The output is a function of the file system and the pins: sorted, no clock but source_date_epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from builder.inside.elf import NotElfError
from builder.inside.filesystem import FileSystem, LayoutError, outputs, scan
from builder.inside.inventory import encode, inventory
from builder.inside.labels import labels
from builder.inside.manifest import ObservationError, manifest
from builder.inside.target import TargetError, read_target

OBSERVE_FAILED = 60


def write_bytes(path: Path, content: bytes) -> None:
    """In one step."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(content)
    scratch.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Sorted, newline-terminated, in one step."""
    write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        raise ObservationError(f"{path}: {exc}") from None
    if not isinstance(document, dict):
        raise ObservationError(f"{path}: not a JSON object")
    return document


def largest(files: FileSystem, sizes: dict[str, int], number: int) -> list[str]:
    """Lines of the size table, largest first."""
    ordered = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))[:number]
    lines = [f"{size / 2**20:9.1f} MiB  {name}" for name, size in ordered]
    return [*lines, f"{files.total / 2**20:9.1f} MiB  in all ({files.total / 2**30:.3f} GiB)"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="builder.inside.observe", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the file system to describe")
    parser.add_argument("--target", type=Path, required=True, help="target.json of the builder")
    parser.add_argument("--audit", type=Path, required=True, help="report of builder.inside.audit")
    parser.add_argument("--prune", type=Path, required=True, help="report of builder.inside.prune")
    parser.add_argument("--out", type=Path, required=True, help="manifest to write")
    parser.add_argument("--labels", type=Path, required=True, help="labels to write")
    parser.add_argument("--inventory", type=Path, required=True, help="inventory to write")
    args = parser.parse_args(argv)
    try:
        target = read_target(args.target)
        written = [args.out, args.labels, args.inventory, args.audit]
        files = scan(args.root, outputs(args.root, written), contents=False)
        document = manifest(files, target, audit=_read(args.audit), pruned=_read(args.prune))
        marks = labels(document, target)
        write_json(args.out, document)
        write_json(args.labels, marks)
        write_bytes(
            args.inventory, encode(inventory(files, target, [args.out, args.audit, args.prune]))
        )
    except (TargetError, LayoutError, NotElfError, ObservationError, OSError) as exc:
        print(f"observe: {exc}", file=sys.stderr)
        return OBSERVE_FAILED
    print("\n".join(largest(files, document["sizes"]["packages"], 15)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
