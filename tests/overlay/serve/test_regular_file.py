"""Files that somebody names: what is no file, or too much of one, is refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_overlay.serve.errors import EntryError
from ddtree_overlay.serve.model_config import model_facts
from ddtree_overlay.serve.regular_file import MAX_CONFIGURATION, read_regular
from tests.overlay.serve.configured import resolved


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    path.write_bytes(b"#" * (MAX_CONFIGURATION + 1))


def circular(path: Path) -> None:
    path.symlink_to(path)


BAD: list[Callable[[Path], object]] = [fifo, endless, large, circular, Path.mkdir]
ids = [make.__name__ for make in BAD]


@pytest.mark.parametrize("make", BAD, ids=ids)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--api-key-file", "{}"], 70),
        (["--config", "{}"], 72),
        (["--profile", "given"], 71),
    ],
    ids=["secret", "configuration", "profile"],
)
def test_what_is_no_file_is_refused_and_does_not_hang(
    make: Callable[[Path], object], arguments: list[str], code: int, tmp_path: Path
) -> None:
    place = tmp_path / "given.toml"
    make(place)
    with pytest.raises(EntryError) as caught:
        resolved(*(part.format(place) for part in arguments), profiles=tmp_path)
    assert caught.value.exit_code == code
    assert str(place) in caught.value.what


@pytest.mark.parametrize("make", BAD, ids=ids)
def test_sglangs_own_file_is_refused_by_us(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "own.yaml")
    with pytest.raises(EntryError) as caught:
        resolved("--config", str(tmp_path / "own.yaml"))
    assert caught.value.exit_code == 72


@pytest.mark.parametrize("make", [fifo, endless, circular, Path.mkdir], ids=lambda m: m.__name__)
def test_a_models_config_that_is_no_file_is_unreadable(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    make(tmp_path / "config.json")
    assert not model_facts(str(tmp_path)).readable


def test_a_whole_file_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert read_regular(tmp_path / "f", 5) == b"12345"
    for limit, name in ((4, "f"), (5, "a\0b")):
        with pytest.raises(OSError):
            read_regular(str(tmp_path / name), limit)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for make in BAD:
        make(tmp_path / make.__name__)
        with pytest.raises(OSError):
            read_regular(tmp_path / make.__name__, 10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
