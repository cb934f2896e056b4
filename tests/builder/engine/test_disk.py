from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine.disk import check_disk, check_existing, free_gib
from builder.errors import DiskSpaceError


def test_too_little_room_states_need_and_room(tmp_path: Path) -> None:
    need = int(free_gib(tmp_path)) + 1000
    with pytest.raises(DiskSpaceError) as caught:
        check_disk(tmp_path / "not/yet/there", need, "make room")
    assert f"{need} GiB" in caught.value.what
    assert "GiB are free" in caught.value.what
    assert not (tmp_path / "not").exists()
    check_disk(tmp_path, 0, "make room")


@pytest.mark.parametrize(
    ("root", "url"),
    [("/var/lib/of-a-virtual-machine", "unix:///run/d.sock"), ("/", "tcp://10.0.0.1:2375")],
)
def test_a_disk_that_cannot_be_seen_is_not_judged_but_said(
    root: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_existing(root, url, 10**6)
    assert "are not checked" in capsys.readouterr().err


def test_a_local_engines_disk_is_judged(tmp_path: Path) -> None:
    with pytest.raises(DiskSpaceError):
        check_existing(str(tmp_path), "unix:///run/d.sock", 10**6)
