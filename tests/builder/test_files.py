"""Files are replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.files import write_atomically


def test_an_interrupted_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.write_text("old")

    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, b"half")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b", b"new")
    assert (tmp_path / "a" / "b").read_bytes() == b"new"
