"""`serve`: configuration, checks of host and model, then the server under supervision.

The order is what an operator needs at 3 a.m.: what is wrong with the words is said before the host
is looked at, what is wrong with the host before anything loads, and probes answer from the start.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from ddtree_overlay.doctor.command import print_problems
from ddtree_overlay.doctor.hardware import read_hardware
from ddtree_overlay.doctor.model import Hardware, Severity
from ddtree_overlay.doctor.runner import EXIT_ERRORS, Report, run_checks
from ddtree_overlay.doctor.subject import subject_of
from ddtree_overlay.serve.catalogue import help_text
from ddtree_overlay.serve.derive import derive
from ddtree_overlay.serve.endings import ExitCode
from ddtree_overlay.serve.errors import UsageError
from ddtree_overlay.serve.explain import print_plan
from ddtree_overlay.serve.launch import SERVER_PROGRAM, launch_of, refuse_stand_in_on_gpu
from ddtree_overlay.serve.manifest import Manifest, read_manifest
from ddtree_overlay.serve.peer_to_peer import apply_verdict
from ddtree_overlay.serve.plan import Plan
from ddtree_overlay.serve.probes import Probes
from ddtree_overlay.serve.resolve import resolve
from ddtree_overlay.serve.supervise import say, supervise

HELP = """\
usage: ddtree serve [--dry-run [--json] [--all]] [--skip-checks a,b] [SETTINGS] [SGLANG FLAGS]

Checks host, model and image (see `ddtree doctor`), then serves until SIGTERM, which lets running
requests finish. --dry-run prints what would be served, with the source of each value, and stops;
--all adds the defaults of SGLang that stay.

  docker run --gpus all --shm-size 32g -v /models:/models:ro -p 127.0.0.1:30000:30000 \\
    -v ddtree-cache:/var/cache/ddtree --stop-timeout 120 IMAGE \\
    --model /models/Qwen3-8B --draft-model /models/Qwen3-8B-DFlash-b16

Settings (each also as DDTREE_<NAME> and in the configuration file):
"""


def serve_command(arguments: list[str], environment: Mapping[str, str]) -> int:
    """The exit code of a server that has ended, or of a start that was refused.

    Raises EntryError.
    """
    if {"-h", "--help"} & set(arguments):
        _help()
    own, rest = _own_switches(arguments)
    manifest = read_manifest(environment)
    refuse_stand_in_on_gpu(manifest, environment)
    plan = resolve(rest, environment)
    hardware = read_hardware(environment) if plan.get("device") == "cuda" else Hardware()
    plan = derive(plan, hardware, environment=environment)
    if "--dry-run" in own:
        print_plan(plan, as_json="--json" in own, everything="--all" in own)
        return 0
    build = {"build_id": manifest.text("build_id"), "variant": manifest.text("variant")}
    with (
        _stopped_by_signals() as checking,
        Probes(
            plan.get("probe_host"),
            plan.get("probe_port"),
            build=build,
            progress_seconds=plan.get("progress_seconds"),
            node_rank=plan.get("node_rank"),
        ) as probes,
    ):
        report = _checked(plan, hardware, manifest, environment)
        if report.exit_code:
            probes.set_phase("failed")
            count = report.totals[Severity.ERROR.value]
            say(f"error: not started: {count} found by the checks above (exit code {EXIT_ERRORS})")
            return EXIT_ERRORS
        # One GPU, or none, has nobody to talk to: no flag and no note about it.
        if report.verdict is not None and len(hardware.gpus) > 1:
            plan = apply_verdict(plan, report.verdict)
        print_plan(plan, brief=True, file=sys.stderr)
        try:
            return supervise(launch_of(plan, environment), probes)
        finally:
            checking.clear()


def _own_switches(arguments: list[str]) -> tuple[set[str], list[str]]:
    own = {"--dry-run", "--json", "--all"} & set(arguments)
    if own and "--dry-run" not in own:
        raise UsageError(f"serve takes {min(own)} only with --dry-run", "add --dry-run")
    return own, [argument for argument in arguments if argument not in own]


def _checked(
    plan: Plan, hardware: Hardware, manifest: Manifest, environment: Mapping[str, str]
) -> Report:
    subject = subject_of(plan, hardware, manifest, environment, serving=True)
    report = run_checks(subject, skip=plan.get("skip_checks"))
    print_problems(report, file=sys.stderr)
    return report


def _help() -> NoReturn:
    print(HELP + help_text())
    print("\nSGLang's own flags, all of them accepted:\n", flush=True)
    os.execvp(SERVER_PROGRAM[0], [*SERVER_PROGRAM, "--help"])  # noqa: S606 - SGLang prints its own


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Until `supervise` takes over, a signal to stop ends the checks as Ctrl-C does, their children
    too. As while a model loads, that is what was asked for and no failure. Once the event is clear
    they change nothing: how the server ended is already known."""
    checking = threading.Event()
    checking.set()

    def stop(number: int, _frame: FrameType | None) -> None:
        if not checking.is_set():
            return
        say(f"ddtree: {signal.Signals(number).name} during the checks: nothing was started")
        raise SystemExit(ExitCode.STOPPED)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield checking
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
