"""What cosign says on stderr, as errors of ours.

Texts are those of cosign 2.5.0 and 3.1.1, and of go-containerregistry, which speaks to the registry
for it. cosign's exit codes (10: no signature, 12: none that matches) are not those of all versions.
"""

from __future__ import annotations

import re

from builder.errors import (
    BuilderError,
    ImageAbsentError,
    RegistryFullError,
    RegistryRefusedError,
    RegistryUnreachableError,
    SigningError,
    TamperedError,
    UnsignedError,
)
from builder.registry.reference import Reference

_CONNECTION = re.compile(
    r"dial tcp|connection re(?:fused|set)|no such host|i/o timeout|context deadline exceeded"
    r"|TLS handshake|x509:|server gave HTTP response|unexpected EOF|EOF$",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"UNAUTHORIZED|DENIED|\b401\b|\b403\b|authentication required")
_ABSENT = re.compile(r"MANIFEST_UNKNOWN|NAME_UNKNOWN|\b404\b")
_FULL = re.compile(r"no space left|INSUFFICIENT|\b507\b|quota", re.IGNORECASE)
_PASSWORD = re.compile(r"decryption failed|inappropriate ioctl")
_KEY = re.compile(r"reading key|loading public key|unsupported pem|no such file|loading URL")
# A key management service is asked for the public key late: once a signature is there to check.
_NO_KEY = re.compile(
    r"(?:get|getting|fetch|fetching|read|reading) (?:the )?public key|operation error KMS"
)
_OPTION = re.compile(r"unknown flag|unknown command|unknown shorthand")
_ALTERED = re.compile(r"(?:does not match|mismatch).*digest|digest.*(?:does not match|mismatch)")
_NO_ATTESTATION = re.compile(r"no matching attestations|none of the attestations matched")

# In this order: the address of a registry that cannot be reached may hold any number.
_KINDS: tuple[tuple[re.Pattern[str], type[BuilderError], str], ...] = (
    (
        _NO_KEY,
        SigningError,
        "the image was not judged: check the address in --key, and this user's credentials and way "
        "to that service",
    ),
    (_KEY, SigningError, "check --key: its path or address, and what kind of key it is"),
    (_OPTION, SigningError, "use cosign 2 or 3; put it first on PATH"),
    (_FULL, RegistryFullError, "free space or raise the quota, then run it again"),
    (_CONNECTION, RegistryUnreachableError, "check the registry's address, then run it again"),
    (
        _REFUSED,
        RegistryRefusedError,
        "`docker login` with the right to read (to sign: to write) that repository",
    ),
    (_ALTERED, TamperedError, "do not use this registry's copy; push the image again"),
    (_ABSENT, ImageAbsentError, "check the reference; push the image first"),
)


def said(stderr: str) -> str:
    """The one line of cosign's output that tells why, without its prefix."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("Error:", "error during"))]
    line = (errors or lines or ["no output"])[0]
    return line.removeprefix("Error:").removeprefix("error during command execution:").strip()


def unsigned(stderr: str, image: Reference) -> UnsignedError | None:
    """The error for an image without a signature that counts; None for other failures."""
    text = said(stderr)
    if "no signatures found" in text:
        return UnsignedError(
            f"{image} has no signature",
            "have it signed (`build.py push --key`); --unsigned checks the rest without a key",
        )
    # cosign lists why each one does not count. If it could not read one, or had no key to check it
    # with, that is another failure.
    if "no matching signatures" in text and not _not_judged(text):
        return UnsignedError(
            f"no signature on {image} is by this key and of this digest "
            f"({text.partition('no matching signatures:')[2].strip() or 'none matches'})",
            "check which key the image was signed with; do not run it otherwise",
        )
    return None


def no_attestation(stderr: str) -> bool:
    """Whether cosign only says that no attestation counts."""
    text = said(stderr)
    return bool(_NO_ATTESTATION.search(text)) and not _not_judged(text)


def _not_judged(text: str) -> bool:
    return bool(_CONNECTION.search(text) or _NO_KEY.search(text))


def failure(stderr: str, doing: str, tool: str) -> BuilderError:
    """The error for any other failure of cosign."""
    why = said(stderr)
    if _PASSWORD.search(why):
        return SigningError(
            f"{doing}: the password of the key is wrong or missing",
            "check COSIGN_PASSWORD or --key-password-file",
        )
    for pattern, error, remedy in _KINDS:
        if pattern.search(why):
            return error(f"{doing}: {why}", remedy)
    return SigningError(f"{doing}: {why} ({tool})", "read what cosign says; try it by hand")
