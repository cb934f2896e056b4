#!/usr/bin/env python3
"""Measure the builder in one sitting and write benchmarks/build.md.

  python benchmarks/measure_build.py            cu130, in a cache of its own that is removed again

Runs `build.py` as a user would, from a clone of this commit: a cold build (empty cache, so that the
environment, the engine's packages, the base and every wheel are fetched), a build with no change,
and a build after a one-line edit of the overlay. Wall-clock seconds of the whole command.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EDITED = "ddtree_overlay/src/ddtree_overlay/tree/reference.py"
TOP = 15
TOOLS = ("engine", "buildx", "containerd", "runc")


def build(root: Path, cache: Path, cuda: str, engine: str) -> tuple[float, dict[str, Any]]:
    """One `build.py` run; wall-clock seconds and its JSON result."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(root / "build.py"), "--cuda", cuda, "--engine", engine, "--json"],
        env={**os.environ, "DDTREE_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return time.monotonic() - begin, json.loads(done.stdout)


def machine() -> str:
    """What the numbers were measured on."""
    name = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "unknown system")
    return f"{os.cpu_count()} x {name}, {pages:.0f} GiB, {release}"


def manifest(cache: Path, target: str) -> dict[str, Any]:
    """What the last build observed in the image."""
    text = (cache / "reports" / target / "manifest.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


def report(rows: list[tuple[str, float]], result: dict[str, Any], seen: dict[str, Any]) -> str:
    """The page."""
    sizes = seen["sizes"]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    lines = [
        "# Build times and sizes",
        "",
        "Written by `python benchmarks/measure_build.py`: one machine, one sitting, wall-clock",
        "seconds of the whole command (environment, engine start and stop included). Downloads",
        "come from whatever package mirror the machine uses, so the cold build says as much about",
        "the network as about us.",
        "",
        f"- date: {today}, commit {commit}",
        f"- machine: {machine()}",
        "- engine: " + ", ".join(f"{name} {result['engine'][name]}" for name in TOOLS),
        f"- image: {result['reference']}, base {result['base'].split(':')[0]}",
        "",
        "| run | seconds | target |",
        "|---|---|---|",
    ]
    targets = {"no change": "<= 5 s", "one-line edit of the overlay": "<= 90 s"}
    lines += [f"| {name} | {seconds:.1f} | {targets.get(name, '')} |" for name, seconds in rows]
    total, budget = sizes["total_bytes"] / 2**30, seen["pins"]["budget_gib"]
    lines += [
        "",
        f"Image: {total:.2f} GiB as the sum of unpacked file sizes (budget {budget} GiB), "
        f"{result['size_bytes'] / 2**30:.2f} GiB as the engine counts its layers.",
        "",
        "| layer, base first | MiB |",
        "|---|---|",
    ]
    lines += [f"| {one['step'][:90]} | {one['bytes'] / 2**20:.1f} |" for one in result["layers"]]
    lines += ["", "| largest distributions | MiB |", "|---|---|"]
    largest = sorted(sizes["packages"].items(), key=lambda item: -item[1])[:TOP]
    lines += [f"| {name} | {size / 2**20:.0f} |" for name, size in largest]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuda", default="cu130")
    parser.add_argument("--engine", default="private", choices=("auto", "existing", "private"))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "build.md")
    args = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="ddtree-bench-"))
    clone, cache = scratch / "clone", scratch / "cache"
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        cold, _ = build(clone, cache, args.cuda, args.engine)
        same, result = build(clone, cache, args.cuda, args.engine)
        edited = clone / EDITED
        edited.write_text(edited.read_text() + "# one line more\n")
        edit, _ = build(clone, cache, args.cuda, args.engine)
        rows = [
            ("cold, nothing cached", cold),
            ("no change", same),
            ("one-line edit of the overlay", edit),
        ]
        args.out.write_text(report(rows, result, manifest(cache, args.cuda)))
    finally:
        prune = [sys.executable, str(ROOT / "build.py"), "engine", "prune", "--all"]
        subprocess.run(
            [*prune, "--engine", "private"],
            env={**os.environ, "DDTREE_CACHE": str(cache)},
            check=False,
        )
        shutil.rmtree(scratch, ignore_errors=True)
    print(args.out.read_text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
