"""Running one of our own modules in a process of its own and reading the JSON it prints."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ddtree_overlay.serve.redact import is_secret_name

MARK = "DDTREE-DOCTOR "
"""Before a line for us; libraries print to stdout too."""
_LONGEST_LINE = 300
_TAIL = 64 * 1024
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")


@dataclass(frozen=True)
class Said:
    """What became of it: its messages, and in one line what went wrong, None if nothing did."""

    messages: tuple[dict[str, Any], ...]
    problem: str | None


def child_environment(
    environment: Mapping[str, str], changes: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Of the given one: without our own variables and without secrets."""
    kept = {
        key: value
        for key, value in environment.items()
        if not key.startswith("DDTREE_")
        and not is_secret_name(key)
        and not any(word in key.upper() for word in _SECRET)
    }
    kept.setdefault("PATH", os.defpath)
    # Python must find this package where this process found it, also when it is not installed.
    for key in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        if key in os.environ:
            kept.setdefault(key, os.environ[key])
    # One thread: eight children beside one another, and nothing to compute.
    return {**kept, "OMP_NUM_THREADS": "1", **(changes or {})}


def run_child(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Said:
    """Runs the command in a session of its own, and kills all of it at the bound."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = start(command, environment, out, err)
        except OSError as error:
            return Said((), f"{command[0]} cannot be started ({error.strerror})")
        hung = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            hung = True
        finally:
            kill(process)
        messages, last = read_messages(out), last_line(err)
        if hung:
            return Said(messages, with_last(f"gave no answer within {seconds:g} s", last))
        if process.returncode:
            return Said(messages, with_last(ending(process.returncode), last))
        if not messages:
            return Said((), with_last("ended without a result", last))
        return Said(messages, None)


def start(
    command: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes]:
    """In a session, and so a process group, of its own. Raises OSError."""
    return subprocess.Popen(
        list(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
        cwd="/",
    )


def kill(*processes: subprocess.Popen[bytes], seconds: float = 10.0) -> None:
    """Their whole groups, what they left behind included. A process in the driver's hands may not
    die within the bound, which is for all together; it is then left, and its exit awaited by a
    thread that holds nobody up."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            threading.Thread(target=process.wait, daemon=True).start()


def read_messages(out: IO[bytes]) -> tuple[dict[str, Any], ...]:
    """The marked lines that are JSON objects."""
    out.seek(0)
    found = []
    for line in out.read().decode("utf-8", "replace").splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            message = json.loads(text)
        except ValueError:
            continue
        if isinstance(message, dict):
            found.append(message)
    return tuple(found)


def last_line(err: IO[bytes]) -> str:
    """The last line that is not blank, cut."""
    size = err.seek(0, os.SEEK_END)
    err.seek(max(0, size - _TAIL))
    lines = [line.strip() for line in err.read().decode("utf-8", "replace").splitlines()]
    return next((line[:_LONGEST_LINE] for line in reversed(lines) if line), "")


def ending(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def with_last(what: str, last: str) -> str:
    """`what`, and the last line of stderr if there is one."""
    return f"{what}; last words: {last}" if last else what
