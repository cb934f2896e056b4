from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from builder.inside import filesystem
from builder.inside.contents import Contents
from builder.inside.filesystem import LayoutError, mounts_below, scan
from tests.builder.inside.tree import SITE, Tree


def test_every_regular_file_counts_once(tree: Tree) -> None:
    before = scan(tree.root).total
    tree.write("usr/share/one", "x" * 1000)
    os.link(tree.root / "usr/share/one", tree.root / "usr/share/two")
    (tree.root / "usr/share/three").symlink_to("one")
    files = scan(tree.root)
    assert files.total == before + 1000
    assert "usr/share/three" in files.links


def test_pseudo_file_systems_and_outputs_are_left_out(tree: Tree) -> None:
    before = scan(tree.root).total
    for name in ("proc/x", "sys/x", "dev/x", "out/report.json"):
        tree.write(name, "x" * 1000)
    assert scan(tree.root, frozenset({"out"})).total == before


def test_what_is_mounted_is_no_part_of_the_running_root() -> None:
    points = mounts_below(Path("/"))
    assert {"proc", "sys", "dev"} <= points
    assert "" not in points


def test_elf_files_are_found_by_content_not_by_name(tree: Tree) -> None:
    tree.library("x.so")
    (tree.site / "x.so").rename(tree.site / "plain-name")
    tree.write(f"{SITE}/text.so", "not ELF" * 20)
    names = {elf.path for elf in scan(tree.root).elves}
    assert f"{SITE}/plain-name" in names
    assert f"{SITE}/text.so" not in names


def test_a_root_without_the_appliance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="site-packages"):
        scan(tmp_path)


def test_a_path_is_told_apart_by_where_it_lies(tree: Tree) -> None:
    files = scan(tree.root)
    assert files.below_site(f"{SITE}/torch/version.py") == "torch/version.py"
    assert files.below_site("usr/bin/g++") == ""
    torch = files.distribution("torch")
    assert torch is not None
    assert torch.version == "2.11.0"
    assert files.distribution("absent") is None


@pytest.fixture
def many(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A tree that is read by several processes."""
    monkeypatch.setattr(filesystem, "_BATCH", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    return tree


def test_several_processes_read_what_one_does(tree: Tree, many: Tree) -> None:
    tree.library("x.so")
    several = scan(many.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        assert scan(tree.root) == several
    assert several.elves and several.digests


def test_what_a_process_cannot_read_is_said(many: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "inspect", refuse)
    with pytest.raises(PermissionError, match="not yours"):
        scan(many.root)


def test_a_killed_process_is_said(many: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "inspect", kill_this_process)
    with pytest.raises(LayoutError, match="killed"):
        scan(many.root)


def refuse(path: Path, name: str) -> Contents:
    raise PermissionError(13, "not yours", name)


def kill_this_process(path: Path, name: str) -> Contents:
    os.kill(os.getpid(), signal.SIGKILL)
    return Contents("")
