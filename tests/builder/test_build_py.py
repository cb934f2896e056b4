"""build.py before it has an environment: standard library only, refusals in two lines."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import build
from builder.project import default_project

SCRIPT = default_project().root / "build.py"


def run(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_only_the_standard_library_is_imported_before_the_environment() -> None:
    """And what it imports of the builder is standard-library-only as well."""
    allowed = set(sys.stdlib_module_names) | {"builder"}
    for path in (SCRIPT, SCRIPT.parent / "builder/errors.py", SCRIPT.parent / "builder/project.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                assert {a.name.split(".")[0] for a in node.names} <= allowed
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in allowed


def test_an_old_python_is_told_so() -> None:
    code = (
        "import sys, runpy; sys.version_info = (3, 9, 1, 'final', 0)\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    ran = run(code, {"PYTHONPATH": str(SCRIPT.parent)})
    assert ran.returncode == 61
    assert "Python 3.9 is too old" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_failed_preparation_is_two_lines_and_leaves_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "plan", "--cuda", "cu130"],
        env={
            **os.environ,
            "DDTREE_CACHE": str(tmp_path),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
            "PIP_RETRIES": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 60
    assert "error: pip could not install builder/requirements.lock" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert [p for p in (tmp_path / "env").iterdir() if p.is_dir()] == []


def test_environments_of_other_locks_and_pythons_are_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one.lock", tmp_path / "two.lock"
    one.write_text("a==1\n")
    two.write_text("a==2\n")
    assert build.environment_dir(one, tmp_path) != build.environment_dir(two, tmp_path)
    assert f"py{sys.version_info[0]}.{sys.version_info[1]}" in str(
        build.environment_dir(one, tmp_path)
    )


@pytest.mark.parametrize(
    ("argv", "folder"), [(["test"], "tests"), (["--cuda", "cu130"], "builder"), ([], "builder")]
)
def test_test_runs_on_the_test_tools(argv: list[str], folder: str) -> None:
    assert build.environment_lock(argv).parent.name == folder


def test_a_broken_environment_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "complete").write_text("ok")
    assert not build.usable(tmp_path)  # its interpreter is gone
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("")
    assert build.usable(tmp_path)


def test_an_interrupted_preparation_removes_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(_lock: Path, target: Path) -> None:
        target.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "create", cut_short)
    with pytest.raises(KeyboardInterrupt):
        build.prepare(tmp_path / "lock", tmp_path / "env")
    assert not (tmp_path / "env").exists()


@pytest.mark.parametrize("cache", ["/proc/nowhere", "/dev/null/x"])
def test_an_unusable_cache_is_two_lines(cache: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "plan", "--cuda", "cu130"],
        env={**os.environ, "DDTREE_CACHE": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 60
    assert "DDTREE_CACHE" in ran.stderr
    assert "Traceback" not in ran.stderr
