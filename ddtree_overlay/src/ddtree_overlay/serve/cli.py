"""`ddtree`, the image's entry point: a command of ours (`serve` is the default) or any program.

Another program replaces this process (exec), so signals and exit codes are its own.
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

USAGE = """\
usage: ddtree [serve] [OPTIONS] [SGLANG FLAGS]   check the host, then serve (the default command)
       ddtree doctor [--json] [OPTIONS]          check host, model and image; load nothing
       ddtree explain [OPTIONS]                  every resolved value and where it came from
       ddtree profiles [show NAME]               the profiles that this image knows
       ddtree selftest [--json]                  serve a tiny model with DDTREE, compare its tokens
       ddtree health [--live|--ready|--progress] ask the server of this container (HEALTHCHECK)
       ddtree version [--json]                   the stack as installed
       ddtree PROGRAM [ARGUMENTS]                run another program of the image

Each command has --help. A value comes from the command line, else from DDTREE_<KEY> in the
environment, else from the configuration file, else from the profile, else from a default.
"""

Command = Callable[[list[str], Mapping[str, str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns only when nothing was exec'd. Failures are two lines on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments, os.environ)
    except EntryError as error:
        print(*error.lines(), sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a listing went away. What is left in the buffer has nowhere to go either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


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


# Imported when asked for: `health` runs every few seconds and needs none of the rest.


def _serve(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.serve.command import serve_command

    return serve_command(arguments, environment)


def _doctor(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.doctor.command import doctor_command

    return doctor_command(arguments, environment)


def _explain(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.serve.explain import explain_command

    return explain_command(arguments, environment)


def _profiles(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.serve.explain import profiles_command

    return profiles_command(arguments, environment)


def _selftest(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.selftest.command import selftest_command

    return selftest_command(arguments, environment)


def _health(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.serve.health import health_command

    return health_command(arguments, environment)


def _version(arguments: list[str], environment: Mapping[str, str]) -> int:
    from ddtree_overlay.serve.manifest import read_manifest
    from ddtree_overlay.serve.version import collect, render_json, render_text

    if arguments in (["-h"], ["--help"]):
        print("usage: ddtree version [--json]\n\nThe stack as installed; nothing is imported.")
        return 0
    if arguments not in ([], ["--json"]):
        raise UsageError(
            f"version does not take {' '.join(arguments)}", "version takes nothing, or --json"
        )
    values = collect(read_manifest(environment))
    print(render_json(values) if arguments else render_text(values))
    return 0


COMMANDS: dict[str, Command] = {
    "serve": _serve,
    "doctor": _doctor,
    "explain": _explain,
    "profiles": _profiles,
    "selftest": _selftest,
    "health": _health,
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
