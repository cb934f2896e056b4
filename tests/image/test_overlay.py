"""The overlay's own tests and the benchmarks', with the torch, extension and SGLang of the image."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.image.conftest import HERE, Ran

# They are this tree's, and so must the overlay in the image be.
pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("this_tree")]

# What of tests/overlay needs torch, the extension or SGLang; on the host these files skip.
OVERLAY_TESTS = (
    *("test_acceptance", "test_cpu_proof", "test_cpu_proof_observer", "test_cpu_proof_shims"),
    *("test_gates", "test_gates_drafter", "test_gates_server", "test_gates_target"),
    *("test_kv_moves", "test_launch", "test_launch_mutations", "test_mask"),
    *("test_ops_arguments", "test_ops_fakes", "test_ops_kernels_torch", "test_ops_move"),
    *("test_ops_on_emulator", "test_ops_rank", "test_ops_torch", "test_ops_tree"),
    *("test_ops_walk", "test_patched_sglang", "test_ranking", "test_rounds"),
    *("test_sampling", "test_sglang_requests", "test_verify", "test_walk"),
    *("test_walk_move", "test_walk_sync"),
    *("doctor/test_collective_torch", "doctor/test_image_overlay_torch"),
    "doctor/test_model_against_sglang",
)


def test_overlay_tests_pass_inside_the_image(run_in: Callable[..., Ran]) -> None:
    """The tree, the op and what SGLang runs, against the torch that the image really carries."""
    ran = run_in(
        *("python", "-m", "pytest", "-p", "no:cacheprovider", "-q"),
        *("-c", "/dev/null", "--rootdir", "/tests/overlay"),
        *(f"/tests/overlay/{name}.py" for name in OVERLAY_TESTS),
        env={"PYTHONPATH": "/pytest:/", "CI": "true"},
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


def test_the_benchmarks_run_inside_the_image(run_in: Callable[..., Ran]) -> None:
    """Those parts of tests/benchmarks that need the ops skip on the host."""
    ran = run_in(
        *("python", "-m", "pytest", "-p", "no:cacheprovider", "-q"),
        *("-c", "/dev/null", "--rootdir", "/tests/benchmarks", "/tests/benchmarks/test_kernels.py"),
        env={"PYTHONPATH": "/pytest:/", "CI": "true"},
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


def test_every_overlay_test_runs_somewhere() -> None:
    """A file that skips on the host and is not named above would run nowhere."""
    overlay = HERE.parent / "overlay"
    guarded = {
        str(path.relative_to(overlay).with_suffix(""))
        for path in overlay.rglob("test_*.py")
        if re.search(r"pytest\.(skip|mark\.skipif)\(", path.read_text(encoding="utf-8"))
    }
    assert guarded == set(OVERLAY_TESTS)
