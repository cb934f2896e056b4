from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.inside.audit.model import Context, Finding, Rule
from builder.inside.audit.rules import RULES
from builder.inside.audit.run import NothingAuditedError, audit, report, table
from tests.builder.inside.tree import Tree


def test_no_rule_is_an_error(tree: Tree) -> None:
    with pytest.raises(NothingAuditedError, match="no rule"):
        audit(tree.context(), [], [])


def test_no_elf_file_is_an_error(tree: Tree) -> None:
    context = tree.context()
    context.files = replace(context.files, elves=())
    with pytest.raises(NothingAuditedError, match="no ELF"):
        audit(context, RULES, [])


def test_a_rule_that_saw_nothing_is_a_finding(tree: Tree) -> None:
    blind = Rule("XXX001", "sees nothing", lambda _context: iter(()))
    outcome = audit(tree.context(), [blind], [])
    assert [f.code for f in outcome.result.errors] == ["XXX001"]


def test_codes_are_unique_and_titled() -> None:
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert all(rule.title for rule in RULES)


def test_the_report_is_a_function_of_the_tree(tree: Tree) -> None:
    first = report(audit(tree.context(), RULES, [], clock=iter(range(100)).__next__))
    second = report(audit(tree.context(), RULES, [], clock=iter(range(0, 1000, 7)).__next__))
    assert first == second
    assert first["passed"] is True
    assert first["notes"]["triton_ptxas"] == {"triton/backends/nvidia/bin/ptxas": "12.8.93"}


def test_the_table_names_each_rule_and_each_finding(tree: Tree) -> None:
    tree.library("x/libcublas.so.12")
    text = "\n".join(table(audit(tree.context(), RULES, [])))
    for rule in RULES:
        assert rule.code in text
    assert "MIX002 opt/ddtree/venv" in text
    assert "a library of CUDA 12" in text


def test_a_rule_that_cannot_be_applied_is_a_finding_and_the_others_run(tree: Tree) -> None:
    def breaks(context: Context) -> Iterator[Finding]:
        context.count("XXX001")
        yield Finding("XXX001", "first", "said before", "mend it")
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")

    outcome = audit(tree.context(), [Rule("XXX001", "breaks", breaks), *RULES], [])
    assert {(f.code, f.file) for f in outcome.result.errors} == {
        ("XXX001", "first"),
        ("XXX001", "breaks"),
    }
    assert set(RULES) - set(outcome.skipped) <= set(outcome.rules)


def test_the_row_of_abi001_counts_abi002(tree: Tree) -> None:
    """They are one pass over the symbols, and ABI002 has no row of its own."""
    old = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
    tree.library("sgl_kernel/common_ops.abi3.so", needed=["libc10.so"], undefined=[old])
    lines = table(audit(tree.context(), RULES, []))
    (row,) = (line for line in lines if line.startswith("  ABI001"))
    assert "1 FOUND" in row


def test_a_file_s_name_forges_no_row_and_breaks_no_output(tree: Tree) -> None:
    for name in (b"evil\n  SEC001  ok", b"not-\xff-text", b"escape\x1b[2J"):
        path = os.fsencode(tree.root / "opt") + b"/" + name
        Path(os.fsdecode(path)).touch()
        Path(os.fsdecode(path)).chmod(0o666)
    outcome = audit(tree.context(), RULES, [])
    lines = table(outcome)
    assert len([line for line in lines if line.startswith("SEC001 opt/")]) == 3
    assert not any(line.startswith("  SEC001  ok") for line in lines)
    assert all(line.isprintable() and line.encode() for line in lines)
    assert json.loads(json.dumps(report(outcome)).encode())["passed"] is False
