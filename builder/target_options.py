"""The --cuda/--stand-in pair, the same on every verb that names an image."""

from __future__ import annotations

import argparse

from builder.pins import Target, all_targets, load_target
from builder.project import Project


def add_target_options(parser: argparse.ArgumentParser, *, allow_all: bool = False) -> None:
    """`--cuda cu128|cu130` (with `all` where it makes sense) and `--stand-in`."""
    extra = ", or all (the default)" if allow_all else ""
    parser.add_argument(
        "--cuda",
        metavar="VARIANT",
        required=not allow_all,
        default="all" if allow_all else None,
        help=f"CUDA variant: cu128 or cu130{extra}",
    )
    parser.set_defaults(allow_all=allow_all)
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="the variant's code path from PyPI alone (cu128): for tests, never for a GPU",
    )


def chosen_targets(args: argparse.Namespace, project: Project) -> list[Target]:
    """What the options name. Raises UnknownVariantError and the pin errors."""
    if args.cuda == "all" and args.allow_all:
        targets = all_targets(project)
        return [t for t in targets if t.stand_in] if args.stand_in else targets
    return [load_target(project, args.cuda, stand_in=args.stand_in)]
