"""The ops' tests on their CUDA path: its launches and kernels run on the emulator, with CPU tensors.

What is left out: refusals of values, which only a CPU can read, and tests of the installed file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.overlay.native_ops import build_package, kernel_entries, missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

HERE = Path(__file__).resolve().parent
# All files of the ops' tests, whichever ops they are of.
FILES = {
    path.stem.removeprefix("test_ops_"): path
    for path in sorted(HERE.glob("test_ops_*.py"))
    if "kernels" not in path.stem and path.stem != Path(__file__).stem
}


SELECTED = "not refused and not extension and not another"
LEFT_OUT = (
    "test_ops_tree.py::test_a_fault_in_a_buffer_call_is_named",
    "test_ops_tree.py::test_the_op_is_ten_times_as_fast_as_a_heap_in_python",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_package(tmp_path_factory.mktemp("emulated"))


def run(
    site: Path, names: Iterable[str], selected: str = SELECTED, **environment: str | Path
) -> Any:
    """pytest on test files, up to the first failure."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=short"),
            *("-c", os.devnull, "--rootdir", str(HERE), "-k", selected),
            *(argument for test in LEFT_OUT for argument in ("--deselect", test)),
            *(str(FILES[name]) for name in names),
        ],
        env={
            **os.environ,
            **{name: str(value) for name, value in environment.items()},
            "PYTHONPATH": f"{site}:{HERE.parents[1]}:{os.environ.get('PYTHONPATH', '')}",
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )


def counts(path: Path) -> dict[str, int]:
    """Launches by kernel."""
    return {name: int(n) for name, n in map(str.split, path.read_text().splitlines())}


def test_the_cuda_path_of_every_op(site: Path, tmp_path: Path) -> None:
    launches = tmp_path / "launches"
    ran = run(site, FILES, DDTREE_EMULATED_LAUNCHES=launches)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]
    assert " skipped" not in ran.stdout
    assert set(counts(launches)) == set(kernel_entries())
    assert [name for name, count in counts(launches).items() if count == 0] == []


def test_the_launches_of_a_small_gpu(site: Path, tmp_path: Path) -> None:
    """Some ops choose their launch by the GPU's size: there the walk reads only what it visits."""
    launches = tmp_path / "launches"
    ran = run(
        site,
        FILES,
        f"({SELECTED}) and (walk or serving or split)",
        DDTREE_EMULATED_LAUNCHES=launches,
        DDTREE_EMULATED_MULTIPROCESSORS="1",
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]
    found = counts(launches)
    assert found["ddtree_walk_greedy"] > 0
    assert found["ddtree_rank_shard"] > 0
    assert found["ddtree_argmax_rows"] == 0


@pytest.mark.parametrize(
    ("name", "fault"),
    # The kernels that move rows use no shared memory.
    [("tree", "grid"), ("rank", "grid"), ("move", "grid"), ("tree", "shared"), ("rank", "shared")],
)
def test_a_wrong_launch_is_noticed(site: Path, name: str, fault: str) -> None:
    ran = run(site, [name], DDTREE_EMULATED_FAULT=fault)
    assert ran.returncode == 1, ran.stdout[-2000:]
    assert "1 failed" in ran.stdout
