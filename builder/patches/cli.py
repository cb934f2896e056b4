"""`build.py patches`: check the series, work on it, write it back."""

from __future__ import annotations

import argparse
from pathlib import Path

from builder import console
from builder.patches.pinning import pin_trees
from builder.patches.scratch import apply_to_scratch, export_from_scratch
from builder.patches.series import load_series
from builder.patches.wheel import check_pins, check_wheel_hash, patch_packages, patched_version
from builder.pins import SharedPins, load_shared
from builder.project import Project
from builder.sources.index import fetch_sglang_wheel

DESCRIPTION = """\
The patches that turn the SGLang wheel of images/pins.toml into ours (ddtree_overlay/patches/).

  python3 build.py patches check               do they apply, is the result the pinned one?
  python3 build.py patches apply /tmp/sglang   a git work tree: the wheel, then one commit a patch
  (edit there, commit or amend)
  python3 build.py patches export /tmp/sglang --pin    write the patches back, pin the new tree

A hunk must fit its exact line and context: no fuzz, no offset.
"""

APPLY = """\
Make DIR (new or empty) a git work tree: one commit with the wheel's packages, tagged ddtree-base,
then one for each patch. Edit, then commit or amend; each commit is one patch. Its message:

  Words of the subject

  Reason: why SGLang itself must be changed
    (more lines are indented)
  Removal: when this can be dropped
"""

EXPORT = """\
Write the commits of DIR after ddtree-base to ddtree_overlay/patches/, byte-identical where nothing
changed, whatever git and configuration you have. Refuses uncommitted changes and commits without
Reason and Removal. Prints the new tree's hash; --pin also writes it to images/pins.toml.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb; handlers are `fn(args, project) -> exit code`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        "patches",
        help="check, edit and export the patches on SGLang",
        description=DESCRIPTION,
        formatter_class=raw,
    )
    verbs = parser.add_subparsers(dest="patches_verb", metavar="VERB", required=True)

    check = verbs.add_parser(
        "check",
        help="apply the series in memory and compare with the pins",
        description="Apply the series to the pinned wheel in memory and compare both file trees "
        "with images/pins.toml. Changes nothing, unless --pin.",
    )
    check.add_argument("--json", action="store_true", help="result as JSON on stdout")
    check.add_argument(
        "--pin",
        action="store_true",
        help="write base_tree and patched_tree to images/pins.toml instead of comparing",
    )
    check.set_defaults(handler=run_check)

    apply = verbs.add_parser(
        "apply",
        help="make DIR a git work tree to edit the series in",
        description=APPLY,
        formatter_class=raw,
    )
    apply.add_argument("directory", metavar="DIR", type=Path)
    apply.add_argument(
        "--partial",
        action="store_true",
        help="leave out patches that no longer apply (after an upstream change), naming them",
    )
    apply.set_defaults(handler=run_apply)

    export = verbs.add_parser(
        "export",
        help="write the commits of DIR back as patches",
        description=EXPORT,
        formatter_class=raw,
    )
    export.add_argument("directory", metavar="DIR", type=Path)
    export.add_argument("--pin", action="store_true", help="write patched_tree to images/pins.toml")
    export.set_defaults(handler=run_export)

    for verb in (check, apply, export):
        verb.add_argument(
            "--wheel",
            type=Path,
            metavar="FILE",
            help="the unpatched wheel, checked against the pin (default: fetched by hash, cached)",
        )


def _base_wheel(args: argparse.Namespace, project: Project, shared: SharedPins) -> Path:
    wheel: Path = args.wheel or fetch_sglang_wheel(project, shared)
    check_wheel_hash(wheel, shared)
    return wheel


def run_check(args: argparse.Namespace, project: Project) -> int:
    """Handler of `check`. Raises the patch, tree and source errors; 0 when all is well."""
    shared = load_shared(project)
    patches = load_series(project.patches)
    made = patch_packages(shared, _base_wheel(args, project, shared), patches)
    pinned: list[str] = []
    if args.pin:
        trees = {"base_tree": made.base_tree, "patched_tree": made.patched_tree}
        pinned = pin_trees(project.images / "pins.toml", trees)
    else:
        check_pins(shared, made)
    version = patched_version(shared.sglang.version, made.patched_tree)
    if args.json:
        console.result_json(
            {
                "version": version,
                "base_tree": made.base_tree,
                "patched_tree": made.patched_tree,
                "pinned": pinned,
                "patches": [
                    {
                        "name": patch.name,
                        "subject": patch.subject,
                        "reason": patch.reason,
                        "removal": patch.removal,
                        "files": [change.path for change in patch.changes],
                    }
                    for patch in patches
                ],
            }
        )
        return 0
    for patch in patches:
        print(f"{patch.name}: {patch.subject}")
    _print_trees(made.base_tree, made.patched_tree, version)
    _print_pinned(pinned)
    return 0


def run_apply(args: argparse.Namespace, project: Project) -> int:
    """Handler of `apply`."""
    shared = load_shared(project)
    wheel = _base_wheel(args, project, shared)
    left_out = apply_to_scratch(project, shared, wheel, args.directory, partial=args.partial)
    print(f"{args.directory}: edit, commit or amend, then `patches export {args.directory} --pin`")
    for name in left_out:
        print(f"left out: {name}; redo it as a commit, its header is in ddtree_overlay/patches/")
    return 0


def run_export(args: argparse.Namespace, project: Project) -> int:
    """Handler of `export`."""
    shared = load_shared(project)
    wheel = _base_wheel(args, project, shared)
    done = export_from_scratch(project, shared, wheel, args.directory)
    for name in done.changed:
        print(f"written: {name}")
    for name in done.removed:
        print(f"removed: {name}")
    if not (done.changed or done.removed):
        print(f"{len(done.patches)} patches, nothing changed")
    version = patched_version(shared.sglang.version, done.patched_tree)
    _print_trees(done.base_tree, done.patched_tree, version)
    if args.pin:
        pins = project.images / "pins.toml"
        _print_pinned(pin_trees(pins, {"patched_tree": done.patched_tree}))
    elif done.patched_tree != shared.sglang.patched_tree:
        print("images/pins.toml pins another patched_tree: export with --pin")
    return 0


def _print_trees(base: str, patched: str, version: str) -> None:
    print(f"base_tree    {base}\npatched_tree {patched}\nversion      {version}")


def _print_pinned(keys: list[str]) -> None:
    print(f"images/pins.toml: {'written: ' + ', '.join(keys) if keys else 'already says so'}")
