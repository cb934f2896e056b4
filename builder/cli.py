"""The command line: one verb a module, one place that turns failures into two lines and a code."""

from __future__ import annotations

import argparse
import os
import sys

import docker.errors
import requests

from builder import (
    audit_cli,
    build_cli,
    bundle_cli,
    console,
    explain,
    licences_cli,
    plan,
    push_cli,
    render,
    test_cli,
    verify_cli,
)
from builder.engine import cli as engine_cli
from builder.errors import BuilderError, EngineFailedError, HostFileError
from builder.lock import cli as lock_cli
from builder.patches import cli as patches_cli
from builder.project import default_project
from builder.sources import cli as sources_cli

INTERRUPTED = 130
DESCRIPTION = """\
Build the DDTree appliance: SGLang with Diffusion Draft Tree speculation for RTX PRO 6000 (sm_120).

  python3 build.py --cuda cu130             build, audit, label and prove the CUDA 13.0 image
  python3 build.py --cuda cu128             the CUDA 12.8 image (needs PyTorch's index and GitHub)
  python3 build.py --cuda cu128 --stand-in  the CUDA 12.8 path from PyPI alone, for tests
  python3 build.py test                     every check, image tests included
  python3 build.py push REGISTRY/NAME --cuda cu130 --key cosign.key  send it, with its evidence
  python3 build.py verify REGISTRY/NAME@DIGEST --key cosign.pub
"""
EPILOG = (
    "The verb defaults to `build`. Each verb has its own --help. "
    "Exit codes: docs/exit-codes.md. Progress goes to stderr, results to stdout."
)


def make_parser() -> argparse.ArgumentParser:
    """The whole command line; every verb's module adds its own parser."""
    parser = argparse.ArgumentParser(
        prog="build.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for module in (
        build_cli,
        plan,
        explain,
        render,
        lock_cli,
        sources_cli,
        patches_cli,
        engine_cli,
        audit_cli,
        licences_cli,
        test_cli,
        push_cli,
        verify_cli,
        bundle_cli,
    ):
        module.add_parser(verbs)
    return parser


def with_default_verb(argv: list[str]) -> list[str]:
    """`--cuda cu130` means `build --cuda cu130`; a lone -h/--help stays the overview."""
    if argv and argv[0].startswith("-") and argv[0] not in ("-h", "--help"):
        return ["build", *argv]
    return argv


def run_verb(args: argparse.Namespace) -> int:
    """The verb's exit code; what no module foresaw becomes an error of ours."""
    try:
        code: int = args.handler(args, default_project())
        sys.stdout.flush()
    except (docker.errors.DockerException, requests.RequestException) as exc:
        said = " ".join(str(exc).split())
        raise EngineFailedError(
            f"the engine failed: {said}", "read the engine's log, then run it again"
        ) from None
    except BrokenPipeError:
        raise
    except OSError as exc:
        where = f"{exc.filename}: " if exc.filename else ""
        raise HostFileError(
            f"{where}{exc.strerror or exc}", "check that path, its owner and its free space"
        ) from None
    return code


def main(argv: list[str]) -> int:
    """Run one verb; returns the process exit code."""
    parser = make_parser()
    args = parser.parse_args(with_default_verb(argv))
    if args.verb is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return run_verb(args)
    except BuilderError as exc:
        print(f"error: {exc.what}\n  fix: {exc.remedy}", file=sys.stderr)
        if getattr(args, "json", False):
            console.result_json(
                {
                    "error": type(exc).__name__,
                    "exit_code": exc.exit_code,
                    "what": exc.what,
                    "remedy": exc.remedy,
                }
            )
        return exc.exit_code
    except KeyboardInterrupt:
        print(
            "interrupted; what was started is stopped, finished steps stay cached", file=sys.stderr
        )
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone: the interpreter's last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
