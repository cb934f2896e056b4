"""The report for people and for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddtree_overlay.doctor.model import Finding, Hardware, Severity, State
from ddtree_overlay.doctor.runner import Report

SCHEMA = 1
SHOWN_BY_SERVE = (Severity.ERROR, Severity.WARNING)


def problem_lines(report: Report, *, info: bool = True) -> list[str]:
    """Two lines a finding, the worst first; `info` False leaves out what needs no action."""
    lines = []
    for finding in report.findings:
        if info or finding.severity in SHOWN_BY_SERVE:
            lines.append(
                f"{finding.severity.value.upper()} {finding.code} {one_line(finding.what)}"
            )
            lines.append(f"  do: {one_line(finding.remedy)}")
    return lines


def summary_lines(report: Report) -> list[str]:
    """How many checks ran with what result, which were skipped, and the verdict."""
    totals = report.totals
    ran = sum(totals[s.value] for s in (State.PASSED, State.FOUND, State.BROKEN))
    counts = [f"{totals[State.PASSED.value]} passed"]
    for severity in Severity:
        if totals[severity.value]:
            counts.append(_plural(totals[severity.value], severity.value))
    if totals[State.NOT_APPLICABLE.value]:
        counts.append(f"{totals[State.NOT_APPLICABLE.value]} not applicable")
    lines = [f"doctor: {_plural(ran, 'check')} in {report.seconds:.1f} s: {', '.join(counts)}"]
    reasons: dict[str, list[str]] = {}
    for outcome in report.in_state(State.SKIPPED):
        reasons.setdefault(outcome.why, []).append(outcome.check)
    for why, names in reasons.items():
        if why != "not in --only":
            lines.append(f"skipped ({why}): {', '.join(names)}")
    on = "on" if report.verdict.peer_to_peer else "off"
    lines.append(f"peer-to-peer: {on} ({report.verdict.why})")
    return lines


def document(report: Report, hardware: Hardware) -> dict[str, Any]:
    """The report as JSON types. Keys are stable within one `schema`."""
    findings = [
        {**_finding(finding), "check": outcome.check}
        for outcome in report.outcomes
        for finding in outcome.findings
    ]
    return {
        "schema": SCHEMA,
        "exit_code": report.exit_code,
        "worst": report.worst.value if report.worst else None,
        "totals": report.totals,
        "seconds": round(report.seconds, 3),
        "peer_to_peer": {"on": report.verdict.peer_to_peer, "why": report.verdict.why},
        "findings": [{**_finding(finding), "check": "doctor"} for finding in report.extra]
        + findings,
        "checks": [
            {
                "name": outcome.check,
                "title": report.titles.get(outcome.check, ""),
                "state": outcome.state.value,
                "why": outcome.why,
                "seconds": round(outcome.seconds, 3),
                "codes": [finding.code for finding in outcome.findings],
            }
            for outcome in report.outcomes
        ],
        "hardware": hardware_document(hardware),
    }


def hardware_document(hardware: Hardware) -> dict[str, Any]:
    """Hardware as JSON types; a pair of GPUs is written "0-1"."""
    raw = {
        name.name: getattr(hardware, name.name)
        for name in dataclasses.fields(hardware)
        if name.name not in {"gpus", "links"}
    }
    return {
        **raw,
        "gpus": [dataclasses.asdict(gpu) for gpu in hardware.gpus],
        "links": {f"{i}-{j}": dataclasses.asdict(link) for (i, j), link in hardware.links.items()},
    }


def one_line(text: str) -> str:
    """A finding is one line, whatever an exception or a file name brought into it."""
    return " ".join(text.split())


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "what": one_line(finding.what),
        "remedy": one_line(finding.remedy),
    }


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 or noun == "info" else f"{count} {noun}s"
