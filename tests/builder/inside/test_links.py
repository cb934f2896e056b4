"""Links as inside the image: nothing beside its root is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.inside.links import follow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("of the machine")
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/a.so").write_text("a")
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("/usr/lib")
    (root / "etc").mkdir()
    (root / "etc/a").symlink_to("../lib64/../lib/a.so")
    (root / "etc/b").symlink_to("/etc/a")
    return root


@pytest.mark.parametrize("path", ["usr/lib/a.so", "lib/a.so", "lib64/a.so", "etc/a", "/etc/b"])
def test_a_link_leads_where_it_leads_in_the_image(root: Path, path: str) -> None:
    assert follow(root, path) == "usr/lib/a.so"
    assert follow(root, "lib64") == "usr/lib"
    assert follow(root, "/") == ""


@pytest.mark.parametrize(
    "target", ["../../outside", "/outside", "{outside}", "gone", "self", "../etc/self", "a/b"]
)
def test_out_of_it_into_the_void_and_in_circles_leads_nowhere(root: Path, target: str) -> None:
    outside = root.parent / "outside"
    (root / "etc/self").symlink_to(target.format(outside=outside))
    assert follow(root, "etc/self") is None
    assert follow(root, "../outside") is None
