"""What the end-to-end scripts make of logs, traces and trees, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.client import META, record
from tests.e2e.configurations import CONFIGURATIONS, PROOF
from tests.e2e.nodes import leaves, path_to
from tests.e2e.run import LOGGED_LINES, logged, traced
from tests.e2e.stack import MODELS_SOURCE, ROOT

PARENTS = [-1, 0, 0, 1, 3, 1]


def test_paths_and_leaves() -> None:
    assert path_to(0, PARENTS) == [0]
    assert path_to(4, PARENTS) == [0, 1, 3, 4]
    assert leaves(PARENTS) == [2, 4, 5]
    covered = {node for leaf in leaves(PARENTS) for node in path_to(leaf, PARENTS)}
    assert covered == set(range(len(PARENTS)))


def test_a_log_is_counted_and_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = ["server_args=DDTREE", *["a tree budget: 4"] * (LOGGED_LINES + 3), "Traceback (most"]
    log.write_text("\n".join(lines))
    found = logged(log)
    assert found["tree budget:"]["count"] == LOGGED_LINES + 3
    assert len(found["tree budget:"]["lines"]) == LOGGED_LINES
    assert found["Traceback"]["count"] == 1
    assert "DDTREE" not in found
    assert logged(tmp_path / "absent") == {}


def test_a_trace_is_summed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    entry = {"masked": True, "branching_requests": 2, "branching_rows": 9}
    entries = [entry | {"batch": 3, "width": 5}, entry | {"batch": 1, "width": 5}]
    trace.write_text("".join(json.dumps(one) + "\n" for one in [*entries, {"truncated": True}]))
    assert traced(trace) == {
        "forwards": 2,
        "masked": 2,
        "branching_requests": 4,
        "branching_rows": 18,
        "widths": [5],
        "batches": [1, 3],
    }


def test_a_record_keeps_what_is_compared() -> None:
    meta = {"completion_tokens": 2, "finish_reason": {"type": "length"}, "id": "random"}
    kept = record({"output_ids": [1, 2], "text": "ab", "meta_info": meta, "index": 0})
    assert kept["ids"] == [1, 2] and kept["text"] == "ab"
    assert "id" not in kept and set(kept) - {"ids", "text"} <= set(META)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_arguments_follow_the_configuration(name: str) -> None:
    configuration = CONFIGURATIONS[name]
    argv = configuration.argv(Path("/m"))
    assert argv.count("--context-length") == 1
    assert ("--speculative-algorithm" in argv) == (not name.startswith("plain"))
    if name.startswith("ddtree"):
        budget = argv[argv.index("--speculative-ddtree-budget") + 1]
        assert name.removeprefix("ddtree").split("-")[0] == budget


def test_the_proof_holds_the_budgets_and_the_reference() -> None:
    assert {"plain", "dflash", "ddtree16", "ddtree4"} <= set(PROOF)
    assert MODELS_SOURCE == ROOT / "tests" / "e2e" / "models"
