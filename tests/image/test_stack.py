"""Versions as observed in the container, against the pins, the manifest and the labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from builder.explain import TRAILS
from builder.files import sha256_file
from builder.pins import Target
from builder.project import default_project
from tests.image.conftest import HERE, Ran

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def manifest(host: Any) -> dict[str, Any]:
    text: str = host.file("/opt/ddtree/manifest.json").content_string
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.fixture(scope="module")
def observed(image_python: Callable[[str], Ran]) -> dict[str, Any]:
    """What importing the stack says, not what its metadata says."""
    ran = image_python(
        "import json, sys, torch, triton, sglang, ddtree_overlay.ops\n"
        "import importlib.metadata as m\n"
        "print(json.dumps({'python': sys.version.split()[0], 'torch': torch.__version__,\n"
        " 'cuda': torch.version.cuda, 'triton': triton.__version__, 'sglang': sglang.__version__,\n"
        " 'kernels': m.version('sglang-kernel')}))"
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    document: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return document


def test_imported_versions_are_the_pinned_ones(observed: dict[str, Any], target: Target) -> None:
    assert observed["torch"].split("+")[0] == target.torch.version.split("+")[0]
    assert observed["cuda"] == target.cuda.version
    assert observed["triton"] == target.torch.triton
    assert observed["kernels"] == target.kernels.version
    assert observed["python"].startswith(target.shared.python.version + ".")
    tree8 = target.shared.sglang.patched_tree[:8]
    assert observed["sglang"] == f"{target.shared.sglang.version}+ddtree.{tree8}"


def test_labels_say_what_is_there(
    labels: dict[str, str], observed: dict[str, Any], manifest: dict[str, Any], target: Target
) -> None:
    prefix = target.shared.project.label_prefix
    assert labels[f"{prefix}.variant"] == target.variant
    assert labels[f"{prefix}.torch"] == observed["torch"]
    assert labels[f"{prefix}.cuda"] == observed["cuda"]
    assert labels[f"{prefix}.sglang"] == observed["sglang"]
    assert labels[f"{prefix}.build-id"] == manifest["build_id"]
    assert labels[f"{prefix}.stand-in"] == str(target.stand_in).lower()
    assert labels["org.opencontainers.image.revision"]
    assert set(labels[f"{prefix}.sass"].replace(",", " ").split()) == set(target.cubin.sass)


def test_manifest_holds_every_pin(manifest: dict[str, Any], target: Target) -> None:
    pins = manifest["pins"]
    assert pins["torch"]["version"] == target.torch.version
    assert pins["lock_sha256"] == sha256_file(target.lock_file(default_project()))
    assert manifest["sglang"]["patched_tree"] == target.shared.sglang.patched_tree
    assert manifest["base"]["kind"] in ("registry", "bootstrap")
    assert manifest["stand_in"] is target.stand_in


def test_explain_names_real_places(manifest: dict[str, Any], labels: dict[str, str]) -> None:
    """Every manifest key and label that `explain` speaks of is in the image."""
    for _distribution, key, label in TRAILS.values():
        place: Any = manifest
        for part in key.split("."):
            assert part in place, key
            place = place[part]
        if label:
            assert f"dev.ddtree.{label}" in labels


def test_image_is_within_its_budget(manifest: dict[str, Any], target: Target) -> None:
    total = manifest["sizes"]["total_bytes"]
    assert 0 < total <= target.budget.image_gib * 2**30


def test_audit_report_is_in_the_image_and_clean(host: Any) -> None:
    report = json.loads(host.file("/opt/ddtree/audit.json").content_string)
    assert report["findings"] == []
    assert report["elf_files"] > 500


def test_ddtree_is_an_algorithm_with_its_own_arguments(image_python: Callable[[str], Ran]) -> None:
    ran = image_python(
        "from sglang.srt.speculative.spec_info import SpeculativeAlgorithm as S\n"
        "from sglang.srt.server_args import ServerArgs\n"
        "import dataclasses\n"
        "print(S.from_string('DDTREE').name)\n"
        "print(sorted(f.name for f in dataclasses.fields(ServerArgs) if 'ddtree' in f.name))"
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "DDTREE" in ran.stdout
    for field in ("budget", "topk", "allow_hybrid_unsafe"):
        assert f"speculative_ddtree_{field}" in ran.stdout


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


def test_jit_toolchain_compiles_a_kernel(run_in: Callable[..., Ran], target: Target) -> None:
    """The runtime image's own nvcc makes an sm_120 cubin and links libcudart: what JIT does."""
    if target.toolchain.source == "absent":
        ran = run_in("sh", "-c", "command -v nvcc")
        assert ran.returncode != 0, "a stand-in must not carry a toolkit of another CUDA"
        return
    script = (
        "set -e; cd $(mktemp -d)\n"
        "printf '#include <cuda_bf16.h>\\n#include <cub/cub.cuh>\\n"
        "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\\n"
        'extern "C" void run(float* x) { twice<<<1, 32>>>(x); cudaDeviceSynchronize(); }\\n'
        "' > k.cu\n"
        "nvcc -arch=sm_120 -O2 -shared -Xcompiler -fPIC k.cu -o libk.so -cudart shared "
        "-L$CUDA_HOME/lib64 -L$CUDA_HOME/lib64/stubs -lcuda -lnvrtc -lcublas -lcublasLt\n"
        "nvcc --version\n"
        "ls -l libk.so\n"
    )
    ran = run_in("sh", "-c", script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"release {target.cuda.version}" in ran.stdout
