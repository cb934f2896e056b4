"""Shared libraries that Debian's programs need and the host lacks."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from builder.errors import EngineStartError

_FOLDERS = ("usr/lib/{0}", "lib/{0}", "usr/lib", "lib")


def missing_libraries(ldd_output: str) -> list[str]:
    """Shared libraries that the dynamic loader did not find."""
    return re.findall(r"^\s*(\S+) => not found$", ldd_output, re.MULTILINE)


def link_libraries(programs: list[Path], root: Path, into: Path) -> None:
    """Link from the packages what the host lacks, and only that, into one folder.

    Raises EngineStartError naming the program and the library, or the glibc that is too old.
    """
    triplets = [p.name for p in (root / "usr/lib").glob("*-linux-gnu")]
    folders = [root / f.format(t) for t in triplets for f in _FOLDERS]
    env = {**os.environ, "LD_LIBRARY_PATH": str(into), "LC_ALL": "C"}
    for program in programs:
        for _ in range(10):  # a linked library may need further ones
            done = subprocess.run(
                ["ldd", str(program)], capture_output=True, text=True, env=env, check=False
            )
            if "GLIBC_" in done.stdout + done.stderr and "not found" in done.stdout + done.stderr:
                raise EngineStartError(
                    f"{program.name} of Debian's packages needs a newer glibc than this host has",
                    "install Docker Engine yourself, or take an older suite in images/pins.toml",
                )
            missing = missing_libraries(done.stdout)
            if not missing:
                break
            for library in missing:
                found = next((f / library for f in folders if (f / library).exists()), None)
                if found is None:
                    raise EngineStartError(
                        f"{program.name} needs {library}, which neither the host nor the unpacked "
                        "packages have",
                        "install the library, or add its package in images/pins.toml",
                    )
                (into / library).symlink_to(found)
