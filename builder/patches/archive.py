"""Wheels as archives: read one whole and verified, write one the same way every time."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from builder.errors import TreeHashError
from builder.patches.treehash import Tree, TreeFile

_REGULAR = 0o100000
_UNIX = 3
_FETCH_ANEW = "delete the file and fetch it anew"


@dataclass(frozen=True)
class Wheel:
    """A wheel's content: the packages' files, and apart from them its metadata."""

    name: str  # file name of the archive
    dist_info: str  # name of the metadata folder
    packages: Tree
    metadata: Tree  # keys without the folder, RECORD left out: it follows from the rest


def read_wheel(path: Path) -> Wheel:
    """Read a wheel and verify it against its own RECORD.

    Raises TreeHashError for a member that leaves the tree, appears twice, is not in RECORD or is
    not what RECORD says, and for a RECORD entry without a member.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            files = _members(path.name, archive)
    except (OSError, zipfile.BadZipFile) as exc:
        raise TreeHashError(f"{path.name}: not a readable wheel: {exc}", _FETCH_ANEW) from None
    records = [name for name in files if name.endswith(".dist-info/RECORD")]
    if len(records) != 1 or records[0].count("/") != 1:
        raise TreeHashError(f"{path.name}: no single .dist-info/RECORD", _FETCH_ANEW)
    dist_info = records[0].split("/")[0]
    record = files.pop(records[0]).data
    _verify_record(path.name, record, records[0], files)
    inside = dist_info + "/"
    return Wheel(
        name=path.name,
        dist_info=dist_info,
        packages={n: f for n, f in files.items() if not n.startswith(inside)},
        metadata={n.removeprefix(inside): f for n, f in files.items() if n.startswith(inside)},
    )


def write_wheel(wheel: Wheel, folder: Path, epoch: int) -> Path:
    """Write `folder`/`wheel.name` with a new RECORD; returns its path.

    Bytes depend only on `wheel` and `epoch` (seconds since 1970, UTC): stored, sorted, fixed
    times and modes, RECORD last. The file appears whole or not at all.
    """
    inside = wheel.dist_info + "/"
    files = dict(wheel.packages)
    files.update({inside + name: file for name, file in wheel.metadata.items()})
    record_name = inside + "RECORD"
    record = TreeFile(_record(files, record_name))
    members = [*sorted(files.items()), (record_name, record)]
    folder.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=folder, prefix=".part-")
    try:
        with (
            os.fdopen(handle, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive,
        ):
            for name, file in members:
                archive.writestr(_info(name, file, epoch), file.data)
        Path(part).chmod(0o644)
        return Path(part).replace(folder / wheel.name)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _members(wheel: str, archive: zipfile.ZipFile) -> dict[str, TreeFile]:
    files: dict[str, TreeFile] = {}
    for info in archive.infolist():
        if info.is_dir():
            continue
        name = info.filename
        parts = name.split("/")
        if "\\" in name or name.startswith("/") or any(p in ("", ".", "..") for p in parts):
            raise TreeHashError(f"{wheel}: member {name!r} leaves the tree", _FETCH_ANEW)
        if name in files:
            raise TreeHashError(f"{wheel}: member {name} is there twice", _FETCH_ANEW)
        mode = info.external_attr >> 16
        if mode & 0o170000 not in (0, _REGULAR):
            raise TreeHashError(f"{wheel}: member {name} is not a plain file", _FETCH_ANEW)
        files[name] = TreeFile(archive.read(info), bool(mode & 0o111))
    return files


def _verify_record(wheel: str, record: bytes, record_name: str, files: Tree) -> None:
    rows = {row[0]: row for row in csv.reader(io.StringIO(record.decode("utf-8"))) if row}
    rows.pop(record_name, None)
    listed, present = set(rows), set(files)
    if listed != present:
        odd = sorted(listed ^ present)[0]
        side = "in RECORD but not in the wheel" if odd in listed else "in the wheel, not in RECORD"
        raise TreeHashError(f"{wheel}: {odd} is {side}", _FETCH_ANEW)
    for name, file in files.items():
        if rows[name][1:] != [_record_hash(file.data), str(len(file.data))]:
            raise TreeHashError(f"{wheel}: {name} is not what RECORD says", _FETCH_ANEW)


def _record(files: Tree, record_name: str) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for name, file in sorted(files.items()):
        writer.writerow([name, _record_hash(file.data), len(file.data)])
    writer.writerow([record_name, "", ""])
    return out.getvalue().encode("utf-8")


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def _info(name: str, file: TreeFile, epoch: int) -> zipfile.ZipInfo:
    moment = time.gmtime(epoch)
    info = zipfile.ZipInfo(name, moment[:6])
    info.create_system = _UNIX
    info.external_attr = (_REGULAR | (0o755 if file.executable else 0o644)) << 16
    info.compress_type = zipfile.ZIP_STORED
    return info
