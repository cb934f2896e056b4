"""What the user sees: steps with elapsed time and echoed commands on stderr, results on stdout."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_START = time.monotonic()
_quiet = False


def set_quiet(value: bool) -> None:
    """Silence progress (errors still print); used by scripts that read --json."""
    global _quiet
    _quiet = value


def shows_progress() -> bool:
    """False when set_quiet silenced progress."""
    return not _quiet


def _say(line: str) -> None:
    if not _quiet:
        print(line, file=sys.stderr, flush=True)


def info(message: str) -> None:
    """One progress line, stamped with seconds since the builder started."""
    _say(f"[{time.monotonic() - _START:7.1f}s] {message}")


def warn(message: str) -> None:
    """A line that is shown even when progress is silenced."""
    print(f"warning: {message}", file=sys.stderr, flush=True)


def command(argv: Sequence[str]) -> None:
    """Echo a command exactly as a user could paste it."""
    _say(f"           + {shlex.join(argv)}")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step and how long it took."""
    info(title)
    begin = time.monotonic()
    yield
    info(f"{title}: done in {time.monotonic() - begin:.1f} s")


def result_json(payload: Any) -> None:
    """Machine-readable output: the only thing that goes to stdout with --json."""
    json.dump(payload, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")
