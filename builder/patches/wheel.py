"""The SGLang wheel of our own version: base by hash, patched, stamped, repacked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from builder import console
from builder.errors import HashMismatchError, PatchDriftError, TreeHashError, WheelhouseError
from builder.files import sha256_file, write_atomically
from builder.patches.apply import apply_series
from builder.patches.archive import Wheel, read_wheel, write_wheel
from builder.patches.series import Patch, format_header, load_series
from builder.patches.treehash import Tree, TreeFile, hash_tree
from builder.pins import SharedPins
from builder.project import Project

VERSION_FILE = "sglang/_version.py"
PATCH_LIST = "ddtree-patches.json"  # in the wheel's .dist-info
_FORMAT = 1  # raise it when the same inputs give another wheel
REPIN = "if the change is meant: `python3 build.py patches check --pin`"


@dataclass(frozen=True)
class PatchNote:
    """What a wheel says about one of its patches."""

    name: str
    subject: str
    reason: str
    removal: str


@dataclass(frozen=True)
class PatchedWheel:
    """A finished wheel; the tree hashes are those of its packages before the version stamp."""

    path: Path
    version: str
    base_tree: str
    patched_tree: str
    patches: tuple[PatchNote, ...]


@dataclass(frozen=True)
class PatchedTree:
    """The base wheel and its packages after the series, not yet written anywhere."""

    base: Wheel
    packages: Tree
    base_tree: str
    patched_tree: str


def build_patched_wheel(
    project: Project, shared: SharedPins, base_wheel: Path, out_dir: Path
) -> PatchedWheel:
    """The patched wheel below `out_dir`, from there if the same inputs made one before.

    Raises WheelhouseError (no such wheel), HashMismatchError (not the pinned wheel), TreeHashError
    (base or patched tree), PatchSeriesError and PatchDriftError. Nothing is written before all
    checks have passed.
    """
    check_wheel_hash(base_wheel, shared)
    patches = load_series(project.patches)
    version = patched_version(shared.sglang.version, shared.sglang.patched_tree)
    notes = tuple(PatchNote(p.name, p.subject, p.reason, p.removal) for p in patches)
    folder = out_dir / _cache_key(shared, patches)
    name = base_wheel.name.replace(f"-{shared.sglang.version}-", f"-{version}-", 1)
    path = folder / name
    if not _intact(path):
        made = patch_packages(shared, base_wheel, patches)
        check_pins(shared, made)
        with console.step(f"repacking sglang {version}"):
            stamped = _stamp(made, name, shared.sglang.version, version, notes)
            path = write_wheel(stamped, folder, shared.source_date_epoch)
            _seal(path)
    sglang = shared.sglang
    return PatchedWheel(path, version, sglang.base_tree, sglang.patched_tree, notes)


def check_wheel_hash(wheel: Path, shared: SharedPins) -> None:
    """Raises WheelhouseError when there is no such file, HashMismatchError when it is another."""
    if not wheel.is_file():
        raise WheelhouseError(
            f"{wheel}: no such wheel", "leave --wheel/--wheelhouse out, or fill the wheelhouse"
        )
    found = sha256_file(wheel)
    if found != shared.sglang.sha256:
        raise HashMismatchError(
            f"{wheel.name}: sha256 {found}, pinned {shared.sglang.sha256}",
            "delete it and fetch it anew; to change the pin see CONTRIBUTING.md, 'Bump a pin'",
        )


def patch_packages(shared: SharedPins, base_wheel: Path, patches: Sequence[Patch]) -> PatchedTree:
    """Read the base wheel and apply the series in memory; hashes are computed, not compared."""
    base = read_wheel(base_wheel)
    base_tree = hash_tree(base.packages)
    packages = apply_series(base.packages, patches)
    return PatchedTree(base, packages, base_tree, hash_tree(packages))


def check_pins(shared: SharedPins, made: PatchedTree) -> None:
    """Compare both trees with the pins. Raises TreeHashError naming found and pinned."""
    for key, what, found, pinned in (
        ("base_tree", "the wheel's packages", made.base_tree, shared.sglang.base_tree),
        ("patched_tree", "the patched packages", made.patched_tree, shared.sglang.patched_tree),
    ):
        if found != pinned:
            raise TreeHashError(
                f"sglang.{key}: {what} hash to {found}, images/pins.toml says {pinned}", REPIN
            )


def patched_version(base: str, patched_tree: str) -> str:
    """`0.5.17+ddtree.<first 8 hex digits of the patched tree>`."""
    tree8 = patched_tree[:8]
    # PEP 440 drops leading zeros of an all-digit segment: write it as installers will.
    return f"{base}+ddtree.{int(tree8) if tree8.isdigit() else tree8}"


def _stamp(made: PatchedTree, name: str, old: str, new: str, notes: tuple[PatchNote, ...]) -> Wheel:
    packages = dict(made.packages)
    packages[VERSION_FILE] = _stamp_version_file(packages.get(VERSION_FILE), old, new)
    metadata = dict(made.base.metadata)
    metadata["METADATA"] = _stamp_metadata(metadata.get("METADATA"), old, new)
    listing = {
        "base_tree": made.base_tree,
        "patched_tree": made.patched_tree,
        "version_stamped_in": [VERSION_FILE],
        "patches": [asdict(note) for note in notes],
    }
    metadata[PATCH_LIST] = TreeFile((json.dumps(listing, indent=2, sort_keys=True) + "\n").encode())
    dist_info = made.base.dist_info.replace(f"-{old}.", f"-{new}.", 1)
    return replace(made.base, name=name, dist_info=dist_info, packages=packages, metadata=metadata)


def _stamp_version_file(file: TreeFile | None, old: str, new: str) -> TreeFile:
    local = new.partition("+")[2]
    text = file.data.decode() if file else ""
    text, versions = re.subn(
        rf"^(__version__ = version = )'{re.escape(old)}'$", rf"\g<1>'{new}'", text, flags=re.M
    )
    text, tuples = re.subn(
        r"^(__version_tuple__ = version_tuple = \([^()'\n]*)\)$",
        rf"\g<1>, '{local}')",
        text,
        flags=re.M,
    )
    if file is None or versions != 1 or tuples != 1:
        raise PatchDriftError(
            f"{VERSION_FILE}: does not state version {old} as setuptools-scm writes it",
            "see what `sglang.__version__` comes from now, and adapt builder/patches/wheel.py",
        )
    return replace(file, data=text.encode())


def _stamp_metadata(file: TreeFile | None, old: str, new: str) -> TreeFile:
    header, blank, body = (file.data if file else b"").partition(b"\n\n")
    header, count = re.subn(
        rb"^Version: " + re.escape(old.encode()) + rb"$",
        b"Version: " + new.encode(),
        header,
        flags=re.M,
    )
    if file is None or count != 1:
        raise PatchDriftError(
            f"METADATA: no single `Version: {old}`", "the wheel is not of the pinned version"
        )
    return replace(file, data=header + blank + body)


def _cache_key(shared: SharedPins, patches: Sequence[Patch]) -> str:
    digest = hashlib.sha256()
    head = [_FORMAT, shared.source_date_epoch, *shared.sglang.model_dump().values()]
    digest.update(json.dumps(head).encode())
    for patch in patches:
        text = format_header(patch.subject, patch.reason, patch.removal) + "\n" + patch.diff
        digest.update(f"\0{patch.name}\0{text}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _seal_file(wheel: Path) -> Path:
    return wheel.with_name(wheel.name + ".sha256")


def _seal(wheel: Path) -> None:
    line = f"{sha256_file(wheel)}  {wheel.name}\n"
    write_atomically(_seal_file(wheel), line.encode())


def _intact(wheel: Path) -> bool:
    """Whether an earlier run finished this wheel and nothing happened to it since."""
    try:
        sealed = _seal_file(wheel).read_text().split()
        return bool(sealed) and sealed[0] == sha256_file(wheel)
    except OSError:
        return False
