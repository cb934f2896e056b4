"""Running other programs: echoed, in their own process group, stopped with us."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from builder import console
from builder.errors import BuilderError, ToolMissingError


@dataclass(frozen=True)
class Completed:
    """Exit status and captured text (empty when the output was streamed)."""

    returncode: int
    stdout: str
    stderr: str


def require(tool: str, remedy: str, path: str | None = None) -> str:
    """Absolute path of a host program, or an error that says what to install."""
    found = which(tool, path=path)
    if found is None:
        raise ToolMissingError(f"{tool} is not installed", remedy)
    return found


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    capture: bool = False,
    to_stderr: bool = False,
    echo: bool = True,
    error: type[BuilderError] | None = None,
    what: str = "",
    remedy: str = "read the output above",
    timeout: float | None = None,
) -> Completed:
    """Run `argv`; stream its output to ours (all of it to stderr if told so), or capture it.

    With `error` given, a non-zero exit raises it with `what` (plus the last line of a captured
    stderr) and `remedy`. On Ctrl-C the whole process group of the child is ended before the
    interrupt goes on, so that nothing keeps running behind the user's back.
    """
    if echo:
        console.command(argv)
    pipe = subprocess.PIPE if capture else None
    child = subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=dict(env) if env is not None else None,
        stdin=subprocess.DEVNULL,
        stdout=2 if to_stderr else pipe,
        stderr=pipe,
        text=True,
        errors="replace",  # what a registry answers may pass through a program of ours
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=timeout)
    except BaseException:
        end_group(child)
        raise
    if error is not None and child.returncode != 0:
        tail = [line for line in (err or "").strip().splitlines() if line.strip()]
        detail = f": {tail[-1].strip()}" if tail else ""
        raise error(f"{what or argv[0]} (exit {child.returncode}){detail}", remedy)
    return Completed(child.returncode, out or "", err or "")


def end_group(child: subprocess.Popen[str]) -> None:
    """TERM, then KILL, to a child started in its own session."""
    for sig, grace in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(child.pid, sig)
        except ProcessLookupError:
            return
        try:
            child.wait(timeout=grace)
            return
        except subprocess.TimeoutExpired:
            continue
