from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import (
    ImageAbsentError,
    RegistryFullError,
    RegistryRefusedError,
    RegistryUnreachableError,
    TamperedError,
    TransferFailedError,
)
from builder.oci.model import LAYER_ZSTD, Descriptor
from builder.registry.client import Registry
from builder.registry.layout import Progress
from builder.registry.reference import Reference, parse_reference
from builder.registry.sessions import Session
from tests.builder.registry.conftest import QUICK, client
from tests.builder.registry.fake import (
    Answer,
    FakeRegistry,
    Handler,
    Request,
    answers,
    error,
    times,
)
from tests.builder.registry.layouts import add_blob, noise
from tests.builder.registry.proxy import bad_line

CHUNK = 64 << 10
SIZE = 10 * CHUNK + 17


@pytest.fixture
def blob(tmp_path: Path) -> tuple[Path, Descriptor]:
    descriptor = add_blob(tmp_path / "layout", noise(SIZE), LAYER_ZSTD)
    value = descriptor.digest.removeprefix("sha256:")
    return tmp_path / "layout" / "blobs" / "sha256" / value, descriptor


Blob = tuple[Path, Descriptor]


def test_in_chunks_once_and_no_more(fake: FakeRegistry, blob: Blob) -> None:
    meter = Progress(SIZE)
    assert client(fake.reference).upload_blob(*blob, meter)
    assert fake.blobs[blob[1].digest] == noise(SIZE)
    assert (fake.count("PATCH"), fake.received, meter.sent_bytes) == (11, SIZE, SIZE)
    assert not client(fake.reference).upload_blob(*blob, meter)
    assert (fake.received, meter.skipped_bytes) == (SIZE, SIZE)


def test_a_small_blob_is_one_request(fake: FakeRegistry, tmp_path: Path) -> None:
    for size in (0, 1, CHUNK):
        descriptor = add_blob(tmp_path, noise(size, seed=size), LAYER_ZSTD)
        path = tmp_path / "blobs/sha256" / descriptor.digest.removeprefix("sha256:")
        assert client(fake.reference).upload_blob(path, descriptor)
        assert fake.blobs[descriptor.digest] == noise(size, seed=size)
    assert fake.count("PATCH") == 0


def test_the_registry_says_how_small_a_chunk_may_be(fake: FakeRegistry, blob: Blob) -> None:
    fake.chunk_minimum = 4 * CHUNK
    client(fake.reference).upload_blob(*blob)
    assert fake.count("PATCH") == 3


def test_goes_on_where_a_connection_broke(fake: FakeRegistry, blob: Blob) -> None:
    fake.cuts = [100, CHUNK - 1, 0, 5000, CHUNK]
    client(fake.reference).upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)
    assert fake.received == SIZE  # not a byte twice
    assert fake.count("POST") == 1


def test_goes_on_after_more_breaks_than_it_has_patience(fake: FakeRegistry, blob: Blob) -> None:
    fake.cuts = [CHUNK // 2] * 15
    client(fake.reference).upload_blob(*blob)
    assert fake.received == SIZE


def test_gives_up_when_nothing_arrives_any_more(fake: FakeRegistry, blob: Blob) -> None:
    fake.cuts = [CHUNK // 2, CHUNK // 2] + [0] * 100
    with pytest.raises(TransferFailedError, match="broke off") as caught:
        client(fake.reference).upload_blob(*blob)
    assert "only the rest" in caught.value.remedy
    assert fake.count("PATCH") <= 6


def test_a_registry_that_goes_away_meanwhile(fake: FakeRegistry, blob: Blob) -> None:
    """Not the error of a registry that was never there: what arrived is worth knowing of."""

    def last(handler: Handler, request: Request) -> Answer | None:
        if request.method == "PATCH" and fake.count("PATCH") == 3:
            line.end()
            handler.drop()
            return Answer(202)
        return None

    fake.rules.append(last)
    with (
        bad_line(int(fake.host.rpartition(":")[2])) as line,
        pytest.raises(TransferFailedError, match="refused") as caught,
    ):
        client(Reference(line.host, "team/app")).upload_blob(*blob)
    assert "only the rest" in caught.value.remedy


def kept(fake: FakeRegistry, folder: Path) -> Registry:
    return Registry(fake.reference, patience=QUICK, chunk=CHUNK, sessions=folder)


def test_the_next_run_goes_on_where_this_one_ended(
    fake: FakeRegistry, blob: Blob, tmp_path: Path
) -> None:
    fake.cuts = [CHUNK, CHUNK // 2] + [0] * 100
    with pytest.raises(TransferFailedError):
        kept(fake, tmp_path / "uploads").upload_blob(*blob)
    (file,) = (tmp_path / "uploads").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    fake.cuts = []
    kept(fake, tmp_path / "uploads").upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)
    assert (fake.received, fake.count("POST")) == (SIZE, 1)
    assert list((tmp_path / "uploads").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "http://HOST/v2/team/app/blobs/uploads/gone",
        "nonsense \x00",
        "http://x.example.com/",
        "[",
        "",
    ],
)
def test_what_was_kept_need_not_be_true(
    fake: FakeRegistry, blob: Blob, tmp_path: Path, text: str
) -> None:
    fake.cuts = [0] * 100
    with pytest.raises(TransferFailedError):
        kept(fake, tmp_path).upload_blob(*blob)
    fake.cuts = []
    for file in tmp_path.iterdir():
        if file.is_file():
            file.write_text(text.replace("HOST", fake.host))
    kept(fake, tmp_path).upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)


def test_two_runs_do_not_share_an_upload(fake: FakeRegistry, blob: Blob, tmp_path: Path) -> None:
    name = f"{fake.reference.name}@{blob[1].digest}"
    other = Session(tmp_path / "uploads", name)
    other.save(f"http://{fake.host}/v2/team/app/blobs/uploads/other")
    fake.uploads["other"] = bytearray(noise(SIZE)[:CHUNK])
    kept(fake, tmp_path / "uploads").upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)
    assert "other" in fake.uploads
    other.close(done=False)


def test_starts_anew_when_the_upload_is_forgotten(fake: FakeRegistry, blob: Blob) -> None:
    def forget(handler: Handler, request: Request) -> Answer | None:
        if request.method == "PATCH" and fake.count("PATCH") == 4:
            fake.uploads.clear()
        return None

    fake.rules.append(forget)
    client(fake.reference).upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)
    assert (fake.count("POST"), fake.received) == (2, SIZE + 4 * CHUNK)


def test_an_upload_that_is_always_forgotten_ends(fake: FakeRegistry, blob: Blob) -> None:
    def forget(handler: Handler, request: Request) -> Answer | None:
        if request.method == "PATCH" and not request.headers["content-range"].startswith("0-"):
            return Answer(404, body=error("BLOB_UPLOAD_UNKNOWN"))
        return None

    fake.rules.append(forget)
    with pytest.raises(TransferFailedError, match="lost"):
        client(fake.reference).upload_blob(*blob)
    assert fake.count("POST") <= 5


def test_a_registry_without_chunks_gets_it_whole(fake: FakeRegistry, blob: Blob) -> None:
    fake.rules.append(answers("PATCH", "", Answer(405, body=error("UNSUPPORTED"))))
    registry = client(fake.reference)
    registry.upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)
    fake.blobs.clear()
    registry.upload_blob(*blob)
    assert fake.count("PATCH") == 1  # asked once, remembered


def test_a_proxy_that_takes_less_gets_less(fake: FakeRegistry, tmp_path: Path) -> None:
    size = 6 << 20
    descriptor = add_blob(tmp_path, noise(size), LAYER_ZSTD)
    path = tmp_path / "blobs/sha256" / descriptor.digest.removeprefix("sha256:")

    def limit(handler: Handler, request: Request) -> Answer | None:
        large = int(request.headers.get("content-length", "0")) > 1 << 20
        return Answer(413) if large else None

    fake.rules.append(limit)
    client(fake.reference, chunk=5 << 20).upload_blob(path, descriptor)
    assert fake.blobs[descriptor.digest] == noise(size)
    fake.blobs.clear()
    fake.rules[:] = [answers("PATCH", "", Answer(413))]
    with pytest.raises(RegistryFullError, match="413") as caught:
        client(fake.reference, chunk=5 << 20).upload_blob(path, descriptor)
    assert "client_max_body_size" in caught.value.remedy


def test_the_answer_to_the_last_request_may_get_lost(fake: FakeRegistry, blob: Blob) -> None:
    def lose(handler: Handler, request: Request) -> Answer | None:
        if request.method == "PUT":
            handler._own(request)
            fake.rules.clear()
            handler.drop()
            return Answer(201)
        return None

    fake.rules.append(lose)
    client(fake.reference).upload_blob(*blob)
    assert fake.received == SIZE


def test_offset_of_the_registry_is_the_truth(fake: FakeRegistry, blob: Blob) -> None:
    """A registry may keep less of a chunk than was sent, and says so."""

    def short(handler: Handler, request: Request) -> Answer | None:
        if request.method == "PATCH" and fake.count("PATCH") % 2:
            name = request.path.rpartition("/")[2].partition("?")[0]
            fake.uploads[name] += handler.body(1000)
            handler.body()
            return handler._state(202, name)
        return None

    fake.rules.append(short)
    client(fake.reference).upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)


def test_waits_as_long_as_asked(fake: FakeRegistry, blob: Blob) -> None:
    fake.rules.append(
        times(3, answers("PATCH", "", Answer(429, {"Retry-After": "1"}, error("TOOMANYREQUESTS"))))
    )
    client(fake.reference).upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)


def test_a_rate_limit_without_end_is_a_quota(fake: FakeRegistry, blob: Blob) -> None:
    fake.rules.append(answers("POST", "uploads", Answer(429, {}, error("TOOMANYREQUESTS"))))
    with pytest.raises(RegistryFullError, match="rate limit"):
        client(fake.reference).upload_blob(*blob)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(507),
        Answer(
            500, {}, error("UNKNOWN", "unknown error", "write /x/data: no space left on device")
        ),
        Answer(
            500, {}, error("UNKNOWN", "unknown error", {"Enclosed": {"Op": "write", "Err": 28}})
        ),
        Answer(403, {}, error("DENIED", "will exceed the configured upper limit of 10.0 GiB")),
        Answer(412, {}, error("DENIED", "project quota exceeded")),
        Answer(429, {}, error("TOOMANYREQUESTS", "storage quota exceeded")),
    ],
)
def test_full_is_said_at_once_and_cleaned_up(
    fake: FakeRegistry, blob: Blob, answer: Answer
) -> None:
    fake.rules.append(
        lambda handler, request: (
            answer if request.method == "PATCH" and fake.count("PATCH") > 2 else None
        )
    )
    with pytest.raises(RegistryFullError, match="no room"):
        client(fake.reference).upload_blob(*blob)
    assert fake.count("PATCH") == 3
    assert not fake.uploads  # its room is given back


def test_room_is_asked_for_before_a_manifest(fake: FakeRegistry) -> None:
    """docker-registry 2.8 on a full disk damages what it cannot store."""
    registry = client(fake.reference)
    why = error("UNKNOWN", "", {"DriverName": "filesystem", "Enclosed": {"Err": 28}})
    for method in ("POST", "PATCH"):
        fake.rules[:] = [answers(method, "/uploads/", Answer(500, {}, why))]
        with pytest.raises(RegistryFullError, match="no room"):
            registry.put_manifest("v1", b"{}", "x/y")
    assert fake.count("PUT") == 0
    fake.rules[:] = [answers("PATCH", "/uploads/", Answer(404))]  # takes no chunks: so be it
    registry.put_manifest("v1", b"{}", "x/y")
    assert not fake.uploads  # the questions left nothing behind


def test_a_manifest_that_cannot_be_read_back(fake: FakeRegistry) -> None:
    fake.rules.append(answers("GET", "/manifests/", Answer(500, {}, error("UNKNOWN"))))
    with pytest.raises(TamperedError, match="cannot give it") as caught:
        client(fake.reference).put_manifest("v1", b"{}", "x/y")
    assert "garbage" in caught.value.remedy
    fake.rules[:] = [answers("PUT", "/manifests/", Answer(201))]
    with pytest.raises(ImageAbsentError):
        client(fake.reference).put_manifest("v2", b'{"a": 1}', "x/y")


def test_another_refusal_is_not_full(fake: FakeRegistry, blob: Blob) -> None:
    body = error("NAME_UNKNOWN", "repository name not known", {"name": "quota exceeded/app"})
    fake.rules.append(answers("POST", "uploads", Answer(404, {}, body)))
    with pytest.raises(RegistryRefusedError, match="NAME_UNKNOWN"):
        client(fake.reference).upload_blob(*blob)


def test_passing_trouble_passes(fake: FakeRegistry, blob: Blob) -> None:
    for method in ("HEAD", "POST", "PATCH", "PUT"):
        fake.rules.append(times(1, answers(method, "blobs", Answer(503))))
    client(fake.reference).upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)


def test_a_damaged_file_is_found(fake: FakeRegistry, blob: Blob) -> None:
    path, descriptor = blob
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    with pytest.raises(TamperedError, match="is not sha256"):
        client(fake.reference).upload_blob(path, descriptor)
    path.write_bytes(b"short")
    with pytest.raises(TamperedError, match="5 bytes"):
        client(fake.reference).upload_blob(path, descriptor)
    assert not fake.blobs


def test_damage_on_the_way_is_sent_again(fake: FakeRegistry, blob: Blob) -> None:
    def flip(handler: Handler, request: Request) -> Answer | None:
        if request.method == "PUT":
            fake.rules.clear()
            (kept,) = fake.uploads.values()
            kept[5] ^= 1
        return None

    fake.rules.append(flip)
    client(fake.reference).upload_blob(*blob)
    assert fake.blobs[blob[1].digest] == noise(SIZE)


def test_nobody_there(tmp_path: Path, blob: Blob) -> None:
    with pytest.raises(RegistryUnreachableError, match="does not answer"):
        client(parse_reference("127.0.0.1:9/team/app")).upload_blob(*blob)
