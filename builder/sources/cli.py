"""`build.py fetch`: fill a wheelhouse; and the source options that `build` shares."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from builder import console
from builder.arguments import path
from builder.project import Project
from builder.sources.artifacts import check_sources
from builder.sources.mirrors import ENVIRONMENT, parse_mirrors
from builder.sources.wheelhouse import fill
from builder.target_options import add_target_options, chosen_targets


def add_mirror_option(parser: argparse.ArgumentParser) -> None:
    """--mirror, repeatable."""
    parser.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="PREFIX=URL",
        help="fetch pinned files whose address begins with PREFIX from URL instead; hashes still "
        f"hold; repeatable; also ${ENVIRONMENT} (space separated)",
    )


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """--mirror and --wheelhouse, for verbs that take files from outside."""
    add_mirror_option(parser)
    parser.add_argument(
        "--wheelhouse",
        type=path("--wheelhouse"),
        metavar="DIR",
        help="take every file from DIR, filled by `build.py fetch`; no package index is asked",
    )


def chosen_mirrors(args: argparse.Namespace) -> dict[str, str]:
    """Prefix -> URL from the environment and the options. Raises MirrorOptionError."""
    return parse_mirrors(args.mirror)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb; the handler is `fn(args, project) -> exit code`."""
    parser = subparsers.add_parser(
        "fetch",
        help="fill a wheelhouse for a build without a network",
        description="Fetch every file that a build of the variant needs into a folder: wheels "
        "of the lock, SGLang, tools, and the pinned files that no index carries. Files that are "
        "there and good are kept; run it again to resume. Copy the folder anywhere and build "
        "from it with --wheelhouse. The base image is not part of it.",
    )
    add_target_options(parser)
    add_mirror_option(parser)
    parser.add_argument(
        "--to", type=path("--to"), required=True, metavar="DIR", help="the folder to fill"
    )
    parser.add_argument("--json", action="store_true", help="result as JSON on stdout")
    parser.set_defaults(handler=run_fetch)


def run_fetch(args: argparse.Namespace, project: Project) -> int:
    """Handler of the verb. Raises the source and lock errors; 0 when the folder is complete."""
    mirrors = chosen_mirrors(args)
    dest: Path = args.to.resolve()
    results = []
    for target in chosen_targets(args, project):
        check_sources(target, mirrors, dest, project=project)
        results.append(fill(project, target, dest, mirrors))
        size = results[-1].bytes / 2**30
        console.info(f"{dest}: {target.name} complete, {results[-1].files} files, {size:.2f} GiB")
    if args.json:
        console.result_json({"to": str(dest), "targets": [asdict(result) for result in results]})
    return 0
