"""The order, bounds and report of a run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_overlay.doctor.codes import codes_table
from ddtree_overlay.doctor.model import (
    Check,
    Code,
    Decided,
    Finding,
    Gpu,
    Hardware,
    Severity,
    State,
    Subject,
    Verdict,
)
from ddtree_overlay.doctor.registry import CHECKS, codes
from ddtree_overlay.doctor.report import document, problem_lines, summary_lines
from ddtree_overlay.doctor.runner import Report, run_checks
from ddtree_overlay.serve.errors import UsageError
from ddtree_overlay.serve.manifest import Manifest
from tests.overlay.doctor.nvml import run

BAD = Code("TST001", Severity.ERROR, "bad", "mend it")
POOR = Code("TST002", Severity.WARNING, "poor", "better it")
GPUS = tuple(Gpu(i, f"GPU-{i}", "x", f"0000:0{i}:00.0", (12, 0), 1, 0) for i in range(2))
SUBJECT = Subject(Path("/nonexistent"), {}, Manifest({}), Hardware())


def check(name: str, *found: Finding, needs: str = "", slow: bool = False) -> Check:
    return Check(name, name, (BAD, POOR), lambda _: found, needs, slow)


def raising(_: Subject) -> Iterable[Finding]:
    yield BAD.found("first")
    raise OSError("two\nlines")


def states(report: Report) -> dict[str, State]:
    return {outcome.check: outcome.state for outcome in report.outcomes}


def test_an_error_stops_no_fast_check_and_every_slow_one() -> None:
    order: list[str] = []
    checks = [
        check("slow", slow=True),
        check("a", BAD.found("x")),
        check("b"),
        check("c", POOR.found("y")),
    ]
    report = run_checks(SUBJECT, checks=checks, progress=lambda c: order.append(c.name))
    assert order == ["a", "b", "c"]
    assert states(report) == {
        "slow": State.SKIPPED,
        "a": State.FOUND,
        "b": State.PASSED,
        "c": State.FOUND,
    }
    assert [f.code for f in report.findings] == ["TST001", "TST002"]
    assert (report.exit_code, report.worst) == (74, Severity.ERROR)


def test_slow_checks_run_last_and_after_warnings() -> None:
    order: list[str] = []
    checks = [check("slow", slow=True), check("a", POOR.found("x"))]
    report = run_checks(SUBJECT, checks=checks, progress=lambda c: order.append(c.name))
    assert order == ["a", "slow"]
    assert (report.exit_code, report.worst) == (0, Severity.WARNING)
    assert states(run_checks(SUBJECT, checks=checks, slow=False))["slow"] is State.SKIPPED


def test_a_check_that_raises_is_an_error_of_ours() -> None:
    report = run_checks(SUBJECT, checks=[Check("odd", "odd", (BAD,), raising), check("b")])
    assert states(report) == {"odd": State.BROKEN, "b": State.PASSED}
    (finding,) = report.findings
    assert finding.code == "DOC001"
    assert "OSError: two" in finding.what
    assert "--skip-checks odd" in finding.remedy
    assert report.exit_code == 74


def test_a_check_that_hangs_is_left() -> None:
    def hang(_: Subject) -> Iterable[Finding]:
        time.sleep(30)
        return ()

    began = time.monotonic()
    report = run_checks(SUBJECT, checks=[Check("h", "h", (), hang), check("b")], fast_seconds=0.2)
    assert time.monotonic() - began < 15
    assert [f.code for f in report.findings] == ["DOC003"]
    assert states(report)["b"] is State.PASSED


@pytest.mark.parametrize("code", [BAD, POOR])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_broken_check_is_as_grave_as_what_it_looks_for(code: Code, hangs: bool) -> None:
    def run(_: Subject) -> Iterable[Finding]:
        if hangs:
            time.sleep(30)
        raise ValueError("odd")

    (finding,) = run_checks(
        SUBJECT, checks=[Check("x", "x", (code,), run), check("b")], fast_seconds=0.2
    ).findings
    assert finding.code == ("DOC003" if hangs else "DOC001")
    assert finding.severity is code.severity


def test_a_check_may_have_a_bound_of_its_own() -> None:
    def slow_disk(_: Subject) -> Iterable[Finding]:
        time.sleep(0.5)
        return ()

    patient = Check("p", "p", (BAD,), slow_disk, seconds=20)
    assert run_checks(SUBJECT, checks=[patient], fast_seconds=0.1).exit_code == 0


@pytest.mark.parametrize("dead", ["/m", "/d"])
def test_a_file_system_that_does_not_answer_is_found_once(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(path: str) -> bool:
        if path == dead:
            time.sleep(30)
        return True

    monkeypatch.setattr("os.path.exists", exists)
    it = replace(SUBJECT, model="/m", draft_model="/d")
    report = run_checks(it, checks=[check("x", needs="model"), check("b")], fast_seconds=0.2)
    (finding,) = report.findings
    assert finding.code == "DOC003" and dead in finding.what
    assert report.exit_code == 74
    assert states(report) == {"x": State.NOT_APPLICABLE, "b": State.PASSED}


def test_a_check_that_never_returns_does_not_keep_the_process() -> None:
    program = (
        "import threading\n"
        "from tests.overlay.doctor.test_runner import BAD, SUBJECT\n"
        "from ddtree_overlay.doctor.model import Check\n"
        "from ddtree_overlay.doctor.runner import run_checks\n"
        "never = Check('n', 'n', (BAD,), lambda _: threading.Event().wait())\n"
        "raise SystemExit(run_checks(SUBJECT, checks=[never], fast_seconds=0.2).exit_code)\n"
    )
    assert run(["-c", program], {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}).code == 74


def test_an_interrupt_passes_through_a_slow_check() -> None:
    def stopped(_: Subject) -> Iterable[Finding]:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        run_checks(SUBJECT, checks=[Check("s", "s", (), stopped, "", True)])


@pytest.mark.parametrize("option", ["skip", "only"])
def test_an_unknown_name_is_refused_before_anything_runs(option: str) -> None:
    ran: list[str] = []
    checks = [Check("memory", "m", (), lambda _: ran.append("x") or ())]  # type: ignore[func-returns-value]
    with pytest.raises(UsageError) as caught:
        run_checks(SUBJECT, checks=checks, **{option: ["memroy"]})  # type: ignore[arg-type]
    assert "memory" in caught.value.remedy
    assert not ran


def test_what_is_skipped_is_named_and_nothing_run_is_an_error() -> None:
    checks = [check("a", BAD.found("x")), check("b")]
    report = run_checks(SUBJECT, checks=checks, skip=["a"])
    assert report.exit_code == 0
    assert "skipped (--skip-checks): a" in summary_lines(report)
    report = run_checks(SUBJECT, checks=checks, skip=["a", "b"])
    assert [f.code for f in report.findings] == ["DOC002"]
    assert report.exit_code == 74
    assert run_checks(SUBJECT, checks=[check("m", needs="model")]).exit_code == 74


NEEDS = {
    "": {"bare", "cpu", "one", "two", "one of two", "model", "draft"},
    "cuda": {"bare", "one", "two", "one of two", "model", "draft"},
    "gpu": {"one", "two", "one of two"},
    "gpus": {"two"},
    "model": {"model", "draft"},
    "draft": {"draft"},
}
SUBJECTS = {
    "bare": SUBJECT,
    "cpu": replace(SUBJECT, device="cpu", hardware=Hardware(gpus=GPUS), gpus_needed=2),
    "one": replace(SUBJECT, hardware=Hardware(gpus=GPUS[:1])),
    "two": replace(SUBJECT, hardware=Hardware(gpus=GPUS), gpus_needed=2),
    "one of two": replace(SUBJECT, hardware=Hardware(gpus=GPUS)),
    "model": replace(SUBJECT, model="/m"),
    "draft": replace(SUBJECT, model="/m", draft_model="/d"),
}


@pytest.mark.parametrize("needs", NEEDS)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_check_runs_where_it_applies(needs: str, name: str) -> None:
    report = run_checks(SUBJECTS[name], checks=[check("x", needs=needs)])
    wanted = State.PASSED if name in NEEDS[needs] else State.NOT_APPLICABLE
    assert states(report)["x"] is wanted
    assert bool(report.outcomes[0].why) is (wanted is State.NOT_APPLICABLE)


def test_the_verdict_is_that_of_the_check_that_decided() -> None:
    verdict = Verdict(True, "tried")
    decide = Check("d", "d", (POOR,), lambda _: Decided((POOR.found("w"),), verdict), "", True)
    report = run_checks(SUBJECT, checks=[decide, check("b")])
    assert report.verdict == verdict
    assert [f.code for f in report.findings] == ["TST002"]
    assert (
        run_checks(SUBJECT, checks=[decide, check("b")], skip=["d"]).verdict.peer_to_peer is False
    )


def test_a_finding_is_two_lines_worst_first() -> None:
    checks = [
        check("a", POOR.found("of\nseveral lines")),
        check("b", BAD.found("x", remedy="do y")),
    ]
    report = run_checks(SUBJECT, checks=checks)
    assert problem_lines(report) == [
        "ERROR TST001 x",
        "  do: do y",
        "WARNING TST002 of several lines",
        "  do: better it",
    ]
    found = document(report, Hardware())
    assert [(f["check"], f["code"]) for f in found["findings"]] == [
        ("a", "TST002"),
        ("b", "TST001"),
    ]
    assert found["totals"]["found"] == 2
    assert found["schema"] == 1


def test_codes_are_unique_and_in_the_table() -> None:
    table = codes_table()
    for code, _ in codes():
        assert f"| {code.id} | {code.severity.value} |" in table
        assert "\n" not in code.meaning + code.remedy
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [c.id for c, _ in codes()] == sorted({c.id for c, _ in codes()})
