"""Test suites: which there are, running them, and what their run came to.

A suite is one file of tests: `tests/image/test_abi.py` is `image/abi`. Counts come from pytest's
own JUnit report (the xunit2 family), never from its exit code alone: that is 0 as well where every
test was skipped.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from builder import proc
from builder.engine import Engine
from builder.errors import ChecksFailedError
from builder.project import Project
from builder.receipts import Count

# Folders below tests/ whose tests look at an image.
IMAGE_FOLDERS = ("image", "e2e")
# By concern, and an answer from a real server: minutes.
QUICK = (
    *("image/versions", "image/labels", "image/abi", "image/files", "image/users"),
    *("image/entrypoint", "image/cpu_server", "image/health"),
)


@dataclass
class Suite:
    """What one file's tests came to. `seconds` includes their fixtures; `failures` are names."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def count(self) -> Count:
        return Count(self.passed, self.failed, self.skipped)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "suite": self.name,
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
            "skipped_because": dict(self.reasons),
            "failures": self.failures,
        }


@dataclass(frozen=True)
class Run:
    """One run of pytest. `problem` is why it is no pass; empty for a pass."""

    suites: tuple[Suite, ...]
    problem: str

    def total(self, what: str) -> int:
        """Sum of `passed`, `failed` or `skipped`."""
        return sum(getattr(suite, what) for suite in self.suites)

    @property
    def counts(self) -> dict[str, Count]:
        return {suite.name: suite.count for suite in self.suites}

    @property
    def verdict(self) -> str:
        """One line for a person."""
        counted = f"{self.total('passed')} passed, {self.total('skipped')} skipped"
        return f"FAILED: {self.problem}" if self.problem else f"passed: {counted}"


def known_suites(project: Project) -> dict[str, Path]:
    """Suites that look at an image: those marked `docker` below IMAGE_FOLDERS. Name to file."""
    return {
        f"{folder}/{path.stem.removeprefix('test_')}": path
        for folder in IMAGE_FOLDERS
        for path in sorted((project.root / "tests" / folder).glob("test_*.py"))
        if "pytest.mark.docker" in path.read_text("utf-8")
    }


def suite_name(classname: str, name: str) -> str:
    """`tests.image.test_abi` -> `image/abi`; a file that failed to load has only a name."""
    parts = (classname or name).split(".")
    last = next((n for n, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    kept = [part for part in parts[: last + 1] if part != "tests"]
    return "/".join([*kept[:-1], kept[-1].removeprefix("test_")])


def parse_report(path: Path) -> list[Suite]:
    """The suites of a JUnit report in the order of their run.

    Raises ChecksFailedError: there is no report, or it is cut short.
    """
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))  # noqa: S314 - our own pytest's
    except (OSError, ElementTree.ParseError) as exc:
        raise ChecksFailedError(
            f"pytest left no report: {exc}", "read its output above; it did not end by itself"
        ) from None
    suites: dict[str, Suite] = {}
    for case in cases:
        name, test = suite_name(case.get("classname", ""), case.get("name", "")), case.get("name")
        suite = suites.setdefault(name, Suite(name))
        suite.seconds += float(case.get("time") or 0)
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            suite.failed += 1
            suite.failures.append(str(test))
        elif skipped is not None:
            suite.skipped += 1
            suite.reasons[skipped.get("message") or "no reason given"] += 1
        else:
            suite.passed += 1
    return list(suites.values())


def judge(suites: Sequence[Suite], returncode: int, asked: Sequence[str] = ()) -> Run:
    """A pass: pytest says so, something passed, nothing failed, every suite asked for ran."""
    run = Run(tuple(suites), "")
    absent = [name for name in asked if name not in run.counts]
    problem = ""
    if run.total("failed"):
        problem = f"{run.total('failed')} of {sum(map(run.total, ('passed', 'failed')))} tests"
    elif not run.total("passed"):
        skipped = run.total("skipped")
        problem = f"no test ran ({skipped} skipped)" if skipped else "no test ran"
    elif absent:
        problem = f"no test of {', '.join(absent)} ran"
    elif returncode:
        problem = f"pytest ended with {returncode}"
    return Run(run.suites, problem)


def table(run: Run) -> str:
    """A line for each suite, the sum, why tests were skipped, and what failed."""
    rows: list[tuple[str, ...]] = [("suite", "passed", "failed", "skipped", "seconds")]
    for suite in run.suites:
        counts = (suite.passed, suite.failed, suite.skipped)
        rows.append((suite.name, *map(str, counts), f"{suite.seconds:.1f}"))
    sums = [str(run.total(what)) for what in ("passed", "failed", "skipped")]
    rows.append(("all", *sums, f"{sum(suite.seconds for suite in run.suites):.1f}"))
    width = max(len(row[0]) for row in rows)
    lines = [f"{row[0]:<{width}}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows]
    for suite in run.suites:
        lines += [f"skipped: {suite.name}: {n}: {why}" for why, n in suite.reasons.items()]
    for suite in run.suites:
        lines += [f"failed: {suite.name}: {test}" for test in suite.failures]
    return "\n".join(lines)


def run_pytest(
    project: Project,
    arguments: Sequence[str],
    env: Mapping[str, str],
    engine: Engine | None = None,
    *,
    to_stderr: bool = False,
) -> int:
    """pytest with this interpreter, its output streamed; its exit code."""
    argv = [sys.executable, "-m", "pytest", *arguments]
    merged = {**os.environ, **env}
    if engine is not None:
        merged.update(engine.env)
        # Published ports live in the engine's network namespace: so must the tests.
        argv = engine.in_network(*argv)
    # Of the caller's own sessions: a -k or --deselect in it would thin every suite, unseen.
    merged.pop("PYTEST_ADDOPTS", None)
    merged["PYTHONPATH"] = os.pathsep.join([str(project.root), str(project.overlay / "src")])
    return proc.run(argv, cwd=project.root, env=merged, to_stderr=to_stderr).returncode
