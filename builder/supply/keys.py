"""The keys that cosign is given: files, or addresses of a key management service.

A private key file is cosign's own, encrypted with a password; what cosign keeps elsewhere
(`awskms://`, `gcpkms://`, `azurekms://`, `hashivault://`, `k8s://`, `pkcs11:`, `env://`) goes to it
as it is written. A password is never in an argument, a message or the environment of this process
beyond what the user put there.
"""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from builder.arguments import path as path_argument
from builder.errors import HostFileError, SigningError

PASSWORD_VARIABLE = "COSIGN_PASSWORD"  # noqa: S105 -- a name, no password
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.+|pkcs11:.+")
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----")
# cosign 1 wrote the first, cosign 2 and 3 write the second.
_OURS = ("ENCRYPTED COSIGN PRIVATE KEY", "ENCRYPTED SIGSTORE PRIVATE KEY")
_MAKE = "make a pair with `cosign generate-key-pair`"


@dataclass(frozen=True)
class SigningKey:
    """What `cosign --key` takes to sign, and the password of a key file."""

    reference: str
    password: str | None = field(default=None, repr=False)


def add_key_options(parser: argparse._ActionsContainer) -> None:
    """`--key` and `--key-password-file`, the same on every verb that signs."""
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="cosign's private key: a file (`cosign generate-key-pair`) or a key management "
        "service's address, such as awskms:///alias/NAME",
    )
    parser.add_argument(
        "--key-password-file",
        type=path_argument("FILE"),
        metavar="FILE",
        help=f"the key's password, in a file's first line (default: ${PASSWORD_VARIABLE}, else you "
        "are asked)",
    )


def signing_key(text: str, password_file: Path | None = None) -> SigningKey:
    """Check a private key and find its password. Raises HostFileError or SigningError."""
    _check_given(text, "the private key, cosign.key")
    if _ADDRESS.fullmatch(text):
        _check_address(text)
        return SigningKey(text, _password_from(password_file) if password_file else None)
    path = Path(text)
    kind = _kind(path)
    if kind not in _OURS:
        what = _called(kind)
        remedy = (
            "give the private key (cosign.key), not the public one"
            if kind == "PUBLIC KEY"
            else f"{_MAKE}, or `cosign import-key-pair --key {path}`"
        )
        raise SigningError(f"{path} is {what}, not a private key of cosign's", remedy)
    return SigningKey(str(path.resolve()), _password(path, password_file))


def public_key(text: str) -> str:
    """Check what signatures are to be checked with. Raises HostFileError or SigningError."""
    _check_given(text, "the signer's public key, cosign.pub")
    if _ADDRESS.fullmatch(text):
        _check_address(text)
        return text
    path = Path(text)
    kind = _kind(path)
    if kind not in ("PUBLIC KEY", "RSA PUBLIC KEY"):
        what = _called(kind)
        remedy = (
            "give the public key (cosign.pub); keep the private one to yourself"
            if "PRIVATE" in kind
            else "give the cosign.pub of whoever signed the image"
        )
        raise SigningError(f"{path} is {what}, not a public key", remedy)
    return str(path.resolve())


def _check_given(text: str, wanted: str) -> None:
    """Raises SigningError for an empty name: most often that of a variable that is not set."""
    if not text.strip():
        raise SigningError("--key is empty", f"name {wanted}; is the variable set?")


def _check_address(text: str) -> None:
    """Raises SigningError for an address that gives the key, or its PIN, to others."""
    if text.lower().startswith("http://"):
        raise SigningError(
            f"{text}: whoever is on the way there chooses the key",
            "give the key as a file, or by https://",
        )
    if "pin-value=" in text.lower():
        raise SigningError(
            "the address of the key holds its PIN, which every user of this machine could read",
            "leave pin-value out and set COSIGN_PKCS11_PIN",
        )


def _kind(path: Path) -> str:
    """The type of a PEM file's first block; empty if it has none. Raises HostFileError."""
    try:
        with path.open("rb") as handle:
            head = handle.read(65536).decode("ascii", errors="replace")
    except OSError as exc:
        raise HostFileError(
            f"the key {path}: {exc.strerror}", "check the path of the key and its owner"
        ) from None
    found = _PEM.search(head)
    return found[1] if found else ""


def _called(kind: str) -> str:
    if not kind:
        return "no PEM file"
    article = "an" if kind[0] in "AEIO" else "a"
    return f"{article} {kind.lower()}"


def _password(key: Path, file: Path | None) -> str:
    if file is not None:
        return _password_from(file)
    if PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE]
    if sys.stdin.isatty() and sys.stderr.isatty():
        try:
            return getpass.getpass(f"password of {key}: ", sys.stderr)
        except EOFError:
            raise SigningError(
                f"no password for {key} was given", f"type it, or set {PASSWORD_VARIABLE}"
            ) from None
    raise SigningError(
        f"{key} needs its password, and nobody is here to ask",
        f"set {PASSWORD_VARIABLE} (to nothing for a key without one), or use --key-password-file",
    )


def _password_from(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise HostFileError(f"the password file {file}: {why}", "check that file") from None
    first, _, rest = text.partition("\n")
    if rest.strip():
        raise SigningError(
            f"the password file {file} has several lines", "keep the password alone in it"
        )
    if "\0" in first:  # no program can be given it
        raise SigningError(
            f"the password file {file} is no text file", "keep the password alone in it"
        )
    return first.removesuffix("\r")
