"""What the built file system is: the manifest and the labels, observed, never echoed.

`python -m builder.inside.observe --root / --target target.json --audit audit.json \
    --prune prune.json --out manifest.json --labels labels.json`

Where a value can be read from a file it is; a pin that the file system contradicts is an error.
The output is a function of the file system and the pins: sorted, no clock but source_date_epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from builder.inside.filesystem import FileSystem, LayoutError, scan
from builder.inside.labels import labels
from builder.inside.manifest import ObservationError, manifest
from builder.inside.target import TargetError, read_target

OBSERVE_FAILED = 60


def write_json(path: Path, value: Any) -> None:
    """Sorted, newline-terminated, in one step."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")
    scratch.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        raise ObservationError(f"{path}: {exc}") from None
    if not isinstance(document, dict):
        raise ObservationError(f"{path}: not a JSON object")
    return document


def _outputs(root: Path, paths: list[Path]) -> frozenset[str]:
    """What the stage itself writes is no part of the image."""
    found = set()
    for folder in {path.resolve().parent for path in paths}:
        try:
            found.add(str(folder.relative_to(root.resolve())))
        except ValueError:
            continue
    return frozenset(found - {"."})


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
    args = parser.parse_args(argv)
    try:
        target = read_target(args.target)
        files = scan(args.root, _outputs(args.root, [args.out, args.labels, args.audit]))
        document = manifest(files, target, audit=_read(args.audit), pruned=_read(args.prune))
        marks = labels(document, target)
        write_json(args.out, document)
        write_json(args.labels, marks)
    except (TargetError, LayoutError, ObservationError, OSError) as exc:
        print(f"observe: {exc}", file=sys.stderr)
        return OBSERVE_FAILED
    print("\n".join(largest(files, document["sizes"]["packages"], 15)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
