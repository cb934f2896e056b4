"""Unpack NVIDIA's redistributable archives into one toolkit folder, without their top folder.

Runs inside a build stage as a script: standard library only (Debian's base has no xz program).
"""

from __future__ import annotations

import argparse
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

UNPACK_FAILED = 57


def stripped_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members without the first path component. Raises ValueError for a path that escapes."""
    for member in archive.getmembers():
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{member.name}: leaves the archive's own folder")
        parts = path.parts[1:]
        if not parts:
            continue
        member.name = str(PurePosixPath(*parts))
        if member.islnk():
            member.linkname = str(PurePosixPath(*PurePosixPath(member.linkname).parts[1:]))
        if member.isdev():
            raise ValueError(f"{member.name}: a device file in a toolkit archive")
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        yield member


def unpack(archives: list[Path], into: Path) -> int:
    """Extract all archives; returns how many members were written."""
    into.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in archives:
        with tarfile.open(path, "r:*") as archive:
            for member in stripped_members(archive):
                archive.extract(member, into)
                count += 1
    return count


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="the toolkit folder")
    parser.add_argument("archives", type=Path, nargs="+")
    args = parser.parse_args(argv)
    try:
        count = unpack(args.archives, args.into)
    except (OSError, ValueError, tarfile.TarError) as exc:
        print(f"unpack: {exc}", file=sys.stderr)
        return UNPACK_FAILED
    print(f"unpacked {count} files and folders from {len(args.archives)} archives")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
