"""benchmarks/kernels.py: the arithmetic, the page that shows it, resources, and a tiny measurement."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kernels_arithmetic as arithmetic
from benchmarks import kernels_resources as resources
from benchmarks.kernels_heap import heap_tree
from tests.overlay.compiler import require_compiler
from tests.overlay.conftest import OVERLAY

ROOT = OVERLAY.parent
PROGRAM = ROOT / "benchmarks/kernels.py"
PAGE = ROOT / "benchmarks/kernels.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
    )


def test_the_page_holds_the_arithmetic_as_printed() -> None:
    printed = run("--arithmetic")
    assert printed.returncode == 0, printed.stderr
    parts = re.split(r"<!-- (?:/)?arithmetic -->\n", PAGE.read_text(encoding="utf-8"))
    assert len(parts) == 3
    assert parts[1] == printed.stdout


def test_the_arithmetic_by_hand() -> None:
    """Numbers worked out apart from the code, for batch 1 and budget 16."""
    rank = arithmetic.rank_tokens(16)
    assert rank.read == 16 * 15 * 151_936 * 2 == 72_929_280
    assert round(rank.read / 4.8e12 * 1e6, 2) == 15.19
    # 15 levels of 16 fp32, 16 ids, a budget and a root; 17 nodes of five int64, a score and one
    # word of ancestors; a count and a flag.
    tree = arithmetic.build_tree(1, 16)
    assert (tree.read, tree.written) == (960 + 128 + 16, 17 * 52 + 9)
    # 17 rows of 8,209 bytes, 17 positions; ancestors and depths of 17 nodes, a prefix length.
    placed = arithmetic.place_tree(1, 16)
    assert (placed.read, placed.written) == (17 * 16 + 8, 17 * 8_209 + 136)
    # 7 tokens of 147,456 bytes, read and written.
    assert arithmetic.compact_kv(1).moved == 2 * 1_032_192 + 120
    assert arithmetic.gather_path(1).moved == 2 * 16 * 40_960 + 128
    assert arithmetic.walk_all_rows(1, 16).read == 17 * 607_744 + 17 * 24
    assert arithmetic.walk_visited_rows(1, 16).read == 8 * 607_744 + 17 * 16


def test_a_floor_is_the_slower_of_memory_and_sequence_and_the_launches() -> None:
    cost = arithmetic.Cost(read=4_800_000, written=0, operations=0, launches=3, serial=0.5e-6)
    assert cost.floor("H200") == pytest.approx(7e-6)
    slow = arithmetic.Cost(read=4_800, written=0, operations=0, launches=1, serial=9e-6)
    assert slow.floor("H200") == pytest.approx(11e-6)


def test_the_heap_is_the_reference() -> None:
    from ddtree_overlay.tree.reference import build_tree
    from tests.overlay.trees import seeded, softmax_table, token_table

    table, ids = softmax_table(15, 16, seeded(1)), token_table(15, 16)
    mine, reference = heap_tree(table, ids, 64), build_tree(table, ids, 64)
    for name in ("tokens", "parents", "depths", "ancestors"):
        assert getattr(mine, name) == getattr(reference, name), name


def write_kernels(folder: Path, *, shared: int = 0) -> None:
    used = {"registers": 70, "static_shared": shared, "stack": 0}
    used |= {"spill_stores": 4, "spill_loads": 8}
    files = [
        {"arch": "sm_90", "entries": {"ddtree_a": used, "ddtree_b": used}},
        {"arch": "sm_120", "entries": {"ddtree_a": used}},
        {"arch": "compute_120", "entries": {"ddtree_a": None}},
    ]
    text = json.dumps({"nvrtc": "13.0.88", "options": ["--x"], "files": files})
    (folder / "kernels.json").write_text(text)


def test_resources_are_tabled(tmp_path: Path) -> None:
    write_kernels(tmp_path)
    table = resources.resource_table(tmp_path, {"ddtree_a": 20_000})
    assert table.splitlines()[0] == "NVRTC 13.0.88, --x."
    assert table.splitlines()[4:] == [
        "| ddtree_a | sm_90 | 70 | 0 | 20,000 | 12 |",
        "| ddtree_a | sm_120 | 70 | 0 | 20,000 | 12 |",
        "| ddtree_b | sm_90 | 70 | 0 | 0 | 12 |",
    ]


def test_too_much_shared_memory_is_refused(tmp_path: Path) -> None:
    write_kernels(tmp_path, shared=90 * 1024)
    resources.resource_table(tmp_path, {"ddtree_a": 9 * 1024})
    with pytest.raises(ValueError, match="ddtree_a takes 101377 bytes"):
        resources.resource_table(tmp_path, {"ddtree_a": 9 * 1024 + 1})


def test_dynamic_shared_memory_comes_from_the_headers() -> None:
    require_compiler()
    shared = resources.dynamic_shared()
    # At least the table of 63 levels of 64 ranks and the scores of 1024 entries and 1025 nodes.
    assert 8 * (63 * 64 + 2049) < shared["ddtree_build_tree"] < resources.SHARED_LIMIT
    entries = set(re.findall(r"\b(ddtree_\w+)\(", " ".join(sources())))
    assert set(shared) <= entries
    users = {entry for text in sources() for entry in users_of_shared(text)}
    assert set(shared) == users


def sources() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((OVERLAY / "csrc").glob("*.cu"))]


def users_of_shared(text: str) -> list[str]:
    """Entries whose body names the dynamic shared memory."""
    bodies = re.split(r'extern "C" __global__', text)[1:]
    names = [re.findall(r"\b(ddtree_\w+)\s*\(", body)[0] for body in bodies]
    return [name for name, body in zip(names, bodies, strict=True) if "extern __shared__" in body]


def has_ops() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    spec: Any = importlib.util.find_spec("ddtree_overlay")
    return Path(spec.origin or "").with_name("_build_info.json").is_file()


needs_ops = pytest.mark.skipif(not has_ops(), reason="torch and the overlay's wheel are not here")


@needs_ops
def test_a_tiny_measurement_on_the_cpu(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    ran = run(
        *("--device", "cpu", "--batches", "1,2", "--budgets", "16", "--replays", "2"),
        *("--vocabulary", "500", "--layers", "1", "--prefix", "20", "--json", str(file)),
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(file.read_text())
    parts = {(row["batch"], row["part"]) for row in found["rows"]}
    assert len(parts) == len(found["rows"]) == 2 * 9
    assert {part for _, part in parts} >= {"rank_tokens", "build+walk+compact", "round"}
    for row in found["rows"]:
        assert 0 < row["warm"]["median"] <= row["warm"]["p95"]
    assert [t["verdict"] for t in found["targets"]] == ["not measured"] * 2
    assert "| 2 | 16 | round |" in ran.stdout


@needs_ops
def test_the_heap_is_measured() -> None:
    ran = run("--heap", "--replays", "2")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"a heap in Python, .* us a request: \d+ times the op's", ran.stdout)


@needs_ops
def test_targets_are_judged_on_an_h200_only() -> None:
    from benchmarks.kernels_measure import targets

    rows = [
        {"batch": 1, "budget": 64, "part": "build+walk+compact", "warm": {"median": 39.0}},
        {"batch": 16, "budget": 64, "part": "rank_tokens", "alone": {"median": 31.0}},
    ]
    on = {"device": "cuda", "machine": {"name": "NVIDIA H200"}, "rows": rows}
    assert [t["verdict"] for t in targets(on)] == ["met (39.0 us)", "not met (31.0 us)"]
    off = {**on, "machine": {"name": "NVIDIA RTX PRO 6000"}}
    assert {t["verdict"] for t in targets(off)} == {"not measured"}


@needs_ops
def test_without_a_gpu_it_says_so() -> None:
    import torch  # type: ignore[import-not-found, unused-ignore]

    if torch.cuda.device_count():
        pytest.skip("a GPU is here")
    ran = run()
    assert ran.returncode == 3
    assert ran.stderr.startswith("error: no NVIDIA GPU here")
