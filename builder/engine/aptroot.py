"""A private apt root: Debian's signed index, read without touching the host's apt.

Own lists, cache, source list and an empty dpkg status; of the host's configuration only what is
needed to reach the mirror is kept (proxy, certificates, credentials). apt checks the archive's
signature, and each package against the signed index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from builder import console, proc
from builder.engine.aptsources import AptUnavailableError, Mirror
from builder.files import sha256_file

# What decides how a file is fetched. Acquire::Allow* (unsigned archives) is left out on purpose.
_KEPT = re.compile(
    r"^Acquire::(http|https|ftp|proxy|Retries|ForceIPv4|ForceIPv6|Check-Valid-Until|Check-Date"
    r"|Queue-Mode|Connect)\b",
    re.IGNORECASE,
)
_URI_LINE = re.compile(
    r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Package:
    """One .deb as the signed index describes it."""

    name: str
    version: str
    filename: str
    size: int
    sha256: str


def kept_settings(dump: str) -> str:
    """The lines of `apt-config dump` that the private root takes over."""
    return "\n".join(line for line in dump.splitlines() if _KEPT.match(line))


def parse_print_uris(text: str) -> list[Package]:
    """`apt-get download --print-uris`, one package a line."""
    packages = []
    for line in text.splitlines():
        match = _URI_LINE.match(line)
        if match:
            name, version, _ = unquote(match["file"]).rsplit("_", 2)
            packages.append(Package(name, version, match["file"], int(match["size"]), match["sha"]))
    return sorted(packages, key=lambda package: package.name)


def host_architecture() -> str:
    """dpkg's name of the machine (amd64). Raises AptUnavailableError where there is no dpkg."""
    try:
        done = subprocess.run(
            ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        raise AptUnavailableError(
            "this is not a Debian or Ubuntu machine: dpkg is missing", "use one, or install Docker"
        ) from None
    return done.stdout.strip()


class AptRoot:
    """One suite's packages. Made by `open_suite`, valid inside its `with` block."""

    def __init__(self, folder: Path, mirror: Mirror, suite: str) -> None:
        self._folder = folder
        self._mirror = mirror
        self.suite = suite
        self._env = {
            **os.environ,
            "APT_CONFIG": str(folder / "apt.conf"),
            "LC_ALL": "C",
            "DEBIAN_FRONTEND": "noninteractive",
        }

    def prepare(self) -> None:
        """Write the configuration and read the index. Raises AptUnavailableError."""
        for name in ("lists/partial", "cache/archives/partial", "empty"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "status").touch()
        dump = self._apt("apt-config", "dump", env=dict(os.environ), echo=False)
        own = {
            "Dir::State::lists": "lists",
            "Dir::State::status": "status",
            "Dir::Cache": "cache",
            "Dir::Etc::main": "absent",
            "Dir::Etc::parts": "empty",
            "Dir::Etc::sourcelist": "host.sources",
            "Dir::Etc::sourceparts": "empty",
            "Dir::Etc::preferences": "absent",
            "Dir::Etc::preferencesparts": "empty",
        }
        lines = [f'{key} "{self._folder / name}";' for key, name in own.items()]
        lines += ['Acquire::Languages "none";', kept_settings(dump), ""]
        (self._folder / "apt.conf").write_text("\n".join(lines))
        architecture = host_architecture()
        for updates in (True, False):
            self._write_sources(self._mirror.sources(self.suite, architecture, updates=updates))
            try:
                self._apt("apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update")
                return
            except AptUnavailableError as exc:
                if not updates:
                    raise
                console.warn(f"{self.suite} without its updates and security fixes: {exc.what}")

    def resolve(self, names: Iterable[str]) -> list[Package]:
        """The suite's newest version of each package."""
        return parse_print_uris(self._apt("apt-get", "-q", "download", "--print-uris", *names))

    def libraries_of(self, names: Sequence[str]) -> list[str]:
        """Names of the library packages that `names` depend on, libc and the compiler's left out.

        Those two belong to the host: a second libc beside the host's loader does not run.
        """
        no = [f"--no-{kind}" for kind in _NOT_NEEDED]
        text = self._apt("apt-cache", "depends", "--recurse", *no, *names, echo=False)
        found = {line for line in text.splitlines() if re.match(r"lib[a-z0-9.+-]+$", line)}
        return sorted(found - {"libc6", "libgcc-s1", "libcrypt1"})

    def download(self, packages: Sequence[Package], to: Path) -> list[Path]:
        """Fetch the packages into `to`, checked by apt and again after they were moved there."""
        with tempfile.TemporaryDirectory(prefix="ddtree-deb-") as name:
            if os.geteuid() == 0:  # apt downloads as a user of its own
                shutil.chown(name, "_apt")
            wanted = [f"{package.name}={package.version}" for package in packages]
            self._apt("apt-get", "-q", "download", *wanted, cwd=Path(name))
            for package in packages:
                shutil.copyfile(Path(name) / package.filename, to / package.filename)
        for package in packages:
            if sha256_file(to / package.filename) != package.sha256:
                raise AptUnavailableError(
                    f"{package.filename} is not the file of the signed index", "run it again"
                )
        return [to / package.filename for package in packages]

    def _write_sources(self, text: str) -> None:
        # The file's suffix tells apt the format, for sourcelist as well.
        (self._folder / "host.sources").write_text(text)

    def _apt(
        self,
        *argv: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        echo: bool = True,
    ) -> str:
        proc.require(argv[0], "use a Debian or Ubuntu machine, or install Docker yourself")
        done = proc.run(argv, cwd=cwd, env=env or self._env, capture=True, echo=echo)
        if done.returncode != 0:
            errors = [x[2:].strip() for x in done.stderr.splitlines() if x.startswith("E:")]
            reason = errors[0] if errors else f"exit {done.returncode}"
            raise AptUnavailableError(
                f"{argv[0]} cannot read Debian {self.suite}: {reason}",
                f"check that {self._mirror.main} can be reached, that it carries {self.suite}, "
                "and that debian-archive-keyring is up to date",
            )
        return done.stdout


_NOT_NEEDED = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")


@contextmanager
def open_suite(mirror: Mirror, suite: str) -> Iterator[AptRoot]:
    """A private apt root for one suite, removed afterwards. Raises AptUnavailableError."""
    with tempfile.TemporaryDirectory(prefix="ddtree-apt-") as name:
        Path(name).chmod(0o755)  # apt drops to its own user to download
        root = AptRoot(Path(name), mirror, suite)
        root.prepare()
        yield root
