"""What cosign is asked to do, with which environment, and what its failures become.

A script stands for cosign: it records its arguments and the password it was given, and says what a
test wants it to say. The real one is tried in test_signing.py.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.engine.aptsources import AptUnavailableError
from builder.engine.packages import Unpacked
from builder.errors import (
    BuilderError,
    ImageAbsentError,
    RegistryFullError,
    RegistryRefusedError,
    RegistryUnreachableError,
    SigningError,
    TamperedError,
    ToolMissingError,
    UnsignedError,
)
from builder.pins import load_shared
from builder.project import default_project
from builder.registry.reference import parse_reference
from builder.supply import cosign as module
from builder.supply.cosign import Cosign, environment, statement
from builder.supply.keys import SigningKey

LOCAL = parse_reference(f"127.0.0.1:5000/team/name@sha256:{'ab' * 32}")
REMOTE = parse_reference(f"registry.example.com/team/name@sha256:{'ab' * 32}")
KEY = SigningKey("/keys/cosign.key", "s3cret")
HELP = {1: "--key", 2: "--tlog-upload=true:", 3: "--use-signing-config=true:"}
SCRIPT = """\
#!{python}
import json, os, sys
folder = {folder!r}
if sys.argv[2:] == ["--help"]:
    print({help!r})
    raise SystemExit
if sys.argv[1:] == ["version", "--json"]:
    print(json.dumps({{"gitVersion": "v{generation}.9.9"}}))
    raise SystemExit
with open(folder + "/calls", "a") as calls:
    env = {{k: v for k, v in os.environ.items() if k.startswith("COSIGN_")}}
    calls.write(json.dumps({{"argv": sys.argv[1:], "env": env}}) + "\\n")
answer = json.load(open(folder + "/answer"))
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
raise SystemExit(answer["code"])
"""


@dataclass
class Fake:
    """A cosign of a test's making."""

    folder: Path
    cosign: Cosign

    def says(self, stdout: str = "", stderr: str = "", code: int = 0) -> None:
        answer = {"stdout": stdout, "stderr": stderr, "code": code}
        (self.folder / "answer").write_text(json.dumps(answer))

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


Make = Callable[[int], Fake]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(generation: int) -> Fake:
        folder = tmp_path / f"bin{generation}"
        folder.mkdir()
        program = folder / "cosign"
        program.write_text(
            SCRIPT.format(
                python=sys.executable,
                folder=str(folder),
                help=HELP[generation],
                generation=generation,
            )
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name in [name for name in os.environ if name.startswith("COSIGN_")]:
            monkeypatch.delenv(name)
        made = Fake(folder, Cosign(program, "test", generation))
        made.says()
        return made

    return make


def obtain() -> Cosign:
    return Cosign.obtain(default_project(), load_shared(default_project()))


@pytest.mark.parametrize("generation", [2, 3])
def test_the_one_on_path_is_taken(fake: Make, generation: int) -> None:
    made = fake(generation)
    assert obtain() == Cosign(made.folder / "cosign", f"v{generation}.9.9", generation)


def test_too_old_a_one_is_replaced_by_debians(
    fake: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    debians = fake(2)
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/cosign").symlink_to(debians.folder / "cosign")
    fake(1)
    monkeypatch.setattr(module, "obtain", lambda *_: Unpacked(root, {"cosign": "2.5.0-2"}))
    assert obtain() == Cosign(root / "usr/bin/cosign", "2.5.0-2", 2)


def test_none_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> Unpacked:
        raise AptUnavailableError("no mirror answers", "name one")

    monkeypatch.setattr(module, "which", lambda _: None)
    monkeypatch.setattr(module, "obtain", unavailable)
    with pytest.raises(ToolMissingError, match="no mirror answers") as caught:
        obtain()
    assert "cosign 2.0 or newer" in caught.value.remedy
    assert "name one" in caught.value.remedy


@pytest.mark.parametrize("generation", [2, 3])
def test_signing_asks_for_no_service_and_one_format(fake: Make, generation: int) -> None:
    made = fake(generation)
    made.cosign.sign(REMOTE, KEY)
    (call,) = made.calls()
    argv = call["argv"]
    assert argv[0] == "sign"
    assert argv[-1] == str(REMOTE)
    assert {"--yes", "--tlog-upload=false"} < set(argv)
    newer = {"--use-signing-config=false", "--new-bundle-format=false"}
    assert newer & set(argv) == (newer if generation == 3 else set())
    assert argv[argv.index("--key") + 1] == KEY.reference


@pytest.mark.parametrize("generation", [2, 3])
def test_reading_asks_for_the_same_format(fake: Make, generation: int) -> None:
    made = fake(generation)
    made.says(stdout='[{"critical": {}}]')
    made.cosign.verify(REMOTE, "/keys/cosign.pub")
    made.says()
    made.cosign.attestations(REMOTE, "/keys/cosign.pub", "https://spdx.dev/Document")
    for call in made.calls():
        assert "--insecure-ignore-tlog=true" in call["argv"]
        assert ("--new-bundle-format=false" in call["argv"]) is (generation == 3)
        assert not any(word.startswith("--use-signing-config") for word in call["argv"])


def test_plain_http_is_for_this_machine_alone(fake: Make) -> None:
    made = fake(2)
    made.cosign.sign(LOCAL, KEY)
    made.cosign.sign(REMOTE, KEY)
    allowed = ["--allow-http-registry" in call["argv"] for call in made.calls()]
    assert allowed == [True, False]
    insecure = [word for call in made.calls() for word in call["argv"] if "insecure" in word]
    assert not insecure


def test_a_password_is_in_the_environment_and_nowhere_else(
    fake: Make, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = fake(2)
    made.cosign.sign(REMOTE, KEY)
    made.cosign.sign_blob(tmp_path / "f", KEY, tmp_path / "f.sig")
    for call in made.calls():
        assert call["env"] == {"COSIGN_PASSWORD": "s3cret"}
        assert not [word for word in call["argv"] if "s3cret" in word]
    shown = capfd.readouterr()
    assert "s3cret" not in shown.out + shown.err
    assert "s3cret" not in repr(KEY)
    assert "cosign sign" in shown.err, "the command is echoed"


def test_settings_of_the_host_do_not_move_signatures_elsewhere() -> None:
    host = {
        "PATH": "/bin",
        "AWS_PROFILE": "release",
        "COSIGN_REPOSITORY": "other.example.com/signatures",
        "COSIGN_EXPERIMENTAL": "1",
        "COSIGN_PASSWORD": "old",
        "COSIGN_PKCS11_MODULE_PATH": "/lib/p11.so",
    }
    kept = environment(host, None)
    assert kept == {
        k: v for k, v in host.items() if k not in ("COSIGN_REPOSITORY", "COSIGN_EXPERIMENTAL")
    }
    assert environment(host, "")["COSIGN_PASSWORD"] == ""


def test_a_key_in_the_environment_reaches_cosign(
    fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fake(2)
    monkeypatch.setenv("COSIGN_PRIVATE_KEY", "a key")
    monkeypatch.setenv("COSIGN_REPOSITORY", "other.example.com/signatures")
    made.cosign.sign(LOCAL, SigningKey("env://COSIGN_PRIVATE_KEY"))
    assert made.calls()[-1]["env"] == {"COSIGN_PRIVATE_KEY": "a key"}


def test_bytes_of_a_registry_that_are_no_text(fake: Make) -> None:
    """cosign repeats an answer's body as it came: a proxy's page may have any encoding."""
    made = fake(2)
    program = made.folder / "cosign"
    program.write_text("#!/bin/sh\nprintf 'Error: GET: 502 \\351\\377 page' >&2\nexit 1\n")
    with pytest.raises(SigningError, match="502"):
        made.cosign.sign(LOCAL, KEY)


def test_a_tag_is_not_signed(fake: Make) -> None:
    made = fake(2)
    with pytest.raises(SigningError, match="no digest"):
        made.cosign.sign(parse_reference("registry.example.com/team/name:1"), KEY)
    assert not (made.folder / "calls").exists()


REFUSALS: list[tuple[str, type[BuilderError]]] = [
    ("getting signer: reading key: decrypt: encrypted: decryption failed", SigningError),
    ("getting signer: reading key: open none.key: no such file or directory", SigningError),
    ("getting signer: reading key: unsupported pem type: PUBLIC KEY", SigningError),
    ("unknown flag: --tlog-upload", SigningError),
    ("something that nobody foresaw", SigningError),
    (
        'Get "https://r/v2/": dial tcp 127.0.0.1:401: connect: connection refused',
        RegistryUnreachableError,
    ),
    ("dial tcp: lookup r.example.com: no such host", RegistryUnreachableError),
    (
        "POST https://r/v2/t/blobs/uploads/: UNAUTHORIZED: authentication required",
        RegistryRefusedError,
    ),
    ("GET https://r/v2/t: unexpected status code 403 Forbidden", RegistryRefusedError),
    ("GET https://r/v2/t/manifests/sha256:1: MANIFEST_UNKNOWN: manifest unknown", ImageAbsentError),
    ("PATCH https://r/v2/t: write: no space left on device", RegistryFullError),
    ('manifest digest: "sha256:1" does not match requested digest: "sha256:2"', TamperedError),
]


@pytest.mark.parametrize(("text", "error"), REFUSALS)
def test_each_failure_has_its_own_error(
    fake: Make, text: str, error: type[BuilderError], tmp_path: Path
) -> None:
    made = fake(2)
    made.says(
        stderr=f"WARNING: something\nError: {text}\nerror during command execution: {text}\n",
        code=1,
    )
    for call in (
        lambda: made.cosign.sign(REMOTE, KEY),
        lambda: made.cosign.attest(REMOTE, KEY, tmp_path / "p", "https://x.example.com"),
        lambda: made.cosign.verify(REMOTE, "k"),
        lambda: made.cosign.attestations(REMOTE, "k", "https://x.example.com"),
    ):
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        assert "WARNING" not in caught.value.what


@pytest.mark.parametrize(
    "text",
    [
        "no signatures found",
        "no matching signatures: invalid signature when validating ASN.1 encoded signature",
    ],
)
def test_no_signature_that_counts_is_unsigned(fake: Make, text: str) -> None:
    made = fake(2)
    made.says(stderr=f"Error: {text}\n", code=10)
    with pytest.raises(UnsignedError):
        made.cosign.verify(REMOTE, "k")


def test_a_signature_that_could_not_be_read_is_not_unsigned(fake: Make) -> None:
    made = fake(2)
    made.says(stderr="Error: no matching signatures: Get https://r: i/o timeout\n", code=12)
    with pytest.raises(RegistryUnreachableError):
        made.cosign.verify(REMOTE, "k")


NO_KEY = (
    "getting public key: operation error KMS: GetPublicKey, get identity: get credentials: failed "
    "to refresh cached credentials, no EC2 IMDS role found",
    'getting public key: operation error KMS: GetPublicKey, request send failed, Post "https://k/": '
    "dial tcp 192.0.2.1:443: connect: connection refused",
)


@pytest.mark.parametrize("why", NO_KEY)
def test_a_key_that_could_not_be_had_says_nothing_of_the_image(fake: Make, why: str) -> None:
    """cosign calls it no matching signature: nobody may take that for an attack."""
    made = fake(2)
    calls: dict[str, Callable[[], object]] = {
        "signatures": lambda: made.cosign.verify(REMOTE, "awskms:///alias/k"),
        "attestations": lambda: made.cosign.attestations(REMOTE, "awskms:///alias/k", "t"),
    }
    for what, call in calls.items():
        made.says(stderr=f"Error: no matching {what}: {why}\n", code=12)
        with pytest.raises(SigningError) as caught:
            call()
        assert "credentials" in caught.value.remedy


def test_an_empty_list_of_signatures_is_unsigned(fake: Make) -> None:
    made = fake(2)
    made.says(stdout="[]")
    with pytest.raises(UnsignedError):
        made.cosign.verify(REMOTE, "k")


def envelope(document: Any, kind: str = "application/vnd.in-toto+json") -> str:
    payload = base64.b64encode(json.dumps(document).encode()).decode()
    return json.dumps({"payloadType": kind, "payload": payload, "signatures": []})


def test_attestations_are_statements_one_a_line(fake: Make) -> None:
    made = fake(2)
    documents = [{"predicateType": "t", "subject": [], "predicate": {"n": n}} for n in (1, 2)]
    made.says(stdout="".join(envelope(document) + "\n" for document in documents))
    assert made.cosign.attestations(REMOTE, "k", "t") == documents


@pytest.mark.parametrize(
    "text",
    [
        "no matching attestations: accepted signatures do not match threshold, Found: 0, Expected 1",
        "none of the attestations matched the predicate type: https://a, found: https://b",
    ],
)
def test_no_attestation_that_counts_is_an_empty_list(fake: Make, text: str) -> None:
    made = fake(2)
    made.says(stderr=f"Error: {text}\n", code=1)
    assert made.cosign.attestations(REMOTE, "k", "t") == []


@pytest.mark.parametrize(
    "text",
    [
        envelope({"predicateType": "t", "subject": []}, "text/plain"),
        envelope({"predicateType": "t"}),
        envelope(["no", "statement"]),
        json.dumps({"payloadType": "application/vnd.in-toto+json", "payload": "%%%"}),
        "{}",
    ],
)
def test_what_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises(TamperedError):
        statement(json.loads(text))
