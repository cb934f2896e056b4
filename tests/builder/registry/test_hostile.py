"""A registry that means harm: every answer of it ends in an error of ours, and reaches no one."""

from __future__ import annotations

import errno
import json
import os
from io import FileIO
from pathlib import Path

import pytest

from builder.errors import (
    BuilderError,
    HostFileError,
    RegistryRefusedError,
    RegistryUnreachableError,
    TamperedError,
)
from builder.oci.model import LAYER_ZSTD, MANIFEST, Descriptor
from builder.registry import download, transport
from builder.registry.auth import find_credentials
from builder.registry.documents import parse_json
from builder.registry.reference import Reference, split_address
from builder.registry.tls import tls_context
from builder.registry.transport import Transport
from tests.builder.registry.conftest import QUICK, Login, client
from tests.builder.registry.fake import (
    Answer,
    FakeRegistry,
    Handler,
    Request,
    answers,
    error,
    fake_registry,
    ranged,
)
from tests.builder.registry.layouts import digest_of

DEEP = b"[" * 200_000
CONTENT = b"some bytes"
BLOB = Descriptor(LAYER_ZSTD, digest_of(CONTENT), len(CONTENT))


@pytest.mark.parametrize("text", [DEEP, b'{"a":' * 200_000, b"1e999", b"NaN", b"-Infinity", b"{"])
def test_whatever_is_wrong_with_json_is_one_exception(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
    assert parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("body", [DEEP, b"[]", b"7", b"<html>", b"", b'{"mediaType": NaN}'])
def test_what_is_no_manifest(fake: FakeRegistry, body: bytes) -> None:
    fake.rules.append(answers("GET", "/manifests/", Answer(200, {"Content-Type": MANIFEST}, body)))
    with pytest.raises(TamperedError, match="not a manifest"):
        client(fake.reference).manifest("v1")


def test_an_answer_without_end_is_not_kept(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LARGEST_ANSWER", 1 << 20)
    fake.rules.append(answers("GET", "/manifests/", Answer(200, {}, b" " * (2 << 20))))
    with pytest.raises(RegistryRefusedError, match="more than 1 MiB"):
        client(fake.reference).manifest("v1")
    # Nor the text of an error where a blob was asked for.
    fake.rules[:] = [answers("GET", "/blobs/", Answer(403, {}, b" " * (2 << 20)))]
    with pytest.raises(RegistryRefusedError, match="more than 1 MiB"):
        client(fake.reference).read_blob(BLOB)


@pytest.mark.parametrize("body", [DEEP, b'{"tags": 7}', b"[]", b"<html>"])
def test_what_is_no_list_of_tags(fake: FakeRegistry, body: bytes) -> None:
    fake.rules.append(answers("GET", "/tags/", Answer(200, {}, body)))
    with pytest.raises(RegistryRefusedError, match="listing tags"):
        client(fake.reference).tags()


def test_an_error_text_does_not_drive_the_terminal(fake: FakeRegistry) -> None:
    said = error("DENIED", "\x1b]0;owned\x07\x1b[2Jall is \u202ewell")
    for body in (said, said.replace(b"{", b"", 1), DEEP):
        fake.rules[:] = [answers("GET", "/manifests/", Answer(403, {}, body))]
        with pytest.raises(RegistryRefusedError) as caught:
            client(fake.reference).manifest("v1")
        assert caught.value.what.isprintable()


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "\xb2"},
        {"Retry-After": "9" * 5000},
        {"Retry-After": "Mon, 01 Jan 0001 00:00:00 -0000"},
        {"Content-Type": "text/plain; charset=no\u00a0such"},
    ],
    ids=["superscript", "long", "year one", "charset"],
)
def test_headers_that_are_no_numbers(fake: FakeRegistry, headers: dict[str, str]) -> None:
    fake.rules.append(answers("GET", "/manifests/", Answer(503, headers)))
    with pytest.raises(BuilderError):
        client(fake.reference).manifest("v1")


@pytest.mark.parametrize("number", ["\xb2", "9" * 5000])
def test_an_upload_survives_them(fake: FakeRegistry, tmp_path: Path, number: str) -> None:
    path = tmp_path / "blob"
    path.write_bytes(os.urandom(300_000))
    blob = Descriptor(LAYER_ZSTD, digest_of(path.read_bytes()), 300_000)

    def rule(handler: Handler, request: Request) -> Answer | None:
        if request.method not in ("POST", "PATCH"):
            return None
        answer = handler._own(request)
        if answer is not None and request.method == "POST":
            answer.headers["OCI-Chunk-Min-Length"] = number
        elif answer is not None:
            answer.headers["Range"] = f"0-{number}"
        return answer

    fake.rules.append(rule)
    client(fake.reference).upload_blob(path, blob)
    assert fake.blobs[blob.digest] == path.read_bytes()


def test_a_remote_registry_does_not_reach_this_machines_services() -> None:
    there = Transport(Reference("registry.example.com", "team/app"), patience=QUICK)
    asked = "https://registry.example.com/v2/team/app/blobs/uploads/"
    for told in ("http://127.0.0.1:2375/images/x", "http://localhost/x", "http://[::1]:2375/x"):
        with pytest.raises(RegistryRefusedError, match="without TLS"):
            there.absolute(told, asked)
    here = Transport(Reference("127.0.0.1:5000", "team/app"), patience=QUICK)
    assert here.absolute("http://localhost:1/x", "http://127.0.0.1:5000/") == "http://localhost:1/x"


@pytest.mark.parametrize(
    "told", ["http://[::1", "https://a:99999999/", "https://a@b/", "https://a\\@127.0.0.1/", "//"]
)
def test_what_is_no_address(fake: FakeRegistry, told: str) -> None:
    with pytest.raises(ValueError):
        split_address(told)
    fake.rules.append(answers("GET", "/manifests/", Answer(307, {"Location": told})))
    with pytest.raises(RegistryRefusedError):
        client(fake.reference).manifest("v1")
    # `//` alone leads back to where it was asked.
    if told != "//":
        challenge = f'Bearer realm="{told}",service="x"'
        fake.rules[:] = [answers("GET", "/v2/", Answer(401, {"WWW-Authenticate": challenge}))]
        with pytest.raises(RegistryRefusedError, match="token service"):
            client(fake.reference).ping()


@pytest.mark.parametrize("token", ["s3cret\r\nX-Evil: 1", "s3cret \u20ac", "s3cret\u0100", "", " "])
def test_a_token_that_fits_no_header_is_not_sent_nor_shown(
    fake: FakeRegistry, login: Login, token: str
) -> None:
    login(fake.host, "anna", "word")
    with fake_registry() as service:
        body = json.dumps({"token": token}).encode()
        service.rules.append(lambda handler, request: Answer(200, {}, body))
        challenge = f'Bearer realm="http://{service.host}/token",service="x"'
        fake.rules.append(
            lambda handler, request: Answer(401, {"WWW-Authenticate": challenge}, b"{}")
        )
        with pytest.raises(RegistryRefusedError, match="no token") as caught:
            client(fake.reference).ping()
    assert "s3cret" not in f"{caught.value.what} {caught.value.remedy}"
    assert all(not request.authorization for request in fake.seen)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        '{"auths": {"HOST": {"auth": 5}}}',
        '{"credHelpers": "x"}',
        '{"credHelpers": {"HOST": 5}}',
        '{"credsStore": 5}',
        DEEP.decode(),
    ],
)
def test_a_docker_configuration_of_other_types(docker_config: Path, text: str) -> None:
    (docker_config / "config.json").write_text(text.replace("HOST", "127.0.0.1:5000"))
    with pytest.raises(RegistryRefusedError, match="Docker configuration"):
        find_credentials("127.0.0.1:5000")


def test_a_certificate_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    with pytest.raises(OSError):
        tls_context("registry.invalid")
    with pytest.raises(RegistryUnreachableError) as caught:
        client(Reference("registry.invalid", "team/app")).ping()
    assert "certificates" in caught.value.what
    assert "REQUESTS_CA_BUNDLE" in caught.value.remedy


def test_a_proxy_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http:///nowhere")
    with pytest.raises(RegistryUnreachableError) as caught:
        client(Reference("registry.invalid", "team/app")).ping()
    assert "HTTPS_PROXY" in caught.value.remedy


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x" * 1000])
def test_a_size_that_is_a_lie_is_said_at_once(
    fake: FakeRegistry, tmp_path: Path, content: bytes, kept: int
) -> None:
    """Not a transfer that breaks off: seven tries would only hide who is at fault."""
    fake.rules.append(
        lambda handler, request: ranged(request, content) if "/blobs/" in request.path else None
    )
    (tmp_path / "blob.part").write_bytes(CONTENT[:kept])
    with pytest.raises(TamperedError, match=f"{len(content)} bytes"):
        client(fake.reference).fetch_blob(BLOB, tmp_path / "blob")
    assert fake.count("GET", "/blobs/") == 1
    assert not (tmp_path / "blob").exists()


def test_a_full_disk_of_ours_is_not_the_registrys_fault(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(FileIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    keep = download._keep
    monkeypatch.setattr(download, "_keep", lambda out, block: keep(Full(out.name, "r+b"), block))
    fake.add(CONTENT)
    with pytest.raises(HostFileError, match="No space left"):
        client(fake.reference).fetch_blob(BLOB, tmp_path / "blob")
    assert fake.count("GET", "/blobs/") == 1
