from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from builder import console
from builder.errors import (
    ImageAbsentError,
    RegistryRefusedError,
    RegistryUnreachableError,
    TagTakenError,
    TamperedError,
    TransferFailedError,
)
from builder.oci.model import LAYER_ZSTD, MANIFEST, Descriptor
from builder.registry.client import Registry
from builder.registry.layout import Progress, blob_bytes, push_layout, tag
from builder.registry.reference import parse_reference
from builder.supply.verify import Demand, verify
from tests.builder.registry.conftest import QUICK, client
from tests.builder.registry.fake import (
    Answer,
    FakeRegistry,
    Handler,
    Request,
    answers,
    error,
    fake_registry,
    ranged,
    times,
)
from tests.builder.registry.layouts import digest_of, make_layout, noise
from tests.builder.registry.proxy import bad_line

CONTENT = noise(300_000)
BLOB = Descriptor(LAYER_ZSTD, digest_of(CONTENT), len(CONTENT))


def cut(handler: Handler, request: Request) -> Answer | None:
    """Blobs end after 100,000 bytes of each answer."""
    if request.method != "GET" or "/blobs/" not in request.path:
        return None
    answer = ranged(request, CONTENT)
    answer.cut = 100_000
    return answer


def test_a_download_is_resumed(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.rules.append(times(3, cut))
    path = client(fake.reference).fetch_blob(BLOB, tmp_path / "blob")
    assert path.read_bytes() == CONTENT
    asked = [r.headers.get("range") for r in fake.seen]
    assert asked[0] is None
    starts = [int(str(span).removeprefix("bytes=").rstrip("-")) for span in asked[1:]]
    assert starts == sorted(set(starts))
    assert starts[0] > 0


def test_a_download_that_breaks_for_ever(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.add(CONTENT)

    def none(handler: Handler, request: Request) -> Answer | None:
        answer = ranged(request, CONTENT)
        answer.cut = 0 if request.headers.get("range") else 100_000
        return answer

    fake.rules.append(none)
    with pytest.raises(TransferFailedError):
        client(fake.reference).fetch_blob(BLOB, tmp_path / "blob")
    assert not (tmp_path / "blob").exists()
    fake.rules.clear()
    before = len(fake.seen)
    client(fake.reference).fetch_blob(BLOB, tmp_path / "blob")
    (request,) = fake.seen[before:]
    assert request.headers["range"] != "bytes=0-"  # what arrived is not fetched again


def test_what_lay_there_may_be_of_another_blob(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.add(CONTENT)
    (tmp_path / "blob.part").write_bytes(b"x" * 1000)
    assert client(fake.reference).fetch_blob(BLOB, tmp_path / "blob").read_bytes() == CONTENT
    (tmp_path / "blob").write_bytes(b"y" * BLOB.size)
    assert client(fake.reference).fetch_blob(BLOB, tmp_path / "blob").read_bytes() == CONTENT


@pytest.mark.parametrize("wrong", [b"\0" + CONTENT[1:], CONTENT + b"\0"], ids=["a bit", "too long"])
def test_a_blob_that_is_not_its_digest(fake: FakeRegistry, tmp_path: Path, wrong: bytes) -> None:
    fake.blobs[BLOB.digest] = wrong
    with pytest.raises(TamperedError, match=BLOB.digest):
        client(fake.reference).fetch_blob(BLOB, tmp_path / "blob")
    assert list(tmp_path.glob("blob*")) == []
    with pytest.raises(TamperedError):
        client(fake.reference).read_blob(BLOB)


def test_a_blob_that_is_shorter_never_passes(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.blobs[BLOB.digest] = CONTENT[:-1]
    with pytest.raises((TamperedError, TransferFailedError)):
        client(fake.reference).fetch_blob(BLOB, tmp_path / "blob")
    assert not (tmp_path / "blob").exists()


def test_no_such_blob(fake: FakeRegistry, tmp_path: Path) -> None:
    assert not client(fake.reference).has_blob(BLOB)
    with pytest.raises(ImageAbsentError, match="no blob"):
        client(fake.reference).read_blob(BLOB)


def test_storage_behind_a_redirect_gets_no_credentials(
    fake: FakeRegistry, login: object, tmp_path: Path
) -> None:
    assert callable(login)
    login(fake.host, "anna", "secret")
    fake.rules.append(
        lambda handler, request: (
            None
            if request.authorization
            else Answer(401, {"WWW-Authenticate": 'Basic realm="here"'})
        )
    )
    with fake_registry() as storage:
        storage.rules.append(lambda handler, request: ranged(request, CONTENT))
        place = Answer(307, {"Location": f"http://{storage.host}/bucket?signed=1"})
        fake.rules.append(answers("GET", "/blobs/", place))
        assert client(fake.reference).read_blob(BLOB) == CONTENT
        assert [r.authorization for r in storage.seen] == [""]
    assert fake.seen[-1].authorization.startswith("Basic ")


def test_a_redirect_without_tls_is_not_followed(fake: FakeRegistry) -> None:
    place = Answer(302, {"Location": "http://storage.example.com/x"})
    fake.rules.append(answers("GET", "/blobs/", place))
    with pytest.raises(RegistryRefusedError, match="without TLS"):
        client(fake.reference).read_blob(BLOB)


def test_redirects_end(fake: FakeRegistry) -> None:
    fake.rules.append(answers("GET", "/blobs/", Answer(307, {"Location": "/v2/x/blobs/y"})))
    with pytest.raises(RegistryRefusedError, match="redirects"):
        client(fake.reference).read_blob(BLOB)


def test_manifests_by_tag_and_digest(fake: FakeRegistry) -> None:
    content = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST}).encode()
    registry = client(fake.reference)
    assert registry.manifest("v1") is None
    digest = registry.put_manifest("v1", content, MANIFEST)
    assert digest == digest_of(content)
    assert registry.manifest("v1") == registry.manifest(digest)
    assert registry.manifest("v1") == (Descriptor(MANIFEST, digest, len(content)), content)


def test_a_manifest_that_is_not_its_digest(fake: FakeRegistry) -> None:
    content = b'{"schemaVersion": 2}'
    registry = client(fake.reference)
    digest = registry.put_manifest("v1", content, MANIFEST)
    fake.manifests[digest] = (MANIFEST, content + b" ")
    with pytest.raises(TamperedError, match="answers for"):
        registry.manifest(digest)
    stated = {"Content-Type": MANIFEST, "Docker-Content-Digest": digest_of(b"other")}
    fake.rules.append(answers("GET", "/manifests/", Answer(200, stated, content)))
    with pytest.raises(TamperedError, match="states"):
        registry.manifest("v1")
    fake.rules[:] = [answers("GET", "/manifests/", Answer(200, {}, b"<html>"))]
    with pytest.raises(TamperedError, match="not a manifest"):
        registry.manifest("v1")


def test_a_registry_that_stores_another_manifest(fake: FakeRegistry) -> None:
    stated = {"Docker-Content-Digest": digest_of(b"other")}
    fake.rules.append(answers("PUT", "/manifests/", Answer(201, stated)))
    with pytest.raises(TamperedError, match="stored"):
        client(fake.reference).put_manifest("v1", b"{}", MANIFEST)


def test_all_pages_of_tags(fake: FakeRegistry) -> None:
    registry = client(fake.reference)
    fake.rules.append(times(1, answers("GET", "/tags/", Answer(404, {}, error("NAME_UNKNOWN")))))
    assert registry.tags() == []
    for number in range(7):
        registry.put_manifest(f"v{number}", b"{}", MANIFEST)
    assert registry.tags() == [f"v{number}" for number in range(7)]


def test_a_tag_is_never_moved(fake: FakeRegistry, tmp_path: Path) -> None:
    registry = client(fake.reference)
    one = push_layout(make_layout(tmp_path / "1", [b"a"]), registry)
    other = push_layout(make_layout(tmp_path / "2", [b"b"]), registry)
    assert registry.tags() == []  # a push by digest names nothing
    assert registry.tag("v1", one)
    assert not registry.tag("v1", one)
    with pytest.raises(TagTakenError, match=one.digest):
        registry.tag("v1", other)
    assert not tag(fake.reference.with_digest(one.digest), "v1")
    assert digest_of(fake.manifests["v1"][1]) == one.digest


def test_a_tag_that_another_push_took_in_between(fake: FakeRegistry, tmp_path: Path) -> None:
    registry = client(fake.reference)
    one = push_layout(make_layout(tmp_path / "1", [b"a"]), registry)
    other = make_layout(tmp_path / "2", [b"b"])
    push_layout(other, registry)

    def race(handler: Handler, request: Request) -> Answer | None:
        if request.method == "PUT" and request.path.endswith("/v1"):
            handler.body()
            fake.manifests["v1"] = fake.manifests[other.manifest.digest]
            return Answer(201)
        return None

    fake.rules.append(race)
    with pytest.raises(TagTakenError, match=other.manifest.digest):
        registry.tag("v1", one)


def test_no_tag_without_a_manifest(fake: FakeRegistry) -> None:
    with pytest.raises(ImageAbsentError, match="no manifest"):
        client(fake.reference).tag("v1", Descriptor(MANIFEST, digest_of(b"x"), 1))


def test_the_manifest_comes_after_every_blob(fake: FakeRegistry, tmp_path: Path) -> None:
    same = noise(200_000, seed=1)
    layout = make_layout(tmp_path, [noise(200_000), same, b"small", same])
    progress = Progress(blob_bytes(layout))
    assert push_layout(layout, client(fake.reference), progress) == layout.manifest
    puts = [r.path for r in fake.seen if r.method == "PUT"]
    assert "/manifests/" in puts[-1]
    assert len(puts) == 5  # one blob that is two layers goes once
    assert (progress.sent_bytes, progress.blobs_sent) == (blob_bytes(layout), 4)
    again = Progress(blob_bytes(layout))
    push_layout(layout, client(fake.reference), again)
    assert (again.sent_bytes, again.skipped_bytes) == (0, blob_bytes(layout))


def test_one_failure_stops_the_rest(fake: FakeRegistry, tmp_path: Path) -> None:
    """Also those under way: they are answered after the failure, and send no second chunk."""
    layout = make_layout(tmp_path, [noise(200_000, seed=n) for n in range(8)])
    registry = client(fake.reference)
    first = threading.Event()

    def deny(handler: Handler, request: Request) -> Answer | None:
        if request.method != "PATCH" or "-65535" not in request.headers["content-range"]:
            return None
        with fake.lock:
            if not first.is_set():
                first.set()
                return Answer(403, {}, error("DENIED", "read only"))
        registry._transport.stop.wait(20)
        return None

    fake.rules.append(deny)
    with pytest.raises(RegistryRefusedError, match="read only"):
        push_layout(layout, registry)
    assert fake.count("PATCH") <= 3
    assert not fake.manifests


def test_patience_with_a_registry_that_never_answered(
    fake: FakeRegistry, capfd: pytest.CaptureFixture[str]
) -> None:
    """A typing error is told soon; a registry that was there is worth waiting for."""
    console.set_quiet(False)
    patience = replace(QUICK, attempts=6, unknown=2)
    with pytest.raises(RegistryUnreachableError):
        Registry(parse_reference("127.0.0.1:9/app"), patience=patience).ping()
    assert capfd.readouterr().err.count("trying again") == 1
    with bad_line(int(fake.host.rpartition(":")[2])) as line:
        registry = Registry(parse_reference(f"{line.host}/team/app"), patience=patience)
        registry.ping()
        line.cuts = [0] * 100
        line.end()
        fake.rules.append(lambda handler, request: handler.drop() or Answer(200))  # type: ignore[func-returns-value]
        with pytest.raises((RegistryUnreachableError, TransferFailedError)):
            registry.ping()
    assert capfd.readouterr().err.count("trying again") == 5


@pytest.mark.parametrize(
    "answer", [Answer(404), Answer(200 + 4), Answer(302, {"Location": "/login"})]
)
def test_something_that_is_no_registry(fake: FakeRegistry, answer: Answer) -> None:
    fake.rules.append(answers("GET", "/v2/", answer))
    with pytest.raises(RegistryUnreachableError, match="not answer as a registry"):
        client(fake.reference).ping()


def test_unknown_hosts_and_closed_ports() -> None:
    with pytest.raises(RegistryUnreachableError):
        client(parse_reference("registry.invalid/app")).ping()
    with pytest.raises(RegistryUnreachableError, match="refused"):
        client(parse_reference("127.0.0.1:9/app")).ping()


def test_a_web_server_is_no_registry_that_lacks_the_image(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    asked = parse_reference(f"{fake.host}/team/app:1")
    demand = Demand(scratch=tmp_path)
    with pytest.raises(ImageAbsentError):
        verify(asked, None, demand, label_prefix="dev.ddtree")
    fake.rules.append(answers("GET", "/v2/", Answer(404, {}, b"<html>not found</html>")))
    with pytest.raises(RegistryUnreachableError, match="does not answer as a registry"):
        verify(asked, None, demand, label_prefix="dev.ddtree")
