"""Counting what ran: pytest's own reports, skipped is not passed, and nothing is no pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builder.errors import ChecksFailedError
from builder.project import default_project
from builder.receipts import Count
from builder.suites import (
    QUICK,
    Suite,
    judge,
    known_suites,
    parse_report,
    run_pytest,
    suite_name,
    table,
)

TESTS = {
    "image/test_good.py": "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_a(n): pass\n",
    "image/test_mixed.py": (
        "import pytest\n"
        "@pytest.fixture\n"
        "def ends_badly():\n    yield\n    raise OSError('torn down')\n"
        "def test_fine(): pass\n"
        "def test_wrong(): assert 1 == 2\n"
        "def test_torn(ends_badly): pass\n"
        "def test_not_here(): pytest.skip('no such thing | here')\n"
        "@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n"
    ),
    "image/test_skipped.py": "import pytest\npytest.skip('no image', allow_module_level=True)\n",
    "image/test_broken.py": "import no_such_module_at_all\n",
    "e2e/test_deselected.py": "import pytest\n@pytest.mark.full\ndef test_long(): pass\n",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Path]]:
    """pytest's exit code and report for each file alone, and for all together."""
    root = tmp_path_factory.mktemp("suites")
    (root / "pytest.ini").write_text("[pytest]\nmarkers = full: long\n")
    for name, text in TESTS.items():
        path = root / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, root / "tests"):
            (folder / "__init__.py").touch()
        path.write_text(text)
    found = {}
    for name in (*TESTS, "."):
        report = root / f"{Path(name).stem or 'all'}.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{name}"),
                *("-m", "not full", f"--junitxml={report}", "-o", "junit_family=xunit2"),
            ],
            cwd=root,
            capture_output=True,
            check=False,
            timeout=120,
        )
        found[name] = (done.returncode, report)
    return found


def test_a_real_report_is_counted_by_suite(reports: dict[str, tuple[int, Path]]) -> None:
    suites = {suite.name: suite for suite in parse_report(reports["image/test_mixed.py"][1])}
    mixed = suites["image/mixed"]
    assert mixed.count == Count(1, 2, 2)
    assert sorted(mixed.failures) == ["test_torn", "test_wrong"]
    assert mixed.reasons == {"no such thing | here": 1, "known": 1}
    assert mixed.seconds >= 0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("image/test_good.py", ""),
        ("image/test_mixed.py", "2 of 3 tests"),
        ("image/test_broken.py", "1 of 1 tests"),
        ("image/test_skipped.py", "no test ran (1 skipped)"),
        ("e2e/test_deselected.py", "no test ran"),
        (".", "1 of 1 tests"),  # pytest stops where a file does not load
    ],
)
def test_the_verdict_on_a_real_run(
    reports: dict[str, tuple[int, Path]], name: str, problem: str
) -> None:
    code, report = reports[name]
    assert judge(parse_report(report), code).problem == problem


def test_pytests_exit_code_alone_would_call_skipped_ones_passed(
    reports: dict[str, tuple[int, Path]],
) -> None:
    """Why the report is read at all: a file of tests that all skip ends with 0."""
    good = Suite("image/good", passed=2)
    assert judge([good], 0, ["image/good"]).problem == ""
    assert judge([good], 0, ["image/good", "image/abi"]).problem == "no test of image/abi ran"
    assert judge([good], 3).problem == "pytest ended with 3"
    assert judge([], 0).problem == "no test ran"


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite>"])
def test_a_report_that_is_absent_or_cut_short_is_an_error(tmp_path: Path, text: str | None) -> None:
    report = tmp_path / "junit.xml"
    if text is not None:
        report.write_text(text)
    with pytest.raises(ChecksFailedError, match="no report"):
        parse_report(report)


@pytest.mark.parametrize(
    ("classname", "name", "suite"),
    [
        ("tests.image.test_abi", "test_a[b.c]", "image/abi"),
        ("tests.e2e.test_tree.TestGroup", "test_a", "e2e/tree"),
        ("tests.builder.engine.test_private", "test_a", "builder/engine/private"),
        ("", "tests.image.test_broken", "image/broken"),
    ],
)
def test_a_suite_is_a_file(classname: str, name: str, suite: str) -> None:
    assert suite_name(classname, name) == suite


def test_the_table_has_a_line_a_suite_and_says_why_tests_were_skipped() -> None:
    mixed = Suite("image/mixed", passed=1, failed=1, skipped=2, seconds=3.14)
    mixed.reasons["no such thing"] += 2
    mixed.failures.append("test_wrong")
    lines = table(judge([Suite("image/good", passed=2, seconds=10), mixed], 1)).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["suite", "passed", "failed", "skipped", "seconds"],
        ["image/good", "2", "0", "0", "10.0"],
        ["image/mixed", "1", "1", "2", "3.1"],
        ["all", "3", "1", "2", "13.1"],
    ]
    assert lines[4:] == [
        "skipped: image/mixed: 2: no such thing",
        "failed: image/mixed: test_wrong",
    ]
    assert len({len(line) for line in lines[:4]}) == 1


def test_the_quick_suites_exist() -> None:
    known = known_suites(default_project())
    assert set(QUICK) <= set(known)
    assert all(path.is_file() for path in known.values())
    assert "e2e/chisquare" not in known  # needs no image


def test_pytest_runs_where_the_published_ports_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside the engine's network, with its environment, whatever the caller's own is."""
    from types import SimpleNamespace
    from typing import Any

    from builder import proc

    seen: dict[str, Any] = {}

    def run(argv: list[str], **options: Any) -> SimpleNamespace:
        seen.update(options, argv=argv)
        return SimpleNamespace(returncode=5)

    monkeypatch.setattr(proc, "run", run)
    # Deselected tests leave no trace in a report: one test a suite would pass for all of them.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k one")
    engine: Any = SimpleNamespace(
        env={"DOCKER_HOST": "unix:///e"}, in_network=lambda *argv: ["enter", *argv]
    )
    assert run_pytest(default_project(), ["x"], {"DDTREE_IMAGE": "i"}, engine, to_stderr=True) == 5
    assert seen["argv"][:2] == ["enter", sys.executable] and seen["argv"][-1] == "x"
    assert seen["env"]["DOCKER_HOST"] == "unix:///e" and seen["env"]["DDTREE_IMAGE"] == "i"
    assert "PYTEST_ADDOPTS" not in seen["env"]
    assert seen["to_stderr"]
