from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import PinFileError
from builder.patches.pinning import pin_trees

TEXT = '[sglang]\n# kept\nbase_tree = "00"  # why\npatched_tree = "11"\n\n[x]\nsha256 = "22"\n'


def test_only_the_values_change(tmp_path: Path) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text(TEXT)
    assert pin_trees(pins, {"base_tree": "00", "patched_tree": "ab" * 32}) == ["patched_tree"]
    assert pins.read_text() == TEXT.replace('"11"', f'"{"ab" * 32}"')
    assert list(tmp_path.iterdir()) == [pins]


def test_an_unchanged_file_is_not_written(tmp_path: Path) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text(TEXT)
    pins.chmod(0o444)
    inode = pins.stat().st_ino
    assert pin_trees(pins, {"base_tree": "00", "patched_tree": "11"}) == []
    assert pins.stat().st_ino == inode


@pytest.mark.parametrize("text", ["", TEXT.replace("patched_tree", "patch_tree"), TEXT + TEXT])
def test_a_key_that_is_not_there_once_is_an_error(tmp_path: Path, text: str) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text(text)
    with pytest.raises(PinFileError, match=r"pins\.toml: sglang\.patched_tree"):
        pin_trees(pins, {"patched_tree": "33"})
    assert pins.read_text() == text
