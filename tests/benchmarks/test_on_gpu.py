"""benchmarks/on_gpu.py without a GPU: what it says, and the parts that need none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import on_gpu
from tests.overlay.conftest import OVERLAY

PROGRAM = OVERLAY.parent / "benchmarks/on_gpu.py"


def nvidia_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    nvidia_smi(tmp_path, "echo No devices were found; exit 6")
    results = tmp_path / "results"
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), "--results", str(results)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert ran.returncode == on_gpu.NO_GPU == 3
    assert ran.stdout == "no NVIDIA GPU here: nothing was run\n"
    assert ran.stderr == ""
    assert not results.exists()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'NVIDIA H200, 9.0'", ("NVIDIA H200", "sm_90")),
        ("echo 'NVIDIA RTX PRO 6000 Blackwell, 12.0'", ("NVIDIA RTX PRO 6000 Blackwell", "sm_120")),
        ("exit 0", None),
        ("echo 'NVIDIA-SMI has failed'; exit 9", None),
    ],
)
def test_the_gpu_is_found(
    script: str, found: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert on_gpu.find_gpu() == found


def test_no_driver_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert on_gpu.find_gpu() is None


def test_steps_are_logged_and_judged(tmp_path: Path) -> None:
    run = on_gpu.Run(tmp_path)
    assert run.step("good", [sys.executable, "-c", "print('fine')"], 60)
    assert not run.failed
    assert (tmp_path / "good.log").read_text() == "fine\n"
    assert not run.step("bad", [sys.executable, "-c", "raise SystemExit(4)"], 60)
    assert run.failed
    assert run.lines[0].startswith("good: ok, ")
    assert run.lines[1].startswith("bad: FAILED (4), see bad.log, ")
    assert not run.step("absent", [str(tmp_path / "nothing")], 60)
    assert "No such file" in run.lines[2]


def test_a_step_that_hangs_ends_with_what_it_started(tmp_path: Path) -> None:
    run = on_gpu.Run(tmp_path)
    marker = tmp_path / "alive"
    begin = time.monotonic()
    script = f"(sleep 3; touch {marker}) & wait"
    assert not run.step("hang", ["sh", "-c", script], 1.5)
    assert time.monotonic() - begin < 3
    assert "stopped after 2 s" in run.lines[0]
    time.sleep(2.5)
    assert not marker.exists()


def test_no_step_begins_when_the_time_is_over(tmp_path: Path) -> None:
    run = on_gpu.Run(tmp_path, begin=time.monotonic() - on_gpu.TOTAL)
    assert not run.step("late", ["true"], 60)
    assert run.lines == ["late: no time left"]
    assert run.failed


def test_tests_are_counted(tmp_path: Path) -> None:
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="a[cpu]"/><testcase name="a[x-cuda]"/>'
        '<testcase name="b[cuda]"><skipped/></testcase><testcase name="b[cpu]"><failure/>'
        '</testcase><testcase name="c[cuda]"><error/></testcase></testsuite></testsuites>'
    )
    assert on_gpu.count_tests(report) == (1, 2, 1)


def test_the_files_it_runs_exist() -> None:
    for name in (*on_gpu.TESTS, "benchmarks/kernels.py"):
        assert (on_gpu.ROOT / name).is_file(), name
