#!/usr/bin/env python3
"""Build the DDTree appliance:  python build.py --cuda cu130

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
import subprocess
import venv
from pathlib import Path

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


def prepare(lock: Path, target: Path) -> None:
    """Create the environment unless it is complete. Raises BuilderEnvironmentError."""
    marker = target / "complete"
    if marker.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # two builds started together share one preparation
        if marker.exists():
            return
        shutil.rmtree(target, ignore_errors=True)
        print(f"preparing the builder's environment in {target} (once)", file=sys.stderr)
        try:
            venv.create(target, with_pip=True, symlinks=True)
        except (subprocess.CalledProcessError, OSError) as exc:
            shutil.rmtree(target, ignore_errors=True)
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
            shutil.rmtree(target, ignore_errors=True)
            lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")] or ["no output"]
            raise BuilderEnvironmentError(
                f"pip could not install {lock.relative_to(ROOT)}: {lines[-1]}",
                "check that the package index can be reached (pip's own settings apply)",
            )
        marker.write_text("ok\n")


def main(argv: list[str]) -> int:
    lock = environment_lock(argv)
    target = environment_dir(lock, Project(ROOT).cache)
    if Path(sys.prefix) == target:
        from builder.cli import main as run

        return run(argv)
    try:
        prepare(lock, target)
    except BuilderEnvironmentError as exc:
        print(f"error: {exc.what}\n  fix: {exc.remedy}", file=sys.stderr)
        return exc.exit_code
    except KeyboardInterrupt:
        shutil.rmtree(target, ignore_errors=True)
        print("interrupted; nothing was built", file=sys.stderr)
        return 130
    python = str(target / "bin" / "python")
    return os.execv(python, [python, str(ROOT / "build.py"), *argv])  # noqa: S606


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
