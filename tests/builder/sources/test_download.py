"""One pinned file over HTTP: whole and right, or not there at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import HashMismatchError, SourceUnreachableError, TruncatedDownloadError
from builder.sources.download import TRIES, Wanted, download
from tests.builder.sources.fakes import Reply, Site, digest

BODY = bytes(range(256)) * 4000
PATH = "/whl/cu128/torch-2.11.0+cu128.whl"


def wanted(site: Site, size: int | None = len(BODY), sha256: str = digest(BODY)) -> Wanted:
    return Wanted("torch", f"{site.url}/whl/cu128/torch-2.11.0%2Bcu128.whl", sha256, size)


class Pauses:
    """Stands in for time.sleep and counts."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def nothing_kept(dest: Path) -> bool:
    return not dest.exists()


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "torch.whl"


@pytest.mark.parametrize("size", [len(BODY), None])
def test_a_good_file(site: Site, dest: Path, size: int | None) -> None:
    site.files[PATH] = Reply(BODY)
    assert download(wanted(site, size), dest) == dest
    assert dest.read_bytes() == BODY
    assert [p.name for p in dest.parent.iterdir()] == [dest.name]
    download(wanted(site, size), dest)
    assert len(site.requests) == 1


@pytest.mark.parametrize("size", [len(BODY), None])
def test_a_tampered_file_of_the_right_size(site: Site, dest: Path, size: int | None) -> None:
    site.files[PATH] = Reply(BODY[:-1] + b"!")
    with pytest.raises(HashMismatchError, match=digest(BODY)):
        download(wanted(site, size), dest)
    assert not list(dest.parent.iterdir())


def test_a_longer_file_is_another_file(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(BODY + b"more")
    with pytest.raises(HashMismatchError, match="bytes long"):
        download(wanted(site), dest)
    assert nothing_kept(dest)


def test_a_file_that_is_shorter_at_its_source(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(BODY[:5000])
    with pytest.raises(TruncatedDownloadError, match="only 5000 bytes"):
        download(wanted(site), dest)
    assert nothing_kept(dest)


@pytest.mark.parametrize("size", [len(BODY), None])
def test_a_server_that_always_stops_early(site: Site, dest: Path, size: int | None) -> None:
    site.files[PATH] = Reply(BODY, ranges=False, cuts=[70000] * 100)
    pauses = Pauses()
    with pytest.raises(TruncatedDownloadError, match=f"70000 of {len(BODY)}"):
        download(wanted(site, size), dest, pause=pauses)
    assert nothing_kept(dest)
    assert len(site.requests) == TRIES + 1  # the first brought bytes, the others none further
    assert pauses.seconds == sorted(pauses.seconds)


def test_a_drop_is_resumed_where_it_stopped(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(BODY, cuts=[70000, 1000])
    download(wanted(site), dest, pause=Pauses())
    assert dest.read_bytes() == BODY
    assert site.asked(".whl") == ["", "bytes=70000-", "bytes=71000-"]


def test_a_later_run_resumes_what_an_earlier_left(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(BODY)
    dest.parent.mkdir()
    dest.with_name("torch.whl.part").write_bytes(BODY[:1234])
    download(wanted(site), dest)
    assert dest.read_bytes() == BODY
    assert site.asked(".whl") == ["bytes=1234-"]


@pytest.mark.parametrize("part", [b"foreign" * 100, BODY + b"too long"])
@pytest.mark.parametrize("size", [len(BODY), None])
def test_a_foreign_part_does_not_spoil_the_file(
    site: Site, dest: Path, part: bytes, size: int | None
) -> None:
    site.files[PATH] = Reply(BODY)
    dest.parent.mkdir()
    dest.with_name("torch.whl.part").write_bytes(part)
    download(wanted(site, size), dest)
    assert dest.read_bytes() == BODY


def test_a_server_without_ranges_starts_the_part_over(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(BODY, ranges=False)
    dest.parent.mkdir()
    dest.with_name("torch.whl.part").write_bytes(BODY + b"longer")
    download(wanted(site, None), dest)
    assert dest.read_bytes() == BODY
    assert len(site.requests) == 1


def test_a_wrong_file_under_the_final_name_is_replaced(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(BODY)
    dest.parent.mkdir()
    dest.write_bytes(b"rot")
    download(wanted(site), dest)
    assert dest.read_bytes() == BODY


def test_a_missing_file_is_not_asked_for_again(site: Site, dest: Path) -> None:
    with pytest.raises(SourceUnreachableError, match="HTTP 404"):
        download(wanted(site), dest, pause=Pauses())
    assert len(site.requests) == 1


def test_a_server_error_is_tried_again_but_not_for_ever(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(b"", status=503)
    pauses = Pauses()
    with pytest.raises(SourceUnreachableError, match="HTTP 503"):
        download(wanted(site), dest, pause=pauses)
    assert len(site.requests) == TRIES
    assert len(pauses.seconds) == TRIES - 1


def test_nobody_listens(dest: Path) -> None:
    nobody = Wanted("torch", "http://127.0.0.1:9/x", digest(BODY), None)
    with pytest.raises(SourceUnreachableError, match="refused"):
        download(nobody, dest, pause=Pauses())
    assert nothing_kept(dest)


def test_an_interrupt_leaves_only_a_part(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(BODY, cuts=[70000])

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(wanted(site), dest, pause=interrupt)
    assert [p.name for p in dest.parent.iterdir()] == ["torch.whl.part"]
    download(wanted(site), dest)
    assert site.asked(".whl")[-1] == "bytes=70000-"


def test_a_redirect_is_followed_and_keeps_the_range(site: Site, dest: Path) -> None:
    site.files[PATH] = Reply(b"", status=302, location=f"{site.url}/signed/x")
    site.files["/signed/x"] = Reply(BODY, cuts=[70000])
    download(wanted(site), dest, pause=Pauses())
    assert dest.read_bytes() == BODY
    assert site.asked("/signed/x") == ["", "bytes=70000-"]


def test_the_environments_proxy_is_used(
    site: Site, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", site.url)
    site.files["/torch.whl"] = Reply(BODY)
    download(Wanted("torch", "http://download.invalid/torch.whl", digest(BODY), None), dest)
    assert dest.read_bytes() == BODY
