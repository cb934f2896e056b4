"""When the CPU proof path is off, refused or broken: needs neither torch nor SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ddtree_overlay
from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError
from ddtree_overlay.sglang.cpu_proof.hooks import find

SOURCE = str(Path(ddtree_overlay.__file__).parents[1])
ACTIVATE = """
import sys
from ddtree_overlay.sglang.cpu_proof import activate
try:
    activate()
except Exception:
    print("SGLang would only log this")
print("running on with", sorted({"torch", "sglang", "vllm"} & set(sys.modules)))
"""


def activate(*paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What SGLang does with the plugin, in a process of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DDTREE_")}
    search = os.pathsep.join([*(str(path) for path in paths), SOURCE])
    return subprocess.run(
        [sys.executable, "-c", ACTIVATE],
        env=kept | {"PYTHONPATH": search} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def cuda_machine(tmp_path: Path) -> Path:
    """A folder with a torch that sees a GPU, if it is asked without starting CUDA."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from . import cuda\n")
    (package / "cuda.py").write_text(
        "import os\n"
        "def is_available():\n"
        "    assert os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'] == '1'\n"
        "    return os.environ.get('CUDA_VISIBLE_DEVICES') != ''\n"
    )
    return tmp_path


@pytest.mark.parametrize("environment", [{}, {"DDTREE_CPU_PROOF": ""}, {"DDTREE_CPU_PROOF": "0"}])
def test_off_by_default_and_imports_nothing(
    environment: dict[str, str], cuda_machine: Path
) -> None:
    ran = activate(cuda_machine, **environment)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "running on with []\n", "")


@pytest.mark.parametrize("setting", ["2", "true", "yes", " 1"])
def test_another_setting_ends_the_process(setting: str) -> None:
    ran = activate(DDTREE_CPU_PROOF=setting)
    assert ran.returncode == CpuProofError.exit_code == 67
    assert ran.stdout == ""
    what, remedy = ran.stderr.splitlines()
    assert what == f"error: DDTREE_CPU_PROOF={setting!r} is neither 0 nor 1"
    assert remedy.startswith("remedy: set DDTREE_CPU_PROOF=1")


def test_a_visible_cuda_device_ends_the_process(cuda_machine: Path) -> None:
    ran = activate(cuda_machine, DDTREE_CPU_PROOF="1", CUDA_VISIBLE_DEVICES="0")
    assert ran.returncode == CpuProofError.exit_code
    assert ran.stdout == ""
    assert ran.stderr.splitlines()[0] == "error: DDTREE_CPU_PROOF=1, but a CUDA device is visible"
    assert 'CUDA_VISIBLE_DEVICES=""' in ran.stderr.splitlines()[1]


def test_a_hidden_cuda_device_is_no_reason_to_refuse(cuda_machine: Path) -> None:
    # Goes on to the next step, where this torch is not enough.
    (cuda_machine / "vllm.py").touch()
    ran = activate(cuda_machine, DDTREE_CPU_PROOF="1", CUDA_VISIBLE_DEVICES="")
    assert "CUDA" not in ran.stderr
    assert ran.stderr.splitlines()[0].startswith("error: a package vllm is importable")
    assert ran.returncode == CpuProofError.exit_code


def test_an_unforeseen_failure_ends_the_process(cuda_machine: Path) -> None:
    (cuda_machine / "torch" / "cuda.py").write_text("def is_available(): raise OSError('no NVML')")
    ran = activate(cuda_machine, DDTREE_CPU_PROOF="1")
    assert ran.returncode == CpuProofError.exit_code
    assert "cannot be activated: OSError: no NVML" in ran.stderr
    assert "only log" not in ran.stdout


def test_a_target_that_is_gone_is_an_error() -> None:
    with pytest.raises(CpuProofError, match=r"has no os\.path\.joined to replace"):
        find("os.path.joined", ("a",))
    with pytest.raises(CpuProofError, match=r"has no os\.no_such_module\.join to replace"):
        find("os.no_such_module.join", None)
    # A class that only inherits the method is not where it is defined.
    with pytest.raises(CpuProofError, match="PosixPath inherits"):
        find("pathlib.PosixPath.with_suffix", None)


def test_a_target_with_other_parameters_is_an_error() -> None:
    assert find("os.path.join", ("a", "p")) is os.path.join
    with pytest.raises(CpuProofError, match=r"takes \('a', 'p'\), .* written for \('a', 'b'\)"):
        find("os.path.join", ("a", "b"))
