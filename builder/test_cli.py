"""`test`: every check of the repository, or the image suites against one image."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from builder import console, proc
from builder.arguments import nonempty
from builder.bake import NoCache
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
from builder.reproduce import prove_reproducible
from builder.suites import known_suites, run_pytest
from builder.test_image import Subject, as_text, commit_receipts, conclude, find, run_suites
from builder.test_image_cli import ONLY_IMAGE, add_image_options, test_one

# What fits one run: the whole cu130 image and the cu128 path without unreachable sources.
IMAGE_TARGETS = ("cu130", "cu128-stand-in")

DESCRIPTION = """\
Run every check: linters, types, drift of generated files, unit tests, engine tests, then for each
image (cu130 and the cu128 stand-in) a build and the image tests. Images are built from this tree;
unchanged ones are reused. cu130 is then built a second time, in another folder with other caches,
and must be the same image to the digest (the layers that are ours; --full: every layer, of both).

  python3 build.py test                 everything
  python3 build.py test --unit          what needs no engine (minutes)
  python3 build.py test --image cu130   build and test one image only
  python3 build.py test --full          also what takes long (ten minutes of load on each image,
                                        the whole second builds)

With IMAGE, nothing is built: the suites look at that image, which is pulled if it is a registry's
and not here. Versions, labels, ABI, files, users, entry point, health and answers of a server on
the CPU take minutes; --suite all adds everything else. The table counts what ran: a skipped test
is no passed one.

  python3 build.py test registry.example/ddtree-appliance@sha256:DIGEST
  python3 build.py test ddtree-appliance:cu130 --suite image/abi --suite image/labels
  python3 build.py test IMAGE --suite all --record      receipts for the README's table of images
  python3 build.py test IMAGE --selftest-receipt FILE   what a self-test on a GPU host wrote
"""


@dataclass(frozen=True)
class Options:
    """What the command line may choose."""

    engine: EngineMode
    offline: bool
    tight: bool
    full: bool
    record: bool


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "test",
        help="run every check, or test one image",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--unit", action="store_true", help="only what needs no engine")
    only.add_argument("--image", choices=IMAGE_TARGETS, help="only one image: build it, test it")
    only.add_argument(
        "reference",
        nargs="?",
        metavar="IMAGE",
        type=nonempty("IMAGE"),
        help="test this image: NAME:TAG, a digest or an id",
    )
    parser.add_argument(
        "--offline", action="store_true", help="no package index: skip tests marked `network`"
    )
    parser.add_argument(
        "--tight",
        action="store_true",
        help="drop each image and the build cache after its tests (disk for one at a time)",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="also the tests marked `full`, which take long (with IMAGE: all suites as well)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="copy the tested image's receipts to images/receipts, for README's table",
    )
    add_image_options(parser)
    add_engine_option(parser)
    parser.set_defaults(handler=_run, usage_error=parser.error)


def _run(args: argparse.Namespace, project: Project) -> int:
    options = Options(args.engine, args.offline, args.tight, args.full, args.record)
    if args.reference:
        return test_one(args, project)
    stray = [name for name in ONLY_IMAGE if getattr(args, name) not in (None, False, [])]
    if stray:
        args.usage_error(f"--{stray[0].replace('_', '-')} needs an IMAGE")
    if not args.image:
        static_checks(project, options)
        unit_tests(project, options)
    if args.unit:
        return 0
    if not args.image:
        _pytest(project, ["tests/builder", "-m", "docker"], "engine tests")
    targets = [t for t in all_targets(project) if t.name in IMAGE_TARGETS]
    if args.image:
        targets = [t for t in targets if t.name == args.image]
    targets.sort(key=lambda t: IMAGE_TARGETS.index(t.name))
    tested = [image_tests(project, target, options) for target in targets]
    # Last: it changes the tree, and whatever is built after that is of no commit.
    for subject in tested if options.record else ():
        commit_receipts(project, subject)
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
    console.info("the documents' tables are current")


def unit_tests(project: Project, options: Options) -> None:
    """Everything that needs neither an engine nor a GPU."""
    marks = "not docker and not gpu" + (" and not network" if options.offline else "")
    _pytest(project, ["tests", "-m", marks], "unit tests")


def image_tests(project: Project, target: Target, options: Options) -> Subject:
    """Build one image, then test it from inside the engine's network."""
    choice = BuildOptions(
        mirrors={},
        wheelhouse=None,
        prefer_base="auto",
        refresh_base=False,
        force=False,
        no_cache="",
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
        try:
            run = run_suites(
                project,
                engine,
                first.reference,
                tuple(known_suites(project)),
                full=options.full,
                target=target.name,
            )
            subject = find(engine, first.reference)
            print(as_text(subject, run))
            conclude(project, engine, subject, run)
            if run.problem:
                raise ChecksFailedError(
                    f"image tests {target.name}: {run.problem}", "the failures are listed above"
                )
            if options.full or target.name == IMAGE_TARGETS[0]:
                anew: NoCache = "all" if options.full else "ours"
                prove_reproducible(project, target, engine, first.reference, anew=anew)
            return subject
        finally:
            if options.tight:
                _drop(project, engine, target, first.reference)


def _drop(project: Project, engine: Engine, target: Target, reference: str) -> None:
    console.info(f"dropping {reference} and the build cache")
    local = f"{target.shared.project.image_name}:{target.name}"
    engine.forget(reference, local)
    engine.client.api.prune_builds(all=True)
    forget_layers(project)


def _pytest(project: Project, arguments: Sequence[str], what: str) -> None:
    code = run_pytest(project, arguments, {})
    if code:
        raise ChecksFailedError(f"{what} (exit {code})", "the failures are listed above")
