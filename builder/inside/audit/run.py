"""Run the rules over a scanned file system and describe the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.inside.audit.exceptions import KnownFinding, Sorted, sort_findings
from builder.inside.audit.model import Context, Finding, Rule
from builder.inside.elf import NotElfError


class NothingAuditedError(Exception):
    """No rule ran, or no ELF file was seen: a pass would be a lie."""


@dataclass(frozen=True)
class Outcome:
    """Everything the table and the report show."""

    rules: tuple[Rule, ...]
    skipped: tuple[Rule, ...]
    result: Sorted
    seconds: dict[str, float]
    context: Context

    @property
    def passed(self) -> bool:
        return not self.result.errors


def audit(
    context: Context,
    rules: Sequence[Rule],
    known: list[KnownFinding],
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Raises NothingAuditedError when nothing was looked at."""
    ran = tuple(rule for rule in rules if rule.applies(context))
    if not ran:
        raise NothingAuditedError("no rule ran")
    if not context.files.elves:
        raise NothingAuditedError(f"no ELF file below {context.files.root}")
    findings: list[Finding] = []
    seconds: dict[str, float] = {}
    for rule in ran:
        begin = clock()
        try:
            findings.extend(rule.check(context))
        except NotElfError as exc:
            findings.append(Finding(rule.code, str(exc), "unreadable", "reinstall the file"))
        except Exception as exc:  # a file of a form that the rule does not know is no pass
            text = f"the rule cannot be applied: {exc!r}"
            findings.append(
                Finding(rule.code, rule.title, text, "look at the file that it reads, or mend it")
            )
        seconds[rule.code] = clock() - begin
        if not context.checked.get(rule.code) and not any(f.code == rule.code for f in findings):
            text = "the rule found nothing to look at"
            findings.append(
                Finding(rule.code, rule.title, text, "the layout changed: mend the rule")
            )
    result = sort_findings(findings, known, context.target.name, context.files.site)
    skipped = tuple(rule for rule in rules if rule not in ran)
    return Outcome(ran, skipped, result, seconds, context)


def report(outcome: Outcome) -> dict[str, Any]:
    """The JSON document: sorted, without times, the same for the same file system."""
    context = outcome.context
    return {
        "schema": 1,
        "target": context.target.name,
        "passed": outcome.passed,
        "elf_files": len(context.files.elves),
        "rules": [
            {
                "code": rule.code,
                "title": rule.title,
                "ran": rule in outcome.rules,
                "checked": context.checked.get(rule.code, 0),
            }
            for rule in sorted((*outcome.rules, *outcome.skipped), key=lambda r: r.code)
        ],
        "findings": [{**asdict(f), "severity": "error"} for f in outcome.result.errors],
        "waived": [{**asdict(f), "reason": why} for f, why in outcome.result.waived],
        "unused_exceptions": [asdict(entry) for entry in outcome.result.unused],
        "notes": context.notes,
    }


def table(outcome: Outcome) -> list[str]:
    """What a person reads: one line a rule, then findings, waivers by reason, and notes."""
    context, result = outcome.context, outcome.result
    lines = [
        f"audit of {context.target.name}: {len(context.files.elves)} ELF files, "
        f"{len(context.files.distributions)} distributions, "
        f"{context.files.total / 2**30:.2f} GiB of {context.target.budget_gib:g}"
    ]
    for rule in outcome.rules:
        related = _related(rule)
        bad = sum(f.code in related for f in result.errors)
        waived = sum(f.code in related for f, _ in result.waived)
        state = f"{bad} FOUND" if bad else "ok"
        also = f", {waived} waived" if waived else ""
        lines.append(
            f"  {rule.code}  {state:9} {context.checked.get(rule.code, 0):7} checked"
            f" {outcome.seconds[rule.code]:6.1f} s  {rule.title}{also}"
        )
    lines += [
        f"  {rule.code}  not run                        {rule.title}" for rule in outcome.skipped
    ]
    reasons: dict[tuple[str, str], int] = {}
    for finding, reason in result.waived:
        reasons[finding.code, reason] = reasons.get((finding.code, reason), 0) + 1
    lines += [f"  waived {n:3} {code}: {why}" for (code, why), n in sorted(reasons.items())]
    lines += [f"  unused exception {e.code} {e.files[0]}: remove it" for e in result.unused]
    if context.target.toolchain_source == "absent":
        lines.append(f"  documented: no CUDA toolkit: {context.target.toolchain_reason}")
    for finding in result.errors:
        lines.append(f"{finding.code} {finding.file}: {finding.evidence}")
        lines.append(f"       {finding.remedy}")
    return [_printable(line) for line in lines]


def _printable(line: str) -> str:
    """A file's name may hold line ends, which would forge a row, and bytes that are no text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _related(rule: Rule) -> tuple[str, ...]:
    return ("ABI001", "ABI002") if rule.code == "ABI001" else (rule.code,)
