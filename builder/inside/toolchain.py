"""Complete a CUDA toolkit folder with the names that whatever links at JIT time looks for.

NVIDIA's wheels bring neither `lib64` nor an unversioned `libcudart.so`, so torch's cpp_extension,
FlashInfer and nvcc fail at the link step. Runs in a build stage, also as a plain script: standard
library only.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

TOOLCHAIN_FAILED = 59
_RUNTIME = re.compile(r"libcudart\.so\.\d+$")


class ToolchainError(Exception):
    """The folder is no CUDA toolkit, or holds something else under a name that is needed."""


def complete(home: Path) -> list[str]:
    """Create missing links (all relative); returns those created. Again, it changes nothing."""
    library = next((home / d for d in ("lib", "lib64") if (home / d).is_dir()), None)
    if library is None:
        raise ToolchainError(f"{home} has neither lib nor lib64")
    runtimes = sorted(p.name for p in library.iterdir() if _RUNTIME.match(p.name))
    if len(runtimes) != 1:
        found = ", ".join(runtimes) or "none"
        raise ToolchainError(f"{library}: exactly one libcudart.so.<major> expected, found {found}")
    created = []
    for link, goal in (
        (home / "lib64", "lib"),
        (home / "lib", "lib64"),
        (library / "libcudart.so", runtimes[0]),
    ):
        if link.exists():
            continue
        if link.is_symlink():
            raise ToolchainError(f"{link} is a broken link to {link.readlink()}")
        link.symlink_to(goal)
        created.append(f"{link} -> {goal}")
    return created


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the toolkit's folder")
    args = parser.parse_args(argv)
    try:
        created = complete(args.home)
    except (OSError, ToolchainError) as exc:
        print(f"toolchain: {exc}", file=sys.stderr)
        return TOOLCHAIN_FAILED
    for line in created:
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
