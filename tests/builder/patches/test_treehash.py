from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.patches.treehash import TreeFile, hash_tree, tree_hash, write_tree

TREE = {
    "b/x.py": TreeFile(b"x\n"),
    "a.sh": TreeFile(b"#!/bin/sh\n", executable=True),
    "b/\u00e9.txt": TreeFile(b""),
}


def test_disk_and_memory_agree(tmp_path: Path) -> None:
    write_tree(TREE, tmp_path)
    assert tree_hash(tmp_path) == hash_tree(TREE)


def test_times_owners_order_empty_folders_and_other_mode_bits_do_not_count(tmp_path: Path) -> None:
    write_tree(TREE, tmp_path / "one")
    write_tree(dict(reversed(TREE.items())), tmp_path / "two")
    (tmp_path / "two" / "empty").mkdir()
    os.utime(tmp_path / "two" / "b/x.py", (1, 1))
    (tmp_path / "two" / "b/x.py").chmod(0o600)
    (tmp_path / "two" / "a.sh").chmod(0o700)
    assert tree_hash(tmp_path / "one") == tree_hash(tmp_path / "two")


@pytest.mark.parametrize(
    "changed",
    [
        {**TREE, "b/x.py": TreeFile(b"y\n")},
        {**TREE, "b/x.py": TreeFile(b"x\n", executable=True)},
        {**TREE, "b/z.py": TreeFile(b"")},
        {name: file for name, file in TREE.items() if name != "a.sh"},
        {name.replace("x.py", "y.py"): file for name, file in TREE.items()},
    ],
    ids=["content", "execute bit", "one more", "one less", "renamed"],
)
def test_what_the_tree_is_made_of_counts(changed: dict[str, TreeFile]) -> None:
    assert hash_tree(changed) != hash_tree(TREE)


def test_contents_cannot_trade_places() -> None:
    one = {"a": TreeFile(b"1"), "b": TreeFile(b"2")}
    two = {"a": TreeFile(b"2"), "b": TreeFile(b"1")}
    assert hash_tree(one) != hash_tree(two)


def test_a_link_counts_by_its_target_and_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f").write_text("f")
    plain = tree_hash(tmp_path)
    (tmp_path / "link").symlink_to("folder")
    linked = tree_hash(tmp_path)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("elsewhere")
    assert len({plain, linked, tree_hash(tmp_path)}) == 3
