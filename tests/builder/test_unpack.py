"""Toolkit archives: stripped of their top folder, never outside the target."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from builder.inside.unpack import UNPACK_FAILED, main


def archive(path: Path, members: dict[str, bytes | str]) -> Path:
    """A .tar.xz whose values are file bytes, or `-> target` for a symbolic link."""
    with tarfile.open(path, "w:xz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size, info.mode = len(content), 0o755
                tar.addfile(info, io.BytesIO(content))
    return path


def test_archives_share_one_folder(tmp_path: Path) -> None:
    one = archive(
        tmp_path / "a.tar.xz", {"a-1-archive/bin/nvcc": b"n", "a-1-archive/LICENSE": b"l"}
    )
    two = archive(
        tmp_path / "b.tar.xz",
        {
            "b-2-archive/lib/libcudart.so.12": b"s",
            "b-2-archive/lib/libcudart.so": "libcudart.so.12",
        },
    )
    assert main(["--into", str(tmp_path / "cuda"), str(one), str(two)]) == 0
    assert (tmp_path / "cuda/bin/nvcc").read_bytes() == b"n"
    assert (tmp_path / "cuda/lib/libcudart.so").resolve().name == "libcudart.so.12"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "top/../../evil"])
def test_a_path_that_escapes_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = archive(tmp_path / "bad.tar.xz", {name: b"x"})
    assert main(["--into", str(tmp_path / "in" / "cuda"), str(bad)]) == UNPACK_FAILED
    assert "leaves" in capsys.readouterr().err
    assert not (tmp_path / "evil").exists()


def test_a_truncated_archive_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = archive(tmp_path / "a.tar.xz", {"a/x": b"1" * 100_000})
    whole.write_bytes(whole.read_bytes()[:50])
    assert main(["--into", str(tmp_path / "cuda"), str(whole)]) == UNPACK_FAILED
    assert capsys.readouterr().err.startswith("unpack: ")
