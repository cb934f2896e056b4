#!/usr/bin/env python3
"""Build the DDTree appliance:  python3 build.py --cuda cu130

This file needs nothing but Python's standard library. On first use it prepares a virtual
environment from a hashed lock in the builder's cache; then it hands over to builder/cli.py.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - older Pythons must be told, not shown a traceback
    sys.stderr.write(
        f"error: Python {sys.version_info[0]}.{sys.version_info[1]} is too old for the builder\n"
        "  fix: run build.py with Python 3.10 or newer\n"
    )
    raise SystemExit(61)

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import venv
from pathlib import Path
from types import FrameType
from typing import NoReturn

from builder.errors import BuilderEnvironmentError
from builder.project import Project

ROOT = Path(__file__).resolve().parent


def environment_lock(argv: list[str]) -> Path:
    """The lock that a verb runs on: `test` needs the test tools, all others the builder's own."""
    verb = next((a for a in argv if not a.startswith("-")), "")
    return ROOT / ("tests" if verb == "test" else "builder") / "requirements.lock"


def environment_dir(lock: Path, cache: Path) -> Path:
    """One environment for each (lock, Python): a changed lock never meets an old environment."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    return cache / "env" / f"{digest}-py{sys.version_info[0]}.{sys.version_info[1]}"


def usable(target: Path) -> bool:
    """Complete, and its interpreter (a link to the host's) still there."""
    return (target / "complete").exists() and (target / "bin" / "python").exists()


def prepare(lock: Path, target: Path) -> None:
    """Create the environment unless it is usable. Raises BuilderEnvironmentError."""
    if usable(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # two builds started together share one preparation
        if usable(target):
            return
        shutil.rmtree(target, ignore_errors=True)
        print(f"preparing the builder's environment in {target} (once)", file=sys.stderr)
        try:
            create(lock, target)
        except BaseException:
            # Under the lock: a builder that only waited must not remove what another one makes.
            shutil.rmtree(target, ignore_errors=True)
            raise


def create(lock: Path, target: Path) -> None:
    """A virtual environment with exactly what the lock names."""
    try:
        venv.create(target, with_pip=True, symlinks=True)
    except subprocess.CalledProcessError as exc:
        raise BuilderEnvironmentError(
            f"Python cannot create a virtual environment: {exc}",
            "install the venv module (Debian and Ubuntu: apt-get install python3-venv)",
        ) from None
    install = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    install += ["--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
    install += ["--require-hashes", "-r", str(lock)]
    # A host's constraints are about the host's own programs, not about this environment.
    env = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    done = subprocess.run(install, env=env, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")] or ["no output"]
        raise BuilderEnvironmentError(
            f"pip could not install {lock.relative_to(ROOT)}: {lines[-1]}",
            "check that the package index can be reached (pip's own settings apply)",
        )
    (target / "complete").write_text("ok\n")


def interrupted(_signum: int, _frame: FrameType | None) -> NoReturn:
    """TERM and HUP leave as Ctrl-C does: children ended, half-made folders removed."""
    raise KeyboardInterrupt


def enter(argv: list[str]) -> int:
    """Run the verb in its environment, made first where it is missing."""
    lock = environment_lock(argv)
    target = environment_dir(lock, Project(ROOT).cache)
    if Path(sys.prefix) == target:
        from builder.cli import main as run

        return run(argv)
    try:
        prepare(lock, target)
        python = str(target / "bin" / "python")
        return os.execv(python, [python, str(ROOT / "build.py"), *argv])  # noqa: S606
    except OSError as exc:
        raise BuilderEnvironmentError(
            f"{exc.filename or target}: {exc.strerror}",
            "check owner and free space of the cache, or set DDTREE_CACHE to a folder of yours",
        ) from None


def main(argv: list[str]) -> int:
    """The process exit code."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, interrupted)
        return enter(argv)
    except BuilderEnvironmentError as exc:
        print(f"error: {exc.what}\n  fix: {exc.remedy}", file=sys.stderr)
        return exc.exit_code
    except KeyboardInterrupt:
        print("interrupted; nothing was built", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
