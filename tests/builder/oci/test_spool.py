"""The engine's answer, kept on our disk: the same bytes, never half of them, never a full disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.oci import spool
from builder.oci.spool import Spool

CHUNKS = [b"a" * 3000, b"", b"b" * 5, b"c" * 2_000_000]


class Engine:
    """Counts how often it was asked; may break off."""

    def __init__(self) -> None:
        self.asked = 0
        self.fail = False

    def __iter__(self) -> Iterator[bytes]:
        self.asked += 1
        for number, chunk in enumerate(CHUNKS):
            if self.fail and number == 2:
                raise ValueError("cut")
            yield chunk


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SPARE_BYTES", -(1 << 60))


@pytest.mark.usefixtures("room")
def test_asked_once_and_the_same_each_time(tmp_path: Path) -> None:
    engine = Engine()
    kept = Spool(engine, tmp_path, size=1, further=1)
    assert [b"".join(kept) for _ in range(3)] == [b"".join(CHUNKS)] * 3
    assert engine.asked == 1
    kept.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("size", "further"), [(1 << 60, 0), (0, 1 << 60)])
def test_without_room_nothing_is_written(tmp_path: Path, size: int, further: int) -> None:
    engine = Engine()
    kept = Spool(engine, tmp_path, size=size, further=further)
    for _ in kept:
        assert not list(tmp_path.iterdir())
    assert b"".join(kept) == b"".join(CHUNKS)
    assert engine.asked == 2


@pytest.mark.usefixtures("room")
def test_a_disk_that_fills_up_costs_a_second_answer_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = spool._write

    def full(descriptor: int, data: bytes) -> None:
        if len(data) > 100_000:
            real(descriptor, data[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, data)

    monkeypatch.setattr(spool, "_write", full)
    engine = Engine()
    kept = Spool(engine, tmp_path, size=1, further=1)
    assert [b"".join(kept) for _ in range(2)] == [b"".join(CHUNKS)] * 2
    assert engine.asked == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("how", ["engine breaks off", "reader stops"])
def test_half_an_answer_is_never_taken_for_the_whole(tmp_path: Path, how: str) -> None:
    engine = Engine()
    kept = Spool(engine, tmp_path, size=1, further=1)
    if how == "reader stops":
        reading = iter(kept)
        next(reading)
        reading.close()  # type: ignore[attr-defined]
    else:
        engine.fail = True
        with pytest.raises(ValueError, match="cut"):
            list(kept)
        engine.fail = False
    assert not list(tmp_path.iterdir())
    assert b"".join(kept) == b"".join(CHUNKS)
    assert engine.asked == 2
