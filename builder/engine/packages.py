"""Debian packages unpacked into the builder's cache, for programs the host does not have.

Nothing is installed: `dpkg-deb -x` into <cache>/engine/<suite>-<hash of the versions>/, once, with
a record of what was used. A later run takes what is there and needs no network.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder import console, proc
from builder.engine.aptroot import AptRoot, Package, open_suite
from builder.engine.aptsources import AptUnavailableError, Mirror, host_mirror
from builder.project import Project

_RECORD = "packages.json"


@dataclass(frozen=True)
class Want:
    """Packages of one suite; `libraries` adds the shared libraries that they depend on."""

    suite: str
    packages: tuple[str, ...]
    libraries: bool = False

    def key(self) -> str:
        """What a record lists, so that a later run finds what it can use again."""
        return f"{self.suite}:{'+' if self.libraries else ''}{','.join(sorted(self.packages))}"


@dataclass(frozen=True)
class Unpacked:
    """A folder laid out like a root file system, and the versions in it by package name."""

    root: Path
    versions: dict[str, str]

    def program(self, name: str) -> Path | None:
        """Where the packages put a program."""
        for folder in ("usr/sbin", "usr/bin", "sbin", "bin", "usr/libexec/docker/cli-plugins"):
            path = self.root / folder / name
            if path.is_file():
                return path
        return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One builder at a time behind `path`; the lock ends with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def drop_leftovers(folder: Path) -> None:
    """Remove what killed builders left half made; the caller holds the folder's lock."""
    for path in folder.glob(".new-*"):
        shutil.rmtree(path)


def obtain(project: Project, wants: Sequence[Want]) -> Unpacked:
    """The wanted packages, from the cache or from Debian. Raises AptUnavailableError.

    Later wants overwrite earlier ones: name the suite whose files must win last.
    """
    cache = project.cache / "engine"
    with locked(cache / "lock"):
        drop_leftovers(cache)
        found = _find(cache, wants)
        if found is not None:
            return found
        return _unpack(cache, wants)


def forget(project: Project) -> None:
    """Drop all unpacked packages: the next run takes the suite's current ones."""
    cache = project.cache / "engine"
    with locked(cache / "lock"):
        for path in cache.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


def recorded(project: Project, wants: Sequence[Want]) -> dict[str, str]:
    """Versions of the wanted packages in the cache; empty if they are not unpacked."""
    found = _find(project.cache / "engine", wants)
    return found.versions if found else {}


def _find(cache: Path, wants: Sequence[Want]) -> Unpacked | None:
    wanted = [want.key() for want in wants]
    for record in sorted(cache.glob(f"*/{_RECORD}"), key=lambda p: p.stat().st_mtime, reverse=True):
        content = json.loads(record.read_text())
        if content["wants"] == wanted:
            return Unpacked(record.parent / "root", dict(content["versions"]))
    return None


def _unpack(cache: Path, wants: Sequence[Want]) -> Unpacked:
    mirror = host_mirror()
    proc.require("dpkg-deb", "use a Debian or Ubuntu machine, or install Docker yourself")
    names = ", ".join(name for want in wants for name in want.packages)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=cache))
    new.chmod(0o755)
    try:
        with console.step(f"taking from Debian, into the cache only: {names}"):
            used = _fill(new, mirror, wants)
        versions = {name: used[name].version for name in sorted(used)}
        hashes = {name: used[name].sha256 for name in sorted(used)}
        record = {
            "wants": [want.key() for want in wants],
            "mirror": mirror.main,
            "versions": versions,
            "sha256": hashes,
        }
        (new / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        digest = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:12]
        final = cache / f"{wants[0].suite}-{digest}"
        shutil.rmtree(final, ignore_errors=True)
        new.rename(final)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return Unpacked(final / "root", versions)


def _fill(new: Path, mirror: Mirror, wants: Sequence[Want]) -> dict[str, Package]:
    root = new / "root"
    root.mkdir()
    used: dict[str, Package] = {}
    for want in wants:
        with open_suite(mirror, want.suite) as suite:
            used.update(_unpack_one(suite, want, new, root))
    return used


def _unpack_one(suite: AptRoot, want: Want, scratch: Path, root: Path) -> dict[str, Package]:
    names = list(want.packages)
    if want.libraries:
        names += suite.libraries_of(want.packages)
    packages = suite.resolve(names)
    missing = set(names) - {package.name for package in packages}
    if missing:
        raise AptUnavailableError(
            f"Debian {want.suite} has no package {', '.join(sorted(missing))}",
            "mend engine.packages or engine.runc_packages in images/pins.toml",
        )
    for path in suite.download(packages, scratch):
        if path.name.startswith("runc_"):
            # An earlier suite's may lie in the other folder, where it would be found first.
            for folder in ("usr/sbin", "usr/bin"):
                (root / folder / "runc").unlink(missing_ok=True)
        done = proc.run(["dpkg-deb", "-x", str(path), str(root)], capture=True, echo=False)
        if done.returncode != 0:
            raise AptUnavailableError(
                f"cannot unpack {path.name}: {done.stderr.strip()}", f"free space below {root}"
            )
        path.unlink()
    return {package.name: package for package in packages}
