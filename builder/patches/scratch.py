"""A git work tree to edit the series in: `apply` makes it, `export` turns it back into patches.

The base commit is the wheel's packages, then one commit for each patch. A commit's message is a
patch's header: Subject, a blank line, Reason and Removal.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder import console
from builder.errors import PatchDriftError, PatchSeriesError, TreeHashError
from builder.files import write_atomically
from builder.patches.apply import apply_patch, apply_series
from builder.patches.archive import read_wheel
from builder.patches.diff import canonical_diff
from builder.patches.git import Git
from builder.patches.series import (
    SERIES,
    Patch,
    format_header,
    format_why,
    load_series,
    parse_header,
    parse_patch,
    patch_name,
    series_names,
)
from builder.patches.treehash import Tree, TreeFile, hash_tree, write_tree
from builder.patches.wheel import REPIN
from builder.pins import SharedPins
from builder.project import Project

BASE_TAG = "ddtree-base"
_AMEND = "`git commit --amend` (or rebase -i): Subject, a blank line, `Reason: ...`, `Removal: ...`"


@dataclass(frozen=True)
class Exported:
    """What an export did: names of patch files, and the hash to pin."""

    patches: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    base_tree: str
    patched_tree: str


def apply_to_scratch(
    project: Project, shared: SharedPins, base_wheel: Path, folder: Path, *, partial: bool = False
) -> list[str]:
    """Make `folder` a git work tree of the base with one commit for each patch.

    `folder` must not exist or be empty. Everything is checked in memory first. With `partial`
    patches that do not apply are left out; their names are returned.
    """
    git = Git(folder, shared.source_date_epoch)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PatchSeriesError(f"{folder}: exists and is not an empty folder", "name a new folder")
    patches = load_series(project.patches)
    tree = _pinned_base(shared, base_wheel)
    steps, left_out = _steps(tree, patches, partial=partial)
    with _made_whole(folder), console.step(f"writing {len(steps)} commits to {folder}"):
        git.init()
        write_tree(tree, folder)
        git.commit_all(f"SGLang {shared.sglang.version}, the wheel's packages\n")
        git("tag", BASE_TAG)
        for patch, after in steps:
            _update(folder, tree, after)
            why = format_why(patch.reason, patch.removal)
            git.commit_all(f"{patch.subject}\n\n{why}")
            tree = after
    return left_out


def export_from_scratch(
    project: Project, shared: SharedPins, base_wheel: Path, folder: Path
) -> Exported:
    """Regenerate patch files and series from the commits after the base.

    Refuses (PatchSeriesError) uncommitted changes, merges, commits without Reason or Removal,
    and a series that does not reproduce the work tree from the pinned wheel. Writes nothing then.
    """
    git = Git(folder)
    if not (folder / ".git").exists():
        raise PatchSeriesError(
            f"{folder}: not a scratch tree", "make one with `python3 build.py patches apply DIR`"
        )
    git("rev-parse", "--verify", "--quiet", f"{BASE_TAG}^{{commit}}")
    dirty = git("status", "--porcelain", "--untracked-files=all").splitlines()
    if dirty:
        more = f" and {len(dirty) - 1} more" if len(dirty) > 1 else ""
        raise PatchSeriesError(
            f"{folder}: uncommitted changes: {dirty[0][3:]}{more}",
            "commit them (`git commit --amend` or a new commit with Reason and Removal)",
        )
    texts = dict(_patch_texts(git))
    patches = [parse_patch(name, text) for name, text in texts.items()]
    base = _pinned_base(shared, base_wheel)
    patched = apply_series(base, patches)
    patched_tree = hash_tree(patched)
    if patched_tree != hash_tree(_work_tree(git, folder)):
        raise PatchSeriesError(
            f"{folder}: its commits do not lead from the pinned wheel to its files",
            "keep mode bits; make the scratch tree anew with `python3 build.py patches apply DIR`",
        )
    changed, removed = _write(project.patches, texts)
    return Exported(tuple(texts), changed, removed, hash_tree(base), patched_tree)


@contextmanager
def _made_whole(folder: Path) -> Iterator[None]:
    """Make `folder`, and empty it again when filling it fails or is interrupted."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as exc:
        for path in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if isinstance(exc, OSError):
            raise PatchSeriesError(f"{folder}: {exc.strerror}", "name another folder") from None
        raise


def _pinned_base(shared: SharedPins, base_wheel: Path) -> Tree:
    tree = read_wheel(base_wheel).packages
    found = hash_tree(tree)
    if found != shared.sglang.base_tree:
        raise TreeHashError(
            f"sglang.base_tree: the wheel's packages hash to {found}, images/pins.toml says "
            f"{shared.sglang.base_tree}",
            REPIN,
        )
    return tree


def _steps(
    tree: Tree, patches: Sequence[Patch], *, partial: bool
) -> tuple[list[tuple[Patch, Tree]], list[str]]:
    steps: list[tuple[Patch, Tree]] = []
    left_out = []
    for patch in patches:
        try:
            tree = apply_patch(tree, patch)
        except PatchDriftError as exc:
            if not partial:
                raise
            console.warn(f"left out: {exc.what}")
            left_out.append(patch.name)
            continue
        steps.append((patch, tree))
    return steps, left_out


def _update(folder: Path, before: Tree, after: Tree) -> None:
    for name in before.keys() - after.keys():
        (folder / name).unlink()
    write_tree({n: f for n, f in after.items() if before.get(n) != f}, folder)


def _patch_texts(git: Git) -> list[tuple[str, str]]:
    listing = git("rev-list", "--reverse", "--parents", f"{BASE_TAG}..HEAD")
    base = git("rev-parse", f"{BASE_TAG}^{{commit}}").strip()
    texts = []
    parent = base
    for number, line in enumerate(listing.splitlines(), start=1):
        commit, *parents = line.split()
        if parents != [parent]:
            raise PatchSeriesError(
                f"commit {commit[:10]}: the commits after {BASE_TAG} are not one line",
                f"`git rebase {BASE_TAG}`: no merges",
            )
        header = _header_of(git, commit)
        diff = git.diff(parent, commit).decode("utf-8", "surrogateescape")
        text = f"{format_header(**header)}\n{canonical_diff(diff)}"
        texts.append((patch_name(number, header["subject"]), text))
        parent = commit
    return texts


def _header_of(git: Git, commit: str) -> dict[str, str]:
    message = git("log", "-1", "--encoding=UTF-8", "--format=%B", commit).rstrip("\n")
    subject, _, body = message.partition("\n")
    lines = [f"Subject: {subject}", *body.removeprefix("\n").split("\n")]
    if not body:
        lines = lines[:1]
    try:
        fields = parse_header(f"commit {commit[:10]} ({subject[:40]})", lines)
    except PatchSeriesError as exc:
        raise PatchSeriesError(exc.what, _AMEND) from None
    return {key.lower(): value for key, value in fields.items()}


def _work_tree(git: Git, folder: Path) -> Tree:
    tree = {}
    for name in filter(None, git("ls-files", "-z").split("\0")):
        path = folder / name
        tree[name] = TreeFile(path.read_bytes(), bool(path.stat().st_mode & 0o111))
    return tree


def _write(folder: Path, texts: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    old = series_names(folder)
    changed = []
    for name, text in texts.items():
        data = text.encode("utf-8", "surrogateescape")
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            write_atomically(path, data)
            changed.append(name)
    if old != list(texts):
        intro = []
        for line in (folder / SERIES).read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                break
            intro.append(line)
        write_atomically(folder / SERIES, "\n".join([*intro, *texts, ""]).encode())
        changed.append(SERIES)
    removed = sorted({path.name for path in folder.glob("*.patch")} - set(texts))
    for name in removed:
        (folder / name).unlink()
    return tuple(changed), tuple(removed)
