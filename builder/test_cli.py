"""`test`: every check of the repository, the image tests included."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from builder import console, proc
from builder.documents import check_documents
from builder.engine import Engine, EngineMode, acquire
from builder.engine.cli import add_engine_option
from builder.errors import ChecksFailedError
from builder.layers import REBUILD_GIB, forget_layers
from builder.lock import check_lock
from builder.pins import Target, all_targets
from builder.pipeline import BuildOptions, build, preflight
from builder.project import Project
from builder.render import check_render

# What fits one run: the whole cu130 image and the cu128 path without unreachable sources.
IMAGE_TARGETS = ("cu130", "cu128-stand-in")

IMAGE_TESTS = ("tests/image", "tests/e2e", "tests/deploy")
REPORT = ("--durations=15",)

DESCRIPTION = """\
Run every check: linters, types, drift of generated files, unit tests, engine tests, then for each
image (cu130 and the cu128 stand-in) a build and the image tests. Images are built from this tree;
unchanged ones are reused.

  python build.py test                 everything
  python build.py test --unit          what needs no engine (seconds)
  python build.py test --image cu130   build and test one image only
  python build.py test --full          also what takes long (ten minutes of load on each image)
"""


@dataclass(frozen=True)
class Options:
    """What the command line may choose."""

    engine: EngineMode
    offline: bool
    tight: bool
    full: bool


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "test",
        help="run every check, image tests included",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--unit", action="store_true", help="only what needs no engine")
    only.add_argument("--image", choices=IMAGE_TARGETS, help="only one image: build it, test it")
    parser.add_argument(
        "--offline", action="store_true", help="no package index: skip tests marked `network`"
    )
    parser.add_argument(
        "--tight",
        action="store_true",
        help="drop each image and the build cache after its tests (disk for one at a time)",
    )
    parser.add_argument(
        "--full", action="store_true", help="also the tests marked `full`, which take long"
    )
    add_engine_option(parser)
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace, project: Project) -> int:
    options = Options(engine=args.engine, offline=args.offline, tight=args.tight, full=args.full)
    if not args.image:
        static_checks(project, options)
        unit_tests(project, options)
    if args.unit:
        return 0
    if not args.image:
        _pytest(project, ["tests/builder", "-m", "docker"], {}, "engine tests")
    targets = [t for t in all_targets(project) if t.name in IMAGE_TARGETS]
    if args.image:
        targets = [t for t in targets if t.name == args.image]
    for target in sorted(targets, key=lambda t: IMAGE_TARGETS.index(t.name)):
        image_tests(project, target, options)
    console.info("all checks passed")
    return 0


def static_checks(project: Project, options: Options) -> None:
    """Linters, types, and the generated files against their sources."""
    python = sys.executable
    for argv in (
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [python, "-m", "mypy"],
    ):
        proc.run(
            argv,
            cwd=project.root,
            error=ChecksFailedError,
            what=" ".join(argv[2:]),
            remedy="mend what it names above",
        )
    for target in all_targets(project):
        check_render(project, target)
        check_lock(project, target, offline=options.offline)
        console.info(f"{target.name}: Dockerfile and lock follow from the pins")
    check_documents(project)
    console.info("the documents' tables are what the overlay's code prints")


def unit_tests(project: Project, options: Options) -> None:
    """Everything that needs neither an engine nor a GPU."""
    marks = "not docker and not gpu" + (" and not network" if options.offline else "")
    _pytest(project, ["tests", "-m", marks], {}, "unit tests")


def image_tests(project: Project, target: Target, options: Options) -> None:
    """Build one image, then test it from inside the engine's network."""
    choice = BuildOptions(
        mirrors={},
        wheelhouse=None,
        prefer_base="auto",
        refresh_base=False,
        force=False,
        no_cache=False,
    )
    preflight(project, target, choice)
    with acquire(project, target.shared, options.engine, need_gib=REBUILD_GIB) as engine:
        first = build(project, target, engine, choice)
        with console.step("a second build with no change"):
            again = build(project, target, engine, choice)
        if not again.up_to_date or again.image_id != first.image_id:
            raise ChecksFailedError(
                f"{target.name}: a second build with no change was not a no-op",
                "find the input that differs between two runs: builder/context.py stages them",
            )
        env = {"DDTREE_IMAGE": first.reference, "DDTREE_TARGET": target.name}
        try:
            _pytest(
                project,
                [*IMAGE_TESTS, "-m", "docker" if options.full else "docker and not full", *REPORT],
                env,
                f"image tests {target.name}",
                engine,
            )
        finally:
            if options.tight:
                _drop(project, engine, target, first.reference)


def _drop(project: Project, engine: Engine, target: Target, reference: str) -> None:
    console.info(f"dropping {reference} and the build cache")
    local = f"{target.shared.project.image_name}:{target.name}"
    for name in (reference, local):
        engine.client.images.remove(name, force=True)
    engine.client.api.prune_builds(all=True)
    forget_layers(project)


def _pytest(
    project: Project,
    arguments: Sequence[str],
    env: dict[str, str],
    what: str,
    engine: Engine | None = None,
) -> None:
    argv = [sys.executable, "-m", "pytest", *arguments]
    merged = {**os.environ, **env}
    if engine is not None:
        merged.update(engine.env)
        # Published ports live in the engine's network namespace: so must the tests.
        argv = engine.in_network(*argv)
    merged["PYTHONPATH"] = os.pathsep.join([str(project.root), str(project.overlay / "src")])
    proc.run(
        argv,
        cwd=project.root,
        env=merged,
        error=ChecksFailedError,
        what=what,
        remedy="the failures are listed above",
    )
