"""`build`, the default verb."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from builder import console
from builder.engine import acquire
from builder.engine.cli import add_engine_option
from builder.engine.lock import exclusive
from builder.layers import REBUILD_GIB
from builder.pins import Target
from builder.pipeline import BuildOptions, build, preflight
from builder.project import Project
from builder.result import BuildResult, as_json
from builder.sources.cli import add_source_options, chosen_mirrors
from builder.target_options import add_target_options, chosen_targets

DESCRIPTION = """\
Build one appliance image: check the inputs, start an engine if none answers, build, audit the
result's file system, label it with what was observed there, and run it once. An image whose audit
or proof fails never gets its name.

  python3 build.py --cuda cu130
  python3 build.py --cuda cu128 --wheelhouse /media/wheels
  python3 build.py --cuda cu128 --stand-in --engine private
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "build",
        help="build, audit, label and prove an image (the default verb)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target_options(parser)
    add_engine_option(parser)
    add_source_options(parser)
    parser.add_argument(
        "--base",
        choices=("auto", "registry", "bootstrap"),
        default="auto",
        help="where Debian comes from: pulled by digest, or bootstrapped from Debian's packages "
        "(auto: the registry if it answers)",
    )
    parser.add_argument(
        "--refresh-base", action="store_true", help="bootstrap the base anew (Debian's updates)"
    )
    parser.add_argument(
        "--force", action="store_true", help="build even if no input changed (caches are used)"
    )
    parser.add_argument(
        "--no-cache",
        nargs="?",
        choices=("all", "ours"),
        const="all",
        help="use no cached layer; `ours`: build SGLang's and the overlay's layers and the audit "
        "anew, on the dependencies that are there",
    )
    parser.add_argument(
        "--name",
        type=image_name,
        help="another name for the image than the pins' (a second build beside the first)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.set_defaults(handler=_run)


def image_name(text: str) -> str:
    """A local repository name. Raises argparse's error for anything else."""
    if not re.fullmatch(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of an image")
    return text


def _run(args: argparse.Namespace, project: Project) -> int:
    console.set_quiet(args.quiet)
    wheelhouse: Path | None = args.wheelhouse
    options = BuildOptions(
        mirrors=chosen_mirrors(args),
        wheelhouse=wheelhouse.resolve() if wheelhouse else None,
        prefer_base=args.base,
        refresh_base=args.refresh_base,
        force=args.force,
        no_cache=args.no_cache or "",
        name=args.name or "",
    )
    (target,) = chosen_targets(args, project)
    preflight(project, target, options)
    # Two builds of one target share its staged context and its report.
    lock = project.cache / "locks" / target.name
    with (
        exclusive(lock, f"the build folder for {target.name}"),
        acquire(project, target.shared, args.engine, need_gib=REBUILD_GIB) as engine,
    ):
        result = build(project, target, engine, options)
        private = engine.kind == "private"
    if args.json:
        console.result_json(as_json(result))
    else:
        print(summary(target, result, private=private))
    return 0


def summary(target: Target, result: BuildResult, *, private: bool) -> str:
    """What a person needs after a build: the name, the size, how to run it."""
    local = f"{result.reference.partition(':')[0]}:{target.name}"
    run = f"docker run --rm {local} version"
    if private:
        run = f"python3 build.py engine exec -- {run}"
    state = "up to date" if result.up_to_date else "built, audited and run"
    lines = [
        f"{result.reference}: {state} in {result.seconds:.1f} s",
        f"  id     {result.image_id}",
        f"  size   {result.size_bytes / 2**30:.2f} GiB",
        f"  base   {result.base}",
        f"  run    {run}",
    ]
    if private:
        lines.append("  The image lies in the private engine, which is stopped when idle.")
    if target.stand_in:
        lines.append(f"  Stand-in: {target.stand_in_reason}. Its `serve` refuses a GPU.")
    return "\n".join(lines)
