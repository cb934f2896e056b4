#!/usr/bin/env python3
"""Measure the builder, the registry and the image, and write benchmarks/build.md.

  python3 benchmarks/measure_build.py                            everything, in a cache of its own
  python3 benchmarks/measure_build.py --steps cold,same,edit     builds alone
  python3 benchmarks/measure_build.py --cache DIR --steps push   with the images of a cache that is

Runs `build.py` as a user would, from a clone of this commit. Steps:

  cold    a build with an empty cache: environment, engine's packages, base and every wheel fetched
  same    a build with no change
  edit    a build after a one-line edit of the overlay
  push    export, then push to an empty registry
  pull    `docker pull` by digest of what was pushed (so push is run too)
  update  push and pull again after that edit, by an engine that has the image before it (so edit,
          push and pull are run too)

Without --cache the first build is cold, and is recorded as such. With it the first build only makes
sure that the image is there; afterwards that cache and its engine have what they had.
Steps that are not run keep their last numbers, with their own date and machine (build.json).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("cold", "same", "edit", "push", "pull", "update")
NEEDS = {"pull": ("push",), "update": ("edit", "push", "pull")}
BUILD_STEPS = frozenset({"cold", "same", "edit"})


def chosen(text: str, *, own_cache: bool) -> frozenset[str]:
    """The steps that `--steps` names, with those that they need. Raises ValueError."""
    steps = {word.strip() for word in text.split(",") if word.strip()}
    unknown = sorted(steps - set(STEPS))
    if unknown or not steps:
        raise ValueError(f"--steps: {', '.join(unknown) or 'none'}; there are {', '.join(STEPS)}")
    if "cold" in steps and not own_cache:
        raise ValueError("a cold build has an empty cache: drop --cache, or the step cold")
    for step in tuple(steps):
        steps.update(NEEDS.get(step, ()))
    if own_cache:
        steps.add("cold")
    return frozenset(steps)


def disk_gib(steps: frozenset[str], build_gib: int, image_gib: float) -> float:
    """Free space that the steps need at their peak, all on one disk.

    `build_gib`: of a build from nothing; `image_gib`: the image's budget. To export an image the
    engine writes it whole to a temporary file; a layout, and what a registry holds of it, are at
    most half of it each.
    """
    packed = image_gib / 2
    rest = 1.0
    if "edit" in steps:
        rest = 4
    if "push" in steps:
        rest = max(rest, image_gib + packed)
    if "pull" in steps:
        rest = max(rest, 2 * packed + image_gib)
    if "update" in steps:
        rest = max(rest, 3 * packed + image_gib + 1)
    # A build from nothing leaves behind image, wheels, base and environment.
    return max(build_gib, 2 * image_gib + rest) if "cold" in steps else rest


def enter_environment() -> None:
    """Go on in the tests' environment (made first where it is missing), as `build.py test` does."""
    import build
    from builder.project import Project

    lock = ROOT / "tests" / "requirements.lock"
    target = build.environment_dir(lock, Project(ROOT).cache)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, build.interrupted)
    if Path(sys.prefix) != target:
        build.prepare(lock, target)
        python = str(target / "bin" / "python")
        os.execv(python, [python, str(Path(__file__).resolve()), *sys.argv[1:]])  # noqa: S606


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuda", default="cu130", help="CUDA variant (default: cu130)")
    parser.add_argument("--stand-in", action="store_true", help="the variant from PyPI alone")
    parser.add_argument("--engine", default="private", choices=("auto", "existing", "private"))
    parser.add_argument("--steps", default=",".join(STEPS), help="default: all of them")
    parser.add_argument("--cache", type=Path, help="a builder's cache that is used and kept")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks",
        help="folder of build.json and build.md (default: this one)",
    )
    args = parser.parse_args(argv)
    try:
        args.steps = chosen(args.steps, own_cache=args.cache is None)
    except ValueError as exc:
        parser.error(str(exc))
    if args.cache and not args.cache.is_dir():
        parser.error(f"--cache: {args.cache} is no folder")
    if args.engine != "private" and "cold" in args.steps:
        parser.error("another engine than a private one has a cache: give --cache, drop step cold")
    return args


def main() -> int:
    args = arguments()
    enter_environment()
    from benchmarks import build_page
    from benchmarks.build_session import Session
    from benchmarks.build_transfer import MeasureError
    from builder.engine.disk import free_gib
    from builder.errors import BuilderError, DiskSpaceError
    from builder.pins import load_target
    from builder.project import Project
    from tests.builder.local_registry import registry_program

    scratch = Path(tempfile.mkdtemp(prefix="ddtree-bench-"))
    own = args.cache is None
    cache = scratch / "cache" if own else args.cache.resolve()
    try:
        state = build_page.load(args.out / "build.json")
        target = load_target(Project(ROOT), args.cuda, stand_in=args.stand_in)
        need = disk_gib(args.steps, target.shared.engine.disk_gib, target.budget.image_gib)
        for place in (scratch, cache):
            if free_gib(place) < need:
                raise DiskSpaceError(
                    f"these steps need {need:.0f} GiB on the disk of {place}, "
                    f"{free_gib(place):.1f} GiB are free",
                    "free space there, choose fewer --steps, or set TMPDIR (and --cache)",
                )
        if args.steps - BUILD_STEPS:
            registry_program()  # fetched now, into the user's cache, or refused now
        subprocess.run(["git", "clone", "-q", str(ROOT), str(scratch / "clone")], check=True)
        os.environ["DDTREE_CACHE"] = str(cache)
        session = Session(
            Project(scratch / "clone"), args.cuda, args.stand_in, args.engine, not own
        )
        found = session.measure(args.steps, scratch, state)
        found.save(args.out / "build.json")
        (args.out / "build.md").write_text(build_page.page(found))
    except BuilderError as exc:
        print(f"error: {exc.what}\n  fix: {exc.remedy}", file=sys.stderr)
        return exc.exit_code
    except (subprocess.CalledProcessError, MeasureError, ValueError) as exc:
        print(f"error: {exc}\n  fix: read what it said above", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was started is stopped, nothing was written", file=sys.stderr)
        return 130
    finally:
        if own and (cache / "engine-data").exists():
            prune = [sys.executable, str(ROOT / "build.py"), "engine", "prune", "--all"]
            env = {**os.environ, "DDTREE_CACHE": str(cache)}
            subprocess.run(prune, env=env, check=False)
        shutil.rmtree(scratch, ignore_errors=True)
    print((args.out / "build.md").read_text())
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())
