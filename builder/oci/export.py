"""An engine's image as an OCI layout below the builder's cache, whole or not at all."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from builder import console
from builder.engine import Engine
from builder.engine.disk import free_gib
from builder.engine.lock import exclusive
from builder.errors import DiskSpaceError, HostFileError, TamperedError
from builder.oci.layout import names_of, open_layout, verify_layout, write_names
from builder.oci.model import ImageLayout
from builder.oci.produce import Produced, SavedStream, find_image, produce
from builder.oci.spool import Spool
from builder.project import Project

# Changes with anything that changes the bytes for the same files: a kept layout is then made anew.
FORMAT = 1
# Layouts that stay: one for each CUDA variant.
KEPT = 2
_GIB = 2**30
# Compressed size over unpacked size, rounded up: 0.43 for the appliance (CUDA 13.0).
_PACKED = 0.5
_MARKER = "export.json"


def export_image(
    project: Project, engine: Engine, reference: str, *, epoch: int, folder: Path | None = None
) -> ImageLayout:
    """The layout of an image; kept below <cache>/oci/ unless `folder` (new or empty) is given.

    `epoch`: seconds; newer times become this one. Raises ImageAbsentError, DiskSpaceError,
    HostFileError, EngineFailedError, TamperedError.
    """
    image_id, size = find_image(engine, reference)
    if folder is not None:
        return _export(engine, reference, image_id, size, epoch, folder)
    place = project.cache / "oci"
    with exclusive(place / "lock", "the folder of exported images"):
        _drop_leftovers(place)
        goal = place / image_id.removeprefix("sha256:")[:16]
        marker = {"format": FORMAT, "image": image_id, "epoch": epoch}
        kept = _kept(goal, marker)
        if kept is None:
            shutil.rmtree(goal, ignore_errors=True)
            _drop_old(place, KEPT - 1)
            _export(engine, reference, image_id, size, epoch, goal, marker)
        else:
            console.info(f"{reference} is exported already: {goal}")
            write_names(goal, kept.manifest, names_of(reference))
        (goal / _MARKER).touch()
    return open_layout(goal)


def measure(engine: Engine, reference: str, *, epoch: int, threads: int | None = None) -> Produced:
    """Everything that an export would have, with no blob written."""
    image_id, size = find_image(engine, reference)
    _check_room(engine, Path(tempfile.gettempdir()), size, packed=0.0)
    with tempfile.TemporaryDirectory(prefix="ddtree-export-") as scratch:
        return produce(
            SavedStream(engine, image_id), epoch=epoch, scratch=Path(scratch), threads=threads
        )


def _export(
    engine: Engine,
    reference: str,
    image_id: str,
    size: int,
    epoch: int,
    goal: Path,
    marker: dict[str, object] | None = None,
) -> ImageLayout:
    with _new_folder(goal) as new:
        _check_room(engine, new, size, packed=_PACKED)
        blobs = new / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        scratch = new / "scratch"
        scratch.mkdir()
        with (
            console.step(f"exporting {reference}"),
            closing(_stream(engine, image_id, size, scratch)) as stream,
        ):
            found = produce(stream, epoch=epoch, scratch=scratch, blobs=blobs)
        scratch.rmdir()
        write_names(new, found.manifest, names_of(reference))
        if marker is not None:
            (new / _MARKER).write_text(json.dumps(marker) + "\n")
    layout = open_layout(goal)
    packed = sum(layer.size for layer in found.layers)
    console.info(
        f"{layout.manifest.digest}: {len(found.layers)} layers, "
        f"{sum(found.plain_sizes) / _GIB:.2f} GiB, {packed / _GIB:.2f} GiB compressed"
    )
    return replace(layout, manifest=found.manifest)


def _stream(engine: Engine, image_id: str, size: int, scratch: Path) -> Spool:
    """While it is kept, the engine holds as much on what may be the same disk; later the layers."""
    return Spool(SavedStream(engine, image_id), scratch, size=size, further=size)


@contextmanager
def _new_folder(goal: Path) -> Iterator[Path]:
    """A folder beside `goal` that takes its place when the block ends well."""
    try:
        if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
            raise HostFileError(f"{goal} exists and is not empty", "name a new folder")
        goal.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=goal.parent))
    except OSError as exc:
        raise HostFileError(
            f"{goal}: {exc.strerror}", "name a folder that can be written"
        ) from None
    try:
        new.chmod(0o755)
        yield new
        new.replace(goal)
    except OSError as exc:
        if exc.errno == errno.ENOSPC:
            raise DiskSpaceError(f"the disk of {goal} is full", "free space there") from None
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _check_room(engine: Engine, place: Path, size: int, *, packed: float) -> None:
    """The layout on its disk, and the engine's own copy on the engine's, before a byte is read."""
    needs: dict[int, list[tuple[Path, float]]] = {}
    wanted = [(place, size * packed / _GIB)]
    info = engine.client.info()
    root = Path(str(info["DockerRootDir"]))
    local = engine.env.get("DOCKER_HOST", "unix://").startswith(("unix://", "http+unix://"))
    if local and root.is_dir() and "containerd" not in json.dumps(info.get("DriverStatus")):
        wanted.append((root, size / _GIB))
    for path, need in wanted:
        needs.setdefault(path.stat().st_dev, []).append((path, need))
    for shared in needs.values():
        need = sum(amount for _, amount in shared)
        free = free_gib(shared[0][0])
        if free < need:
            raise DiskSpaceError(
                f"the export needs {need:.1f} GiB below "
                f"{' and '.join(str(path) for path, _ in shared)}, {free:.1f} GiB are free",
                "free space there (`docker builder prune`, `python3 build.py engine prune`), or "
                "set DDTREE_CACHE to another disk",
            )


def _kept(goal: Path, marker: dict[str, object]) -> ImageLayout | None:
    """The layout if it is the one, with all its blobs there as their digests say: hashing them is
    seconds, and nothing damaged is sent."""
    try:
        if json.loads((goal / _MARKER).read_text()) != marker:
            return None
    except (OSError, ValueError):
        return None
    try:
        return verify_layout(goal)
    except TamperedError as exc:
        console.warn(f"the kept export is damaged and made anew: {exc.what}")
        return None


def _drop_leftovers(place: Path) -> None:
    """Of an export that was cut off."""
    for new in place.glob(".new-*"):
        shutil.rmtree(new, ignore_errors=True)


def _drop_old(place: Path, keep: int) -> None:
    """All but the `keep` layouts used last."""
    found = [path for path in place.iterdir() if path.is_dir()]
    times = {path: _used(path) for path in found}
    for path in sorted(found, key=times.__getitem__, reverse=True)[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def _used(path: Path) -> float:
    try:
        return (path / _MARKER).stat().st_mtime
    except OSError:
        return 0.0
