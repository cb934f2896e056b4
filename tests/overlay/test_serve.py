"""The entry point as a process: its commands, other programs, `version`. `serve` is in serve/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.serve import errors
from ddtree_overlay.serve.cli import COMMANDS
from tests.overlay.conftest import OVERLAY

MANIFEST: dict[str, Any] = {
    "schema": 1,
    "version": "0.1.0",
    "variant": "cu130",
    "stand_in": False,
    "build_id": "b-123",
    "base": {"kind": "bootstrap", "detail": "bookworm"},
    "sglang": {"version": "0.5.17", "base_tree": "aa" * 32, "patched_tree": "bb" * 32},
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system for the entry point: site/ for packages, bin/ for programs, host/ for /dev."""
    for name in ("site", "bin", "host/dev"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    return tmp_path


@pytest.fixture
def run(root: Path) -> Run:
    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ddtree_overlay.serve.cli", *arguments],
            env={
                "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": f"{OVERLAY / 'src'}:{root / 'site'}",
                "DDTREE_MANIFEST": str(root / "manifest.json"),
                "DDTREE_HOST_ROOT": str(root / "host"),
                **environment,
            },
            check=False,
            capture_output=True,
            text=True,
        )

    return call


# Gets past what `serve` refuses, and starts nothing.
DRY = ("serve", "--dry-run", "--device", "cpu", "--model", "m")


def install(root: Path, name: str, version: str) -> None:
    info = root / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def stand_in(root: Path) -> None:
    (root / "manifest.json").write_text(json.dumps({**MANIFEST, "stand_in": True}))


@pytest.mark.parametrize("node", ["nvidiactl", "nvidia0", "nvidia7", "dxg"])
def test_a_stand_in_refuses_a_gpu(root: Path, run: Run, node: str) -> None:
    stand_in(root)
    (root / "host" / "dev" / node).touch()
    ran = run("serve", "--model-path", "m")
    assert ran.returncode == errors.StandInGpuError.exit_code
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    assert len(lines) == 2
    assert f"/dev/{node}" in lines[0]
    assert "--stand-in" in lines[1]


@pytest.mark.parametrize("node", [None, "nvidia-uvm", "nvidia-caps", "null"])
def test_a_stand_in_serves_without_a_gpu(root: Path, run: Run, node: str | None) -> None:
    stand_in(root)
    if node:
        (root / "host" / "dev" / node).touch()
    assert run(*DRY).returncode == 0


def test_another_image_serves_with_a_gpu(root: Path, run: Run) -> None:
    (root / "host" / "dev" / "nvidiactl").touch()
    assert run(*DRY).returncode == 0
    (root / "manifest.json").unlink()
    assert run(*DRY).returncode == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"'])
@pytest.mark.parametrize("command", ["serve", "version"])
def test_a_damaged_manifest_is_not_overlooked(
    root: Path, run: Run, command: str, content: str
) -> None:
    (root / "manifest.json").write_text(content)
    ran = run(command)
    assert ran.returncode == errors.ManifestError.exit_code
    assert "manifest.json" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_any_other_program_is_executed(run: Run) -> None:
    ran = run("sh", "-c", "echo out; echo err >&2; exit 9")
    assert (ran.returncode, ran.stdout, ran.stderr) == (9, "out\n", "err\n")


def test_an_unknown_program_is_one_line(run: Run) -> None:
    ran = run("no-such-program", "--x")
    assert ran.returncode == 127
    assert ran.stderr.count("\n") == 1
    assert "no-such-program" in ran.stderr
    assert "did you mean" not in ran.stderr


@pytest.mark.parametrize(("word", "command"), [("versoin", "version"), ("server", "serve")])
def test_a_mistyped_command_gets_a_hint(run: Run, word: str, command: str) -> None:
    ran = run(word)
    assert ran.returncode == 127
    assert f"did you mean {command}?" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_file_that_is_not_executable(root: Path, run: Run) -> None:
    (root / "data.txt").write_text("x")
    ran = run(str(root / "data.txt"))
    assert ran.returncode == 126
    assert "cannot be executed" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_help_names_the_commands(run: Run) -> None:
    ran = run("--help")
    assert ran.returncode == 0
    for command in COMMANDS:
        assert command in ran.stdout


def full_stack(root: Path) -> None:
    for name, version in {
        "torch": "2.11.0",
        "sglang": "0.5.17+ddtree.bbbbbbbb",
        "sglang-kernel": "0.4.5",
        "triton": "3.6.0",
        "flashinfer-python": "0.6.15.post1",
    }.items():
        install(root, name, version)
    (root / "site" / "torch").mkdir()
    (root / "site" / "torch" / "__init__.py").write_text("raise ImportError('torch is broken')\n")
    (root / "site" / "torch" / "version.py").write_text(
        "from typing import Optional\n__all__ = ['__version__', 'cuda']\n"
        "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )


def test_version_prints_the_stack_though_torch_is_broken(root: Path, run: Run) -> None:
    full_stack(root)
    document = json.loads(run("version", "--json").stdout)
    assert document == {
        **document,
        "version": "0.1.0",
        "build_id": "b-123",
        "variant": "cu130",
        "stand_in": False,
        "cuda": "13.0",
        "torch": "2.11.0+cu130",
        "sglang": "0.5.17+ddtree.bbbbbbbb",
        "sglang_base_tree": "aa" * 32,
        "sglang_patched_tree": "bb" * 32,
        "sglang_kernel": "0.4.5",
        "triton": "3.6.0",
        "flashinfer": "0.6.15.post1",
        "base": "bootstrap: bookworm",
        "python": sys.version.split()[0],
    }
    text = run("version").stdout
    for value in ("2.11.0+cu130", "0.5.17+ddtree.bbbbbbbb", "cu130", "bootstrap: bookworm"):
        assert value in text
    assert dict(line.split(maxsplit=1) for line in text.splitlines())["stand_in"] == "no"


def test_version_knows_what_is_missing(root: Path, run: Run) -> None:
    (root / "manifest.json").unlink()
    ran = run("version", "--json")
    assert ran.returncode == 0
    document = json.loads(ran.stdout)
    for name in ("version", "torch", "cuda", "sglang", "triton", "sglang_patched_tree", "base"):
        assert document[name] == "unknown"


def test_version_reads_a_partial_manifest(root: Path, run: Run) -> None:
    (root / "manifest.json").write_text('{"sglang": [], "base": {"kind": "registry"}, "x": 1}')
    document = json.loads(run("version", "--json").stdout)
    assert (document["base"], document["sglang_base_tree"]) == ("registry", "unknown")


def test_version_lists_the_kernels_that_are_there(tmp_path: Path) -> None:
    from ddtree_overlay.serve.manifest import Manifest
    from ddtree_overlay.serve.version import collect

    (tmp_path / "kernels").mkdir()
    for name in (
        "a.sm_90.cubin",
        "a.sm_120.cubin",
        "b.sm_120.cubin",
        "a.compute_120.ptx",
        "k.json",
    ):
        (tmp_path / "kernels" / name).touch()
    (tmp_path / "_build_info.json").write_text('{"variant": "cu128", "nvrtc": "12.8.93"}')
    values = collect(Manifest({}), tmp_path)
    assert values["cubins"] == ["compute_120", "sm_120", "sm_90"]
    assert (values["variant"], values["nvrtc"]) == ("cu128", "12.8.93")


def test_version_takes_nothing_else(run: Run) -> None:
    ran = run("version", "--jsno")
    assert ran.returncode == errors.UsageError.exit_code
    assert "--jsno" in ran.stderr


def test_exit_codes_are_distinct() -> None:
    codes = [cls.exit_code for cls in errors.EntryError.__subclasses__()]
    assert len(set(codes)) == len(codes)
    assert all(64 <= code <= 127 for code in codes)


@pytest.mark.parametrize("package", ["serve", "doctor", "selftest"])
def test_only_the_standard_library_is_imported(run: Run, package: str) -> None:
    """With every other module blocked, each module that must run when torch does not still imports."""
    program = (
        "import sys, pkgutil, importlib\n"
        f"p = importlib.import_module('ddtree_overlay.{package}')\n"
        "for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'): importlib.import_module(m.name)\n"
        "known = sys.stdlib_module_names | {'ddtree_overlay', '__main__', 'sitecustomize'}\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} - known))\n"
        "print(len([n for n in sys.modules if n.startswith(p.__name__)]) > 5)\n"
    )
    ran = run(sys.executable, "-S", "-c", program)
    assert ran.stdout.splitlines() == ["[]", "True"], ran.stdout + ran.stderr
