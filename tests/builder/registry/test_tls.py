"""A registry on TLS whose authority the host does not know, until it is told."""

from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builder.errors import RegistryRefusedError, RegistryUnreachableError
from builder.registry import tls
from builder.registry.reference import Reference
from builder.registry.transport import Transport
from tests.builder.local_registry import skip_or_fail
from tests.builder.registry.conftest import QUICK, client
from tests.builder.registry.fake import Answer, FakeRegistry, Handler, answers


class Remote(Reference):
    """This machine, taken for another one."""

    @property
    def loopback(self) -> bool:
        return False


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        skip_or_fail("no openssl here")
    key, crt = tmp_path / "key.pem", tmp_path / "crt.pem"
    argv = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split()
    argv += ["-keyout", str(key), "-out", str(crt), "-subj", "/CN=test"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(argv, check=True, capture_output=True)
    return key, crt


@contextmanager
def secure(key: Path, crt: Path) -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    handler = type("Bound", (Handler,), {"registry": registry})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.host = f"127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()


def test_an_unknown_authority_is_refused(certificate: tuple[Path, Path]) -> None:
    with secure(*certificate) as registry:
        with pytest.raises(RegistryUnreachableError, match="not trusted") as caught:
            client(Remote(registry.host, "team/app")).ping()
        assert f"/etc/docker/certs.d/{registry.host}/ca.crt" in caught.value.remedy
        assert not registry.seen


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_the_host_may_trust_it(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(certificate[1]))
    with secure(*certificate) as registry:
        client(Remote(registry.host, "team/app")).ping()


def test_the_engine_may_trust_it(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with secure(*certificate) as registry:
        folder = tmp_path / "certs.d" / registry.host
        folder.mkdir(parents=True)
        shutil.copy(certificate[1], folder / "ca.crt")
        monkeypatch.setattr(tls.tls_context, "__defaults__", (tmp_path / "certs.d",))
        client(Remote(registry.host, "team/app")).ping()


def test_without_tls_only_this_machine(fake: FakeRegistry) -> None:
    with pytest.raises(RegistryUnreachableError, match="answers without TLS") as caught:
        client(Remote(fake.host, "team/app")).ping()
    assert "tunnel to 127.0.0.1" in caught.value.remedy
    assert not fake.seen
    client(Reference(fake.host, "team/app")).ping()


def test_tls_on_this_machine_is_found_out(fake: FakeRegistry) -> None:
    """What Go's server answers to plain HTTP; the second try is on TLS, which the fake has not."""
    said = b"Client sent an HTTP request to an HTTPS server.\n"
    fake.rules.append(answers("GET", "/v2/", Answer(400, {}, said)))
    registry = client(fake.reference)
    with pytest.raises(RegistryUnreachableError, match="without TLS"):
        registry.ping()
    assert not registry.plain
    assert fake.count("GET") == 1


def test_where_an_answer_may_send_us() -> None:
    there = Transport(Reference("registry.example.com", "team/app"), patience=QUICK)
    asked = "https://registry.example.com/v2/team/app/blobs/uploads/"
    # A registry behind a proxy that ends TLS: back to where we came in.
    for told in (
        "http://registry.example.com/v2/x?y=1",
        "http://registry.example.com:5000/v2/x?y=1",
        "/v2/x?y=1",
    ):
        assert there.absolute(told, asked) == "https://registry.example.com/v2/x?y=1"
    other = "https://storage.example.com/x"
    assert there.absolute(other, asked) == other
    with pytest.raises(RegistryRefusedError):
        there.absolute("http://storage.example.com/x", asked)
    with pytest.raises(RegistryRefusedError):
        there.absolute("file:///etc/passwd", asked)
