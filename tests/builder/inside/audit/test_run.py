from __future__ import annotations

from dataclasses import replace

import pytest

from builder.inside.audit.model import Rule
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
