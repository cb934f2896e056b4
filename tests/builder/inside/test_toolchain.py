"""Links that complete a CUDA toolkit folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builder.inside import toolchain
from builder.inside.toolchain import ToolchainError, complete


def _home(path: Path, library: str = "lib", names: tuple[str, ...] = ("libcudart.so.13",)) -> Path:
    (path / library).mkdir(parents=True)
    for name in names:
        (path / library / name).write_text("")
    return path


def test_wheels_get_lib64_and_an_unversioned_runtime(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    assert len(complete(home)) == 2
    assert (home / "lib64").readlink() == Path("lib")
    assert (home / "lib/libcudart.so").readlink() == Path("libcudart.so.13")
    assert (home / "lib64/libcudart.so").is_file()


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    complete(home)
    assert complete(home) == []


def test_archives_with_lib64_only_get_lib(tmp_path: Path) -> None:
    home = _home(tmp_path / "cuda", "lib64", ("libcudart.so.12", "libcudart.so.12.8.90"))
    complete(home)
    assert (home / "lib").readlink() == Path("lib64")
    assert (home / "lib64/libcudart.so").readlink() == Path("libcudart.so.12")


@pytest.mark.parametrize("names", [(), ("libcudart.so.12", "libcudart.so.13")])
def test_none_or_two_runtimes_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    home = _home(tmp_path / "cu13", names=names)
    with pytest.raises(ToolchainError, match="exactly one"):
        complete(home)
    assert not (home / "lib64").exists()


def test_no_toolkit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="neither"):
        complete(tmp_path)


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    (home / "lib/libcudart.so").symlink_to("libcudart.so.12")
    with pytest.raises(ToolchainError, match="broken link"):
        complete(home)


def test_as_a_plain_script(tmp_path: Path) -> None:
    home = _home(tmp_path / "cu13")
    script = [sys.executable, "-I", "-S", str(toolchain.__file__), "--home"]
    done = subprocess.run([*script, str(home)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("->") == 2
    missing = subprocess.run([*script, "/nowhere"], capture_output=True, text=True, check=False)
    assert missing.returncode == toolchain.TOOLCHAIN_FAILED
    assert missing.stderr.startswith("toolchain: ")
