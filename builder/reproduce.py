"""Are two builds of one commit one image? If not, which paths differ, and in what.

`snapshot` keeps what identifies an image (some megabytes), so that the first one can be removed
before the second one is built. `second_build` builds again as somebody else would: from another
folder, with an empty cache, with no cached layer.

What the comparison cannot make equal: Debian's archive moves. A base bootstrapped on another day
may hold newer packages; then the build ids differ too (the base is in them), and the message says
so. A base pulled by digest has no such day.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder import console, proc
from builder.bake import NoCache
from builder.engine import Engine
from builder.errors import BuildFailedError, NotReproducibleError, ToolMissingError
from builder.files import write_atomically
from builder.layers import share_layers
from builder.oci.export import measure
from builder.oci.fingerprint import examine
from builder.oci.produce import SavedStream, find_image
from builder.pins import Target
from builder.project import Project

SHOWN = 20
_ABSENT = "absent"


@dataclass(frozen=True)
class Snapshot:
    """What identifies an image. `files`: path to type, mode, owner, content hash, links.

    `identity`: the digest, or the fingerprint of all that decides it; never mixed in a comparison.
    """

    identity: str
    files: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """As JSON."""
        write_atomically(path, json.dumps(asdict(self), sort_keys=True).encode())

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        """Raises OSError, or ValueError for another file."""
        try:
            return cls(**json.loads(path.read_text()))
        except TypeError as exc:
            raise ValueError(f"{path} is no snapshot: {exc}") from None


def snapshot(engine: Engine, reference: str, *, epoch: int, digest: bool) -> Snapshot:
    """Identity, files and configuration of an engine's image, as an export would have them.

    `digest`: find the digest itself, which takes several times as long as its fingerprint.
    """
    if digest:
        found = measure(engine, reference, epoch=epoch)
        return Snapshot(found.manifest.digest, found.files, found.config)
    image_id, _size = find_image(engine, reference)
    return Snapshot(*examine(SavedStream(engine, image_id), epoch=epoch))


def differences(first: Snapshot, second: Snapshot) -> list[str]:
    """One line for each path and each key of the configuration that differs, paths first."""
    paths = sorted(first.files.keys() | second.files.keys())
    lines = [
        f"/{path}: {what}"
        for path in paths
        for what in [_difference(first.files.get(path), second.files.get(path))]
        if what
    ]
    configs = dict(_flat(first.config)), dict(_flat(second.config))
    for key in sorted(configs[0].keys() | configs[1].keys()):
        if key.startswith("rootfs.diff_ids"):
            continue  # follows from the paths
        ours, theirs = (config.get(key, _ABSENT) for config in configs)
        if ours != theirs:
            lines.append(f"configuration {key}: {ours} / {theirs}")
    return lines


def compare(first: Snapshot, second: Snapshot) -> None:
    """Unless both are one image, raises NotReproducibleError with the first paths that differ."""
    if first.identity == second.identity:
        return
    found = differences(first, second)
    if not found:
        found = ["the same files and configuration, packed differently (another builder version?)"]
    base = [line for line in found if ".base: " in line]
    shown = [*base, *(line for line in found if line not in base)][:SHOWN]
    more = f"\n  and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    remedy = "make the step that writes these files depend on its inputs alone"
    if base:
        remedy = "Debian's archive has moved between the builds: build the first one again"
    raise NotReproducibleError(
        f"two builds of one commit differ in {len(found)} places "
        f"({first.identity} / {second.identity}):\n  " + "\n  ".join(shown) + more,
        remedy,
    )


def _difference(ours: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> str:
    if ours is None or theirs is None:
        return "only in the second" if ours is None else "only in the first"
    names = {"sha256": "content", "target": "link", "link": "hard link"}
    found = [
        f"{names.get(key, key)} {_short(ours.get(key))} / {_short(theirs.get(key))}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
    return ", ".join(found)


def _short(value: object) -> str:
    text = _ABSENT if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{prefix}[{number}]")
    else:
        yield prefix, str(value)


def prove_reproducible(
    project: Project, target: Target, engine: Engine, reference: str, *, anew: NoCache
) -> str:
    """Build `target` a second time (second_build) and compare it with the image `reference`.

    Returns what both are: with `anew` all, their digest, else its fingerprint. The second image's
    names are removed. Raises NotReproducibleError, BuildFailedError.
    """
    epoch, digest = target.shared.source_date_epoch, anew == "all"
    name = f"ddtree-second-{target.name}"
    with console.step(f"what identifies {reference}"):
        first = snapshot(engine, reference, epoch=epoch, digest=digest)
    folder = Path(tempfile.mkdtemp(prefix="second-", dir=project.cache))
    try:
        local = second_build(project, target, engine, folder, name=name, anew=anew)
        with console.step(f"what identifies {local}"):
            compare(first, snapshot(engine, local, epoch=epoch, digest=digest))
    finally:
        engine.forget(*engine.names(name))
        shutil.rmtree(folder, ignore_errors=True)
    console.info(f"{target.name}: two builds, one image: {first.identity}")
    return first.identity


# -- the second build ----------------------------------------------------------------------------


def copy_tree(project: Project, to: Path) -> None:
    """The working tree as git sees it, at the same commit, in a new folder.

    Files that differ from the commit, or are new, come along; ignored ones do not. Raises
    ToolMissingError without git or a checkout.
    """
    git = proc.require("git", "install git")
    if not (project.root / ".git").exists():
        raise ToolMissingError(
            f"{project.root} is no git checkout: there is no commit to build twice",
            "clone the repository",
        )
    clone = [git, "clone", "--quiet", "--shared", "--no-checkout", str(project.root), str(to)]
    proc.run(clone, capture=True, error=BuildFailedError, what="the working tree cannot be copied")
    # The index of a fresh clone is empty: without it every file would look deleted, then new.
    proc.run([git, "-C", str(to), "reset", "--quiet"], capture=True, error=BuildFailedError)
    listed = [git, "-C", str(project.root), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, (os.fsdecode(raw) for raw in names)):
        source, copy = project.root / name, to / name
        if source.is_symlink() or source.is_file():  # else deleted, or a submodule
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


def second_build(
    project: Project,
    target: Target,
    engine: Engine,
    folder: Path,
    *,
    name: str,
    anew: NoCache = "all",
    options: Sequence[str] = (),
) -> str:
    """Build the same commit below `folder` (new), with its own cache, as the image `name`.

    Nothing is shared with the first build but the engine and the package index: the base is
    bootstrapped anew, wheels are fetched and SGLang is patched again. `anew`: `all` uses no cached
    layer; `ours` takes the layers of other people's packages from the engine, which is minutes
    faster. `options`: further ones of `build.py build`. Returns the local reference. `folder` is
    the caller's to remove. Raises BuildFailedError.
    """
    tree, cache = folder / "tree", folder / "cache"
    copy_tree(project, tree)
    if anew == "ours":
        share_layers(project, target, cache)
    argv = [sys.executable, "-c", _ENTER, "build", *_selection(target), "--no-cache", anew]
    argv += ["--engine", "existing", "--name", name, "--quiet", *options]
    env = {**engine.env, "DDTREE_CACHE": str(cache), "PYTHONPATH": str(tree)}
    with console.step(f"building {target.name} a second time, in {tree}"):
        proc.run(
            argv,
            cwd=tree,
            env=env,
            error=BuildFailedError,
            what="the second build failed",
            remedy=f"its log is below {cache / 'logs'}",
        )
    return f"{name}:{target.name}"


# Its own build.py would prepare the environment once more, from the same lock.
_ENTER = "import sys; from builder.cli import main; raise SystemExit(main(sys.argv[1:]))"


def _selection(target: Target) -> list[str]:
    return ["--cuda", target.variant, *(["--stand-in"] if target.stand_in else [])]
