"""Runs checks in order, bounded in time, and draws up the report."""

from __future__ import annotations

import difflib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ddtree_overlay.doctor.model import (
    Check,
    Decided,
    Finding,
    Outcome,
    Severity,
    State,
    Subject,
    Verdict,
)
from ddtree_overlay.doctor.peer_to_peer import static_verdict
from ddtree_overlay.doctor.run_codes import BROKEN, HUNG, NOTHING_RAN
from ddtree_overlay.serve.errors import UsageError

EXIT_ERRORS = 74
# A file system that does not answer (a dead NFS server) holds a check for ever, so each has a
# bound. Slow checks bound their own child processes.
FAST_SECONDS = 20.0
ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}

Progress = Callable[[Check], None]


@dataclass(frozen=True)
class Report:
    """What became of every check, and the one verdict on peer-to-peer traffic."""

    outcomes: tuple[Outcome, ...]
    verdict: Verdict
    extra: tuple[Finding, ...] = ()  # of the run itself, not of a check
    seconds: float = 0.0
    titles: dict[str, str] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, errors first, otherwise in the order of the checks."""
        found = [*self.extra, *(f for outcome in self.outcomes for f in outcome.findings)]
        return tuple(sorted(found, key=lambda finding: ORDER[finding.severity]))

    @property
    def worst(self) -> Severity | None:
        """The gravest severity found; None when nothing was."""
        return self.findings[0].severity if self.findings else None

    @property
    def exit_code(self) -> int:
        """74 when an error was found, else 0."""
        return EXIT_ERRORS if self.worst is Severity.ERROR else 0

    @property
    def totals(self) -> dict[str, int]:
        """Checks by state (each State's value as key) and findings by severity."""
        states = {state.value: 0 for state in State}
        for outcome in self.outcomes:
            states[outcome.state.value] += 1
        severities = {severity.value: 0 for severity in Severity}
        for finding in self.findings:
            severities[finding.severity.value] += 1
        return {**states, **severities}

    def in_state(self, state: State) -> tuple[Outcome, ...]:
        """The outcomes in one state."""
        return tuple(outcome for outcome in self.outcomes if outcome.state is state)


def refuse_unknown(names: Iterable[str], checks: Sequence[Check], option: str) -> None:
    """Raises UsageError for a name that no check has, with the nearest that one has."""
    known = [check.name for check in checks]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"{option}: there is no check {name!r}",
                f"{hint}ddtree doctor --list names all checks",
            )


def run_checks(
    subject: Subject,
    *,
    skip: Iterable[str] = (),
    only: Iterable[str] = (),
    slow: bool = True,
    progress: Progress | None = None,
    checks: Sequence[Check] | None = None,
    fast_seconds: float = FAST_SECONDS,
) -> Report:
    """Run all checks that apply: every fast one, then the slow ones if no error was found.

    skip, only: names; unknown ones raise UsageError before anything runs. `slow` False leaves the
    slow ones out. `progress` is called with each check before it runs. Never raises for what a
    check does: that becomes a finding.
    """
    if checks is None:
        from ddtree_overlay.doctor.registry import CHECKS

        checks = CHECKS
    skip, only = tuple(skip), tuple(only)
    refuse_unknown(skip, checks, "--skip-checks")
    refuse_unknown(only, checks, "--only")
    began = time.monotonic()
    dead = _unanswering([subject.model, subject.draft_model], fast_seconds)
    if dead:
        subject = replace(subject, model=None, draft_model=None, algorithm=None)
    results: dict[str, Outcome] = {}
    verdict: Verdict | None = None
    for check in sorted(checks, key=lambda check: check.slow):
        state_why = _not_to_run(check, subject, skip, only, slow)
        if state_why is None and check.slow and _has_error(results.values()):
            state_why = (State.SKIPPED, "errors were found before it")
        if state_why is not None:
            results[check.name] = Outcome(check.name, state_why[0], why=state_why[1])
            continue
        if progress is not None:
            progress(check)
        bound = None if check.slow else check.seconds or fast_seconds
        results[check.name], decided = _run(check, subject, bound)
        verdict = decided or verdict
    outcomes = tuple(results[check.name] for check in checks)
    ran = any(o.state in {State.PASSED, State.FOUND, State.BROKEN} for o in outcomes)
    return Report(
        outcomes=outcomes,
        verdict=verdict or static_verdict(subject),
        extra=(*dead, *(() if ran else (NOTHING_RAN.found("no check ran"),))),
        seconds=time.monotonic() - began,
        titles={check.name: check.title for check in checks},
    )


def _unanswering(names: Iterable[str | None], seconds: float) -> tuple[Finding, ...]:
    """The model whose file system does not answer, found once instead of by every check of it."""
    box: list[str] = []
    paths = [name for name in names if name]

    def work() -> None:
        for path in paths:
            os.path.exists(path)  # noqa: PTH110 - Path.exists raises for what is closed to us
            box.append(path)

    thread = threading.Thread(target=work, name="models", daemon=True)
    thread.start()
    thread.join(seconds)
    if len(box) == len(paths):
        return ()
    what = f"{paths[len(box)]} gives no answer within {seconds:g} s: the model was not checked"
    remedy = "look after the network file system that holds it, or mount the model from elsewhere"
    return (HUNG.found(what, remedy=remedy),)


def not_applicable(check: Check, subject: Subject) -> str | None:
    """Why a check does not apply to the subject; None when it does."""
    cuda = subject.device == "cuda"
    gpus = len(subject.hardware.gpus)
    reasons = {
        "": None,
        "cuda": None if cuda else f"device is {subject.device}",
        "gpu": None if cuda and gpus else "no GPU can be read" if cuda else "device is not cuda",
        "gpus": None
        if cuda and gpus > 1 and subject.gpus_needed > 1
        else "one GPU is used"
        if cuda and gpus
        else "no GPU can be read"
        if cuda
        else "device is not cuda",
        "model": None if subject.model else "no model is configured",
        "draft": None if subject.draft_model else "no draft model is configured",
        "image": None if stack_installed() else "SGLang is not installed here",
    }
    return reasons[check.needs]


def stack_installed() -> bool:
    """Whether SGLang is here, found without importing it."""
    return importlib.util.find_spec("sglang") is not None


def _not_to_run(
    check: Check, subject: Subject, skip: Sequence[str], only: Sequence[str], slow: bool
) -> tuple[State, str] | None:
    if check.name in skip:
        return State.SKIPPED, "--skip-checks"
    if only and check.name not in only:
        return State.SKIPPED, "not in --only"
    why = not_applicable(check, subject)
    if why is not None:
        return State.NOT_APPLICABLE, why
    return (State.SKIPPED, "--fast") if check.slow and not slow else None


def _has_error(outcomes: Iterable[Outcome]) -> bool:
    return any(f.severity is Severity.ERROR for outcome in outcomes for f in outcome.findings)


Result = tuple[tuple[Finding, ...], Verdict | None]


def _run(check: Check, subject: Subject, bound: float | None) -> tuple[Outcome, Verdict | None]:
    """A fast check has a thread of its own: a call that hangs in the kernel cannot be interrupted,
    only left. A slow one runs in the caller's, so that a signal's exception ends its children too.
    """
    box: list[Result | Exception] = []

    def work() -> None:
        try:
            result = check.run(subject)
            box.append((tuple(result), result.verdict if isinstance(result, Decided) else None))
        except Exception as error:
            box.append(error)

    began = time.monotonic()
    if bound is None:
        work()
    else:
        thread = threading.Thread(target=work, name=f"check {check.name}", daemon=True)
        thread.start()
        thread.join(bound)
    seconds = time.monotonic() - began
    if not box:
        what = f"check {check.name} did not finish within {bound:g} s"
        return _broken(check, HUNG.found(what), what, seconds), None
    result = box[0]
    if isinstance(result, Exception):
        why = f"{type(result).__name__}: {result}".splitlines()[0]
        finding = BROKEN.found(f"check {check.name} raised {why}")
        return _broken(check, finding, why, seconds), None
    findings, verdict = result
    state = State.FOUND if findings else State.PASSED
    return Outcome(check.name, state, findings, seconds=seconds), verdict


def _broken(check: Check, finding: Finding, why: str, seconds: float) -> Outcome:
    """A check that could at worst have warned does not keep a host from serving."""
    remedy = finding.remedy.replace("--skip-checks NAME", f"--skip-checks {check.name}")
    grave = any(code.severity is Severity.ERROR for code in check.codes)
    severity = finding.severity if grave else Severity.WARNING
    finding = Finding(finding.code, severity, finding.what, remedy)
    return Outcome(check.name, State.BROKEN, (finding,), why, seconds)
