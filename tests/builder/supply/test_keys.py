"""Keys and passwords: wrong ones are refused before anything is signed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builder.errors import HostFileError, SigningError
from builder.supply.keys import SigningKey, public_key, signing_key


def pem(folder: Path, kind: str) -> str:
    path = folder / "key.pem"
    path.write_text(f"-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n")
    return str(path)


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COSIGN_PASSWORD", raising=False)


@pytest.mark.parametrize("kind", ["ENCRYPTED COSIGN PRIVATE KEY", "ENCRYPTED SIGSTORE PRIVATE KEY"])
def test_a_private_key_of_cosigns_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    path = pem(tmp_path, kind)
    assert signing_key(path) == SigningKey(path, "")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("PUBLIC KEY", "not the public one"),
        ("PRIVATE KEY", "import-key-pair"),
        ("RSA PRIVATE KEY", "import-key-pair"),
        ("CERTIFICATE", "generate-key-pair"),
    ],
)
def test_another_kind_of_key_does_not_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, hint: str
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "x")
    with pytest.raises(SigningError) as caught:
        signing_key(pem(tmp_path, kind))
    assert hint in caught.value.remedy


def test_a_private_key_does_not_verify(tmp_path: Path) -> None:
    with pytest.raises(SigningError) as caught:
        public_key(pem(tmp_path, "ENCRYPTED SIGSTORE PRIVATE KEY"))
    assert "cosign.pub" in caught.value.remedy
    assert public_key(pem(tmp_path, "PUBLIC KEY")) == str(tmp_path / "key.pem")


def test_a_file_that_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"\xff\xfenothing")
    for read in (signing_key, public_key):
        with pytest.raises(SigningError, match="no PEM file"):
            read(str(tmp_path / "k"))
        with pytest.raises(HostFileError):
            read(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "address",
    ["awskms:///alias/release", "hashivault://release", "pkcs11:token=t;object=o", "env://K"],
)
def test_an_address_goes_to_cosign_as_it_is_and_needs_no_password(address: str) -> None:
    assert signing_key(address) == SigningKey(address, None)
    assert public_key(address) == address


def test_without_a_password_nobody_is_asked_in_a_script(tmp_path: Path) -> None:
    with pytest.raises(SigningError) as caught:
        signing_key(pem(tmp_path, "ENCRYPTED SIGSTORE PRIVATE KEY"))
    assert "COSIGN_PASSWORD" in caught.value.remedy


def test_a_password_file_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "from the environment")
    key = pem(tmp_path, "ENCRYPTED SIGSTORE PRIVATE KEY")
    file = tmp_path / "password"
    for text, password in (("a b\n", "a b"), ("x\r\n", "x"), (" y", " y"), ("", "")):
        file.write_bytes(text.encode())
        assert signing_key(key, file).password == password
    file.write_text("two\nlines\n")
    with pytest.raises(SigningError, match="several lines"):
        signing_key(key, file)
    with pytest.raises(HostFileError):
        signing_key(key, tmp_path / "absent")


@pytest.mark.parametrize("read", [signing_key, public_key])
@pytest.mark.parametrize(
    "text", ["http://keys.example.com/cosign.pub", "pkcs11:token=a;object=b?pin-value=1234"]
)
def test_addresses_that_give_the_key_away(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(SigningError) as caught:
        read(text)
    assert "1234" not in caught.value.what + caught.value.remedy


@pytest.mark.parametrize(
    "text",
    ["awskms:///alias/x", "https://keys.example.com/k", "pkcs11:token=a", "env://COSIGN_KEY"],
)
def test_addresses_go_to_cosign_as_they_are(text: str) -> None:
    assert public_key(text) == text
    assert signing_key(text) == SigningKey(text)


def test_a_password_that_no_program_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"s3c\0ret\n")
    with pytest.raises(SigningError) as caught:
        signing_key(pem(tmp_path, "ENCRYPTED SIGSTORE PRIVATE KEY"), file)
    assert "s3c" not in caught.value.what + caught.value.remedy


def test_no_answer_to_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*args: object) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", ends)
    with pytest.raises(SigningError, match="no password"):
        signing_key(pem(tmp_path, "ENCRYPTED SIGSTORE PRIVATE KEY"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [("ENCRYPTED SIGSTORE PRIVATE KEY", "an encrypted"), ("CERTIFICATE", "a certificate")],
)
def test_a_wrong_kind_is_named_as_people_do(tmp_path: Path, kind: str, words: str) -> None:
    with pytest.raises(SigningError, match=f"is {words}"):
        public_key(pem(tmp_path, kind))
