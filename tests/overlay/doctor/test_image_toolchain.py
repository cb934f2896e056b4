"""What compiles at run time: stubs on PATH and a CUDA folder of empty files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.image_checks import toolchain
from ddtree_overlay.doctor.image_checks.toolchain import check_ptxas, check_toolchain
from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.serve.manifest import Manifest
from tests.overlay.doctor.model_files import ids, stub, subject

SAYS_13 = "print('Cuda compilation tools, release 13.0, V13.0.88')"
PINS = {"pins": {"cuda": {"version": "13.0"}, "toolchain": {"source": "wheels"}}}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """bin/ with compilers, cuda/ with nvcc, headers and a runtime, and a Triton."""
    for folder in ("bin", "cuda/bin", "cuda/include", "cuda/lib", "triton/backends/nvidia/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("bin/g++", "bin/ninja", "triton/backends/nvidia/bin/ptxas"):
        stub(tmp_path / name, "print('1.0')")
    stub(tmp_path / "triton/backends/nvidia/bin/ptxas-blackwell", "print('1.0')")
    stub(tmp_path / "cuda/bin/nvcc", SAYS_13)
    for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h"):
        (tmp_path / "cuda/include" / name).touch()
    (tmp_path / "cuda/lib/libcudart.so.13").touch()
    monkeypatch.setattr(toolchain, "_triton", lambda: tmp_path / "triton")
    return tmp_path


def _check(tools: Path, manifest: dict[str, Any] | None = None, **environment: str) -> list[Any]:
    given = {"PATH": str(tools / "bin"), "CUDA_HOME": str(tools / "cuda"), **environment}
    return list(check_toolchain(subject(environment=given, manifest=Manifest(manifest or PINS))))


def test_a_whole_toolchain(tools: Path) -> None:
    assert ids(_check(tools)) == []


def _remove(name: str) -> Callable[[Path], Any]:
    return lambda tools: (tools / name).unlink()


def _say(name: str, body: str) -> Callable[[Path], Any]:
    return lambda tools: stub(tools / name, body)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (_remove("bin/g++"), "TLC001", "no g++ on PATH"),
        (_say("bin/g++", "raise SystemExit(1)"), "TLC001", "exit code 1"),
        (lambda t: (t / "bin/g++").chmod(0o644), "TLC001", "no g++"),
        (_remove("bin/ninja"), "TLC002", "no ninja"),
        (_remove("cuda/bin/nvcc"), "TLC003", "no nvcc"),
        (_say("cuda/bin/nvcc", "raise SystemExit(3)"), "TLC003", "exit code 3"),
        (lambda t: (t / "cuda/bin/nvcc").write_text("no program"), "TLC003", "cannot be started"),
        (_say("cuda/bin/nvcc", "print('hello')"), "TLC003", "no release"),
        (_say("cuda/bin/nvcc", "print('release 12.8,')"), "TLC004", "CUDA 12.8, the image of 13.0"),
        (_remove("cuda/include/cuda_bf16.h"), "TLC005", "cuda_bf16.h"),
        (_remove("cuda/lib/libcudart.so.13"), "TLC005", "libcudart"),
        (
            _say("triton/backends/nvidia/bin/ptxas-blackwell", "raise SystemExit(1)"),
            "TLC006",
            "ptxas-blackwell ended with exit code 1",
        ),
        (
            lambda t: (t / "triton/backends/nvidia/bin/ptxas").chmod(0o644),
            "TLC006",
            "cannot be started (Permission denied)",
        ),
    ],
)
def test_one_fault_is_one_finding(
    tools: Path, change: Callable[[Path], Any], code: str, says: str
) -> None:
    change(tools)
    (finding,) = _check(tools)
    assert finding.code == code and says in finding.what


def test_for_a_cpu_it_is_a_warning(tools: Path) -> None:
    (tools / "bin/ninja").unlink()
    given = {"PATH": str(tools / "bin"), "CUDA_HOME": str(tools / "cuda")}
    (finding,) = check_toolchain(subject(environment=given, device="cpu"))
    assert (finding.code, finding.severity) == ("TLC002", Severity.WARNING)
    assert [found.severity for found in _check(tools)] == [Severity.ERROR]


def test_a_program_that_hangs(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "SECONDS", 0.5)
    stub(tools / "bin/ninja", "import time; time.sleep(60)")
    (finding,) = _check(tools)
    assert finding.code == "TLC002" and "no answer" in finding.what


def test_headers_below_targets_count(tools: Path) -> None:
    folder = tools / "cuda/targets/x86_64-linux"
    folder.mkdir(parents=True)
    (tools / "cuda/include").rename(folder / "include")
    (tools / "cuda/lib").rename(folder / "lib")
    assert ids(_check(tools)) == []


def test_nvcc_on_path_alone(tools: Path) -> None:
    path = f"{tools / 'bin'}:{tools / 'cuda/bin'}"
    assert ids(_check(tools, PATH=path, CUDA_HOME="")) == []


def test_a_stand_in_has_no_toolkit(tools: Path) -> None:
    (finding,) = _check(tools, {"pins": {"toolchain": {"source": "absent"}}}, CUDA_HOME="")
    assert (finding.code, finding.severity) == ("TLC007", Severity.INFO)


def test_triton_without_ptxas(tmp_path: Path) -> None:
    assert ids(check_ptxas(tmp_path, {})) == ["TLC006"]
    assert ids(check_ptxas(None, {})) == []


def test_a_ptxas_named_by_the_user(tools: Path) -> None:
    (finding,) = check_ptxas(tools / "triton", {"TRITON_PTXAS_PATH": "/no/such/ptxas"})
    assert finding.code == "TLC006" and "/no/such/ptxas" in finding.what
