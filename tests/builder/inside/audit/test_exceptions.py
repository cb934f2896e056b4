from __future__ import annotations

import pytest

from builder.inside.audit.exceptions import (
    FILE,
    ExceptionsError,
    load_exceptions,
    sort_findings,
)
from builder.inside.audit.model import Finding
from builder.inside.audit.rules import RULES

ENTRY = """
[[exception]]
code = "LNK002"
files = ["pkg/plugin_*.so"]
evidence = ["NEEDED libmpi*"]
targets = ["cu130"]
reason = "opened on demand"
"""
SITE = "opt/site"
KNOWN = Finding("LNK002", f"{SITE}/pkg/plugin_a.so", "NEEDED libmpi.so.40 is nowhere", "r")


def test_a_known_finding_is_waived_with_its_reason() -> None:
    result = sort_findings([KNOWN], load_exceptions(ENTRY), "cu130", SITE)
    assert result.errors == ()
    assert result.waived == ((KNOWN, "opened on demand"),)
    assert result.unused == ()


@pytest.mark.parametrize(
    ("finding", "target"),
    [
        (Finding("LNK001", KNOWN.file, KNOWN.evidence, "r"), "cu130"),
        (Finding("LNK002", f"{SITE}/other/plugin_a.so", KNOWN.evidence, "r"), "cu130"),
        (Finding("LNK002", KNOWN.file, "NEEDED libucx.so.0 is nowhere", "r"), "cu130"),
        (KNOWN, "cu128"),
    ],
)
def test_code_file_evidence_and_target_must_all_match(finding: Finding, target: str) -> None:
    assert sort_findings([finding], load_exceptions(ENTRY), target, SITE).errors == (finding,)


def test_an_exception_that_matches_nothing_is_reported() -> None:
    (unused,) = sort_findings([], load_exceptions(ENTRY), "cu130", SITE).unused
    assert unused.files == ("pkg/plugin_*.so",)


@pytest.mark.parametrize(
    "text",
    [
        ENTRY.replace('reason = "opened on demand"', ""),
        ENTRY.replace("opened on demand", " "),
        ENTRY.replace("files =", "fils ="),
        ENTRY.replace('code = "LNK002"', ""),
        "[[exception]\n",
    ],
)
def test_a_malformed_entry_is_refused(text: str) -> None:
    with pytest.raises(ExceptionsError):
        load_exceptions(text)


def test_the_shipped_exceptions_load_and_name_rules_that_exist() -> None:
    codes = {rule.code for rule in RULES} | {"ABI002"}
    entries = load_exceptions(FILE.read_text("utf-8"))
    assert entries
    assert {entry.code for entry in entries} <= codes
