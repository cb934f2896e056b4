"""`ddtree`, the image's entry point: `serve` (default), `version`, or any other program.

It replaces itself with what it starts (exec), so signals and exit codes are the program's own.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ddtree_overlay.serve.errors import (
    EntryError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    UsageError,
)
from ddtree_overlay.serve.launch import refuse_stand_in_on_gpu, server_argv
from ddtree_overlay.serve.manifest import read_manifest

USAGE = """\
usage: ddtree [serve] [SGLANG ARGUMENTS]   start the server (the default command);
                                           `serve --help` lists its arguments
       ddtree version [--json]             print the stack as installed
       ddtree PROGRAM [ARGUMENTS]          run another program of the image
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns only when nothing was exec'd. Failures are two lines on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments, os.environ)
    except EntryError as error:
        print(*error.lines(), sep="\n", file=sys.stderr)
        return error.exit_code


def _dispatch(arguments: list[str], environment: Mapping[str, str]) -> int:
    if arguments and arguments[0] in {"-h", "--help"}:
        print(USAGE, end="")
        return 0
    if not arguments or arguments[0].startswith("-"):
        return _serve(arguments, environment)
    command = COMMANDS.get(arguments[0])
    if command is None:
        _exec(arguments)
    return command(arguments[1:], environment)


def _serve(arguments: list[str], environment: Mapping[str, str]) -> int:
    refuse_stand_in_on_gpu(read_manifest(environment), environment)
    _exec(server_argv(arguments))


def _version(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.serve.version import collect, render_json, render_text

    if arguments not in ([], ["--json"]):
        raise UsageError(
            f"version does not take {' '.join(arguments)}", "version takes nothing, or --json"
        )
    values = collect(read_manifest(environment))
    print(render_json(values) if arguments else render_text(values))
    return 0


COMMANDS: dict[str, Callable[[list[str], Mapping[str, str]], int]] = {
    "serve": _serve,
    "version": _version,
}


def _exec(argv: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - to become the program is the purpose
    except FileNotFoundError:
        raise ProgramNotFoundError(
            f"{argv[0]}: no such command or program", _hint(argv[0])
        ) from None
    except OSError as error:
        raise ProgramNotExecutableError(
            f"{argv[0]}: cannot be executed: {error.strerror}",
            "name an executable program, or a command (see --help)",
        ) from None


def _hint(word: str) -> str:
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"commands are {', '.join(COMMANDS)}; anything else must be a program on PATH"


if __name__ == "__main__":
    sys.exit(main())
