from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import console
from builder.errors import RegistryRefusedError
from builder.oci.model import LAYER_ZSTD
from builder.registry.auth import find_credentials, parse_challenge
from tests.builder.registry.conftest import Login, client
from tests.builder.registry.fake import Answer, FakeRegistry, Handler, Request, fake_registry
from tests.builder.registry.layouts import add_blob, noise

SECRET = "s3cret-w0rd"
BASIC = "Basic " + base64.b64encode(f"anna:{SECRET}".encode()).decode()
CHUNK = 64 << 10


class Tokens:
    """A token service: tokens that hold for some requests, for who has the password."""

    def __init__(self, service: FakeRegistry, registry: FakeRegistry) -> None:
        self.service, self.registry = service, registry
        self.uses = 1000
        self.left: dict[str, int] = {}
        self.realm = f"http://{service.host}/token"
        self.anonymous = False
        service.rules.append(self.issue)
        registry.rules.append(self.guard)

    def issue(self, handler: Handler, request: Request) -> Answer:
        if request.authorization != BASIC and not self.anonymous and request.method == "GET":
            return Answer(401, body=b'{"errors": []}')
        if request.method == "POST" and b"refresh_token=" + SECRET.encode() not in handler.body():
            return Answer(401)
        token = f"token-{len(self.left)}"
        self.left[token] = self.uses
        return Answer(200, body=json.dumps({"token": token}).encode())

    def guard(self, handler: Handler, request: Request) -> Answer | None:
        token = request.authorization.removeprefix("Bearer ")
        if self.left.get(token, 0) > 0:
            self.left[token] -= 1
            return None
        scope = "repository:team/app:pull"
        said = f'Bearer realm="{self.realm}",service="here",scope="{scope}"'
        return Answer(401, {"WWW-Authenticate": said})


@pytest.fixture
def tokens(fake: FakeRegistry) -> Iterator[Tokens]:
    with fake_registry() as service:
        yield Tokens(service, fake)


def test_challenges() -> None:
    both = parse_challenge('Basic realm="x", Bearer realm="https://a/t,b",service=s,scope="a:b,c"')
    assert both is not None
    assert both.scheme == "Bearer"
    assert both.parameters == {"realm": "https://a/t,b", "service": "s", "scope": "a:b,c"}
    assert parse_challenge('basic realm="x"') is not None
    assert parse_challenge("Negotiate abc") is None
    assert parse_challenge("") is None


def test_a_token_for_the_credentials(fake: FakeRegistry, tokens: Tokens, login: Login) -> None:
    login(fake.host, "anna", SECRET)
    registry = client(fake.reference)
    registry.ping()
    assert registry.tags() == []
    registry.put_manifest("v1", b"{}", "x/y")
    asked = [request.path for request in tokens.service.seen]
    assert len(asked) == 2  # one to read, one to write
    assert "scope=repository%3Ateam%2Fapp%3Apull&service=here" in asked[0]
    assert "pull%2Cpush" in asked[1]
    # The password went to the token service that the registry names, tokens to the registry.
    assert {request.authorization for request in tokens.service.seen} == {BASIC}
    assert all(not r.authorization.startswith("Basic") for r in fake.seen)


def test_anonymous_where_nothing_is_configured(fake: FakeRegistry, tokens: Tokens) -> None:
    tokens.anonymous = True
    client(fake.reference).ping()
    assert [request.authorization for request in tokens.service.seen] == [""]


def test_a_token_that_ends_in_the_middle(
    fake: FakeRegistry, tokens: Tokens, login: Login, tmp_path: Path
) -> None:
    login(fake.host, "anna", SECRET)
    tokens.uses = 3
    blob = add_blob(tmp_path, noise(10 * CHUNK), LAYER_ZSTD)
    path = tmp_path / "blobs/sha256" / blob.digest.removeprefix("sha256:")
    client(fake.reference).upload_blob(path, blob)
    assert fake.blobs[blob.digest] == noise(10 * CHUNK)
    assert fake.count("POST") == 2  # the refused one and its repetition: one upload
    assert len(tokens.left) > 3


def test_a_wrong_password_is_tried_once(fake: FakeRegistry, tokens: Tokens, login: Login) -> None:
    login(fake.host, "anna", "wrong-w0rd")
    with pytest.raises(RegistryRefusedError, match="HTTP 401") as caught:
        client(fake.reference).ping()
    assert "docker login" in caught.value.remedy
    assert "wrong-w0rd" not in caught.value.what + caught.value.remedy
    assert len(tokens.service.seen) == 1


def test_no_credentials(fake: FakeRegistry, tokens: Tokens) -> None:
    with pytest.raises(RegistryRefusedError) as caught:
        client(fake.reference).ping()
    assert f"docker login {fake.host}" in caught.value.remedy


def test_a_token_that_is_refused_is_not_renewed_for_ever(
    fake: FakeRegistry, tokens: Tokens, login: Login
) -> None:
    login(fake.host, "anna", SECRET)
    tokens.uses = 0
    with pytest.raises(RegistryRefusedError, match="HTTP 401"):
        client(fake.reference).ping()
    assert len(fake.seen) == 2


def test_an_identity_token(fake: FakeRegistry, tokens: Tokens, docker_config: Path) -> None:
    auths = {fake.host: {"identitytoken": SECRET}}
    (docker_config / "config.json").write_text(json.dumps({"auths": auths}))
    client(fake.reference).ping()
    assert [request.method for request in tokens.service.seen] == ["POST"]


def test_a_token_service_without_tls_gets_nothing(
    fake: FakeRegistry, tokens: Tokens, login: Login
) -> None:
    login(fake.host, "anna", SECRET)
    tokens.realm = "http://auth.example.com/token"
    with pytest.raises(RegistryRefusedError, match="not on TLS"):
        client(fake.reference).ping()


def test_basic(fake: FakeRegistry, login: Login) -> None:
    def guard(handler: Handler, request: Request) -> Answer | None:
        if request.authorization == BASIC:
            return None
        return Answer(401, {"WWW-Authenticate": 'Basic realm="here"'})

    fake.rules.append(guard)
    login(fake.host, "anna", SECRET)
    registry = client(fake.reference)
    registry.ping()
    assert registry.tags() == []
    assert [r.authorization for r in fake.seen] == ["", BASIC, BASIC]
    login(fake.host, "anna", "other")
    with pytest.raises(RegistryRefusedError):
        client(fake.reference).ping()
    assert len(fake.seen) == 5


def test_a_credential_helper(
    docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-made"
    helper.write_text(
        "#!/bin/sh\nread server\n"
        'echo "{\\"Username\\": \\"anna\\", \\"Secret\\": \\"$server-word\\"}"\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    helpers = {"credHelpers": {"registry.example.com": "made"}}
    (docker_config / "config.json").write_text(json.dumps(helpers))
    found = find_credentials("registry.example.com")
    assert found is not None
    assert (found.username, found.password) == ("anna", "registry.example.com-word")
    assert find_credentials("other.example.com") is None


def test_a_helper_that_is_not_there(docker_config: Path) -> None:
    (docker_config / "config.json").write_text(json.dumps({"credsStore": "nowhere"}))
    with pytest.raises(RegistryRefusedError, match="docker-credential-nowhere"):
        find_credentials("registry.example.com")


def test_a_broken_entry_is_not_quoted(docker_config: Path) -> None:
    entry = {"auths": {"registry.example.com": {"auth": base64.b64encode(b"s3cret").decode()}}}
    (docker_config / "config.json").write_text(json.dumps(entry))
    with pytest.raises(RegistryRefusedError) as caught:
        find_credentials("registry.example.com")
    assert "s3cret" not in caught.value.what


def test_only_the_docker_configuration_counts(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """requests would take ~/.netrc, and a proxy even for this machine."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login anna password s3cret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    client(fake.reference).ping()
    assert [request.authorization for request in fake.seen] == [""]


def test_nothing_is_printed(
    fake: FakeRegistry, tokens: Tokens, login: Login, capfd: pytest.CaptureFixture[str]
) -> None:
    console.set_quiet(False)
    login(fake.host, "anna", SECRET)
    registry = client(fake.reference)
    fake.rules.insert(0, lambda handler, request: Answer(503) if len(fake.seen) == 2 else None)
    registry.ping()
    found = find_credentials(fake.host)
    assert SECRET not in repr(found)
    said = "".join(capfd.readouterr())
    assert "503" in said
    assert SECRET not in said
    assert "token-" not in said
    assert BASIC.removeprefix("Basic ") not in said


@pytest.mark.parametrize(
    ("text", "warned"), [("{", True), ("auths = 1", True), ("", False), ("{}", False)]
)
def test_a_configuration_that_is_no_json_is_not_ignored_silently(
    docker_config: Path, capsys: pytest.CaptureFixture[str], text: str, warned: bool
) -> None:
    (docker_config / "config.json").write_text(text)
    assert find_credentials("registry.example.com") is None
    said = capsys.readouterr().err
    assert (f"{docker_config / 'config.json'} is ignored" in said) == warned
