"""Writing a bundle, whole or not at all, as a folder or as one tar."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from builder import console
from builder.bundle.model import Entry
from builder.errors import BundleError, DiskSpaceError
from builder.files import CHUNK

_GIB = 2**30
_SAY_BYTES = _GIB // 2  # one progress line for each
_SLACK_BYTES = 16 * 2**20
_ARCHIVES = (".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".zip")


def is_tar(destination: Path) -> bool:
    """A name with `.tar` is one file, any other a folder."""
    return destination.suffix == ".tar"


def check_destination(destination: Path) -> None:
    """Raises BundleError where something would be overwritten or nothing can be written."""
    if destination.name.endswith(_ARCHIVES):
        raise BundleError(
            f"{destination.name}: a bundle is not compressed again, its layers are",
            "name FILE.tar, or a folder",
        )
    taken = destination.is_symlink() or destination.exists()
    if taken and (is_tar(destination) or not destination.is_dir() or any(destination.iterdir())):
        full = not is_tar(destination) and destination.is_dir()
        raise BundleError(
            f"{destination} {'is not empty' if full else 'exists already'}",
            "remove it or name another place; nothing is replaced",
        )
    parent = destination.parent
    if not parent.exists():
        raise BundleError(f"{parent} does not exist", "make that folder, or name another place")
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise BundleError(
            f"nothing can be written in {parent}", "check its owner and mode, or name another place"
        )


def check_room(destination: Path, need_bytes: int) -> None:
    """Raises DiskSpaceError, stating need and room."""
    free = shutil.disk_usage(destination.parent).free
    if free < need_bytes + _SLACK_BYTES:
        raise DiskSpaceError(
            f"the bundle needs {need_bytes / _GIB:.2f} GiB in {destination.parent}, "
            f"{free / _GIB:.2f} GiB are free",
            "free space there, or name another place by --to",
        )


def write_bundle(entries: Sequence[Entry], destination: Path, *, top: str, epoch: int) -> None:
    """Write all entries, or leave nothing.

    A folder gets them directly; in a tar they lie below the folder `top`, sorted, owned by 0:0,
    at `epoch` seconds: equal entries give equal bytes. The caller holds a lock on the destination.
    Raises DiskSpaceError, BundleError, TamperedError, OSError.
    """
    check_destination(destination)
    check_room(destination, sum(entry.size for entry in entries))
    ordered = sorted(entries, key=lambda entry: entry.path)
    # Beside it, so that the last step is a rename; derived, so that a killed run's is replaced.
    new = destination.with_name(f".{destination.name}.ddtree-new")
    _remove(new)
    try:
        with _explained(destination):
            if is_tar(destination):
                with new.open("xb") as stream:
                    _write_tar(ordered, stream, top, epoch)
                    _flush(stream)
            else:
                _write_folder(ordered, new, epoch)
            new.rename(destination)
            _flush_folder(destination.parent)
    except BaseException:
        _remove(new)
        raise


@contextmanager
def _explained(destination: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno == errno.ENOSPC:
            raise DiskSpaceError(
                f"no room is left where {destination} was to be",
                "free space there, or name another place by --to; nothing was left behind",
            ) from None
        if exc.errno == errno.EFBIG:
            raise BundleError(
                f"the file system of {destination} takes no file of this size",
                "name a folder instead of a tar: its largest file is a layer of the image",
            ) from None
        raise


def _write_folder(entries: Sequence[Entry], folder: Path, epoch: int) -> None:
    folder.mkdir()
    for entry, chunks in _with_progress(entries):
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            for chunk in chunks:
                stream.write(chunk)
            _flush(stream)
        path.chmod(entry.mode)
        os.utime(path, (epoch, epoch))
    for name, _, _ in os.walk(folder, topdown=False):
        _flush_folder(Path(name))


def _write_tar(entries: Sequence[Entry], stream: BinaryIO, top: str, epoch: int) -> None:
    # POSIX ustar: no header of it holds anything but what is set here.
    with tarfile.TarFile(
        fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT, copybufsize=CHUNK
    ) as tar:
        folders: set[str] = set()
        for entry, chunks in _with_progress(entries):
            path = f"{top}/{entry.path}"
            for parent in reversed(Path(path).parents):
                if parent != Path() and str(parent) not in folders:
                    folders.add(str(parent))
                    tar.addfile(_member(str(parent), epoch, folder=True))
            member = _member(path, epoch)
            member.size, member.mode = entry.size, entry.mode
            tar.addfile(member, _Stream(chunks))


def _member(path: str, epoch: int, *, folder: bool = False) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mtime = epoch
    member.mode = 0o755
    member.type = tarfile.DIRTYPE if folder else tarfile.REGTYPE
    return member


class _Stream:
    """What tarfile reads from; it ends where the chunks do, so that their check is not missed."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes while there are as many."""
        parts, have = [self._rest], len(self._rest)
        while have < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]


def _with_progress(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Iterator[bytes]]]:
    """Each entry with its bytes; a line now and then, and the check at the end of each."""
    total = sum(entry.size for entry in entries)
    done = said = 0

    for entry in entries:
        source = entry.chunks()

        def counted(source: Iterator[bytes] = source) -> Iterator[bytes]:
            nonlocal done, said
            for chunk in source:
                done += len(chunk)
                if done - said >= _SAY_BYTES:
                    said = done
                    console.info(f"  {done / _GIB:.1f} of {total / _GIB:.1f} GiB")
                yield chunk

        chunks = counted()
        yield entry, chunks
        # tarfile stops at the announced size: what comes after it must be the end.
        for _ in chunks:
            pass


def _flush(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # file systems of media that know no such thing
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
