"""cosign, for signatures and attestations by key: no transparency log, no certificate authority.

Signatures lie beside the image as the tags `sha256-<hex>.sig` and `.att` of its repository
(sigstore's cosign, specs/SIGNATURE_SPEC.md and ATTESTATION_SPEC.md), which every cosign from 2.0 to
3 reads. cosign 3 would write another form and ask for services unless told not to. Credentials of
the registry are cosign's matter: it reads the Docker configuration.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from builder import console, proc
from builder.engine.aptsources import AptUnavailableError
from builder.engine.packages import Want, obtain
from builder.errors import (
    BuilderError,
    SigningError,
    TamperedError,
    ToolMissingError,
    UnsignedError,
)
from builder.pins import SharedPins
from builder.project import Project
from builder.registry.documents import parse_json
from builder.registry.reference import Reference
from builder.supply import cosign_failures
from builder.supply.keys import PASSWORD_VARIABLE, SigningKey

_REMEDY = "install cosign 2.0 or newer (any 2 or 3) and put it on PATH"
_TIMEOUT = "--timeout=10m0s"  # of one call; cosign's own 3 minutes are short for a large SBOM
_NO_LOG = "--tlog-upload=false"
_IGNORE_LOG = "--insecure-ignore-tlog=true"
_FORMAT = "--new-bundle-format=false"


@dataclass(frozen=True)
class Cosign:
    """A cosign that can be run, and which of its two ways to ask it."""

    program: Path
    version: str
    """As its package or itself says; `devel` for some distributions' own builds."""
    generation: int
    """2, or 3, whose defaults differ."""

    @classmethod
    def obtain(cls, project: Project, shared: SharedPins) -> Cosign:
        """The one on PATH if it is new enough, else Debian's in the builder's cache.

        Raises ToolMissingError where neither can be had.
        """
        found = which("cosign")
        if found:
            generation = _generation(Path(found))
            if generation:
                return cls(Path(found), _version(Path(found)), generation)
            console.warn(f"{found} is neither cosign 2 nor 3; Debian's is used instead")
        suite = shared.engine.suite
        try:
            unpacked = obtain(project, [Want(suite, ("cosign",))])
        except AptUnavailableError as exc:
            raise ToolMissingError(
                f"cosign is not installed, and Debian's cannot be had: {exc.what}",
                f"{_REMEDY}; or {exc.remedy}",
            ) from None
        program = unpacked.program("cosign")
        generation = _generation(program) if program else 0
        if program is None or not generation:
            raise ToolMissingError(f"Debian {suite}'s cosign cannot be used here", _REMEDY)
        return cls(program, unpacked.versions["cosign"], generation)

    def sign(self, image: Reference, key: SigningKey) -> None:
        """Sign the manifest digest of `image`. cosign does not ask whether it exists.

        Raises SigningError and the registry errors.
        """
        argv = ["sign", *self._writing(key), *_http(image), _by_digest(image)]
        self._run(argv, key, f"cannot sign {image}")

    def attest(self, image: Reference, key: SigningKey, predicate: Path, kind: str) -> None:
        """Add a signed in-toto statement: `predicate` (a JSON file) of type `kind` (a URI)."""
        argv = ["attest", *self._writing(key), *_http(image)]
        argv += ["--predicate", str(predicate), "--type", kind, _by_digest(image)]
        self._run(argv, key, f"cannot attest {kind} of {image}")

    def verify(self, image: Reference, public: str) -> list[dict[str, Any]]:
        """What the signatures by `public` on this digest claim, one or more.

        "Simple signing" documents: critical.identity.docker-reference, critical.image. Raises
        UnsignedError when there is none.
        """
        argv = ["verify", *self._reading(public), *_http(image), "--output", "json"]
        done = self._run([*argv, _by_digest(image)], None, f"cannot verify {image}", fails=True)
        if done.returncode:
            raise cosign_failures.unsigned(done.stderr, image) or self._failed(
                done, f"cannot verify {image}"
            )
        claims: list[dict[str, Any]] = json.loads(done.stdout)
        if not claims:
            raise UnsignedError(f"{image} has no signature", "have it signed")
        return claims

    def attestations(self, image: Reference, public: str, kind: str) -> list[dict[str, Any]]:
        """The in-toto statements of type `kind` that `public` signed for this digest; may be none.

        cosign has compared each statement's subject with the digest.
        """
        argv = ["verify-attestation", *self._reading(public), *_http(image), "--type", kind]
        doing = f"cannot verify attestations of {image}"
        done = self._run([*argv, _by_digest(image)], None, doing, fails=True)
        if done.returncode:
            if cosign_failures.no_attestation(done.stderr):
                return []
            raise self._failed(done, doing)
        return [statement(json.loads(line)) for line in done.stdout.splitlines() if line.strip()]

    def sign_blob(self, file: Path, key: SigningKey, signature: Path) -> None:
        """Write a detached signature: base64 of what `openssl dgst -sha256 -sign` would give."""
        argv = ["sign-blob", *self._writing(key), "--output-signature", str(signature), str(file)]
        self._run(argv, key, f"cannot sign {file.name}")

    def public_key(self, key: SigningKey, to: Path) -> str:
        """Write the public half of a signing key to a file; returns its path."""
        argv = ["public-key", "--key", key.reference, "--outfile", str(to)]
        self._run(argv, key, "cannot read the public half of the key")
        return str(to)

    def _writing(self, key: SigningKey) -> list[str]:
        newer = ["--use-signing-config=false", _FORMAT] if self.generation >= 3 else []
        return ["--yes", _NO_LOG, *newer, _TIMEOUT, "--key", key.reference]

    def _reading(self, public: str) -> list[str]:
        newer = [_FORMAT] if self.generation >= 3 else []
        return [_IGNORE_LOG, *newer, _TIMEOUT, "--key", public]

    def _run(
        self, argv: list[str], key: SigningKey | None, doing: str, *, fails: bool = False
    ) -> proc.Completed:
        password = key.password if key else None
        whole = [str(self.program), *argv]
        env = environment(os.environ, password, keys=argv)
        done = proc.run(whole, env=env, capture=True)
        if done.returncode and not fails:
            raise self._failed(done, doing)
        return done

    def _failed(self, done: proc.Completed, doing: str) -> BuilderError:
        return cosign_failures.failure(done.stderr, doing, f"cosign {self.version}")


def environment(
    host: Mapping[str, str], password: str | None, keys: Sequence[str] = ()
) -> dict[str, str]:
    """The environment for cosign: COSIGN_* of the host would change where and what it signs.

    Those of hardware tokens and of the size limit stay, and one that `keys` (arguments) names as
    `env://NAME`.
    """
    named = {key.removeprefix("env://") for key in keys if key.startswith("env://")}
    kept = {
        name: value
        for name, value in host.items()
        if not name.startswith("COSIGN_")
        or name.startswith("COSIGN_PKCS11_")
        or name in ("COSIGN_MAX_ATTACHMENT_SIZE", PASSWORD_VARIABLE, *named)
    }
    if password is not None:
        kept[PASSWORD_VARIABLE] = password
    return kept


def statement(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """The in-toto statement in a DSSE envelope (its signature is not looked at).

    Raises TamperedError for what is not one.
    """
    try:
        if envelope["payloadType"] != "application/vnd.in-toto+json":
            raise ValueError(envelope["payloadType"])
        found = parse_json(base64.b64decode(envelope["payload"], validate=True))
        if not isinstance(found["predicateType"], str) or not isinstance(found["subject"], list):
            raise TypeError("no statement")
    except (KeyError, TypeError, ValueError):
        raise TamperedError(
            "an attestation is not an in-toto statement", "have the image attested again"
        ) from None
    return dict(found)


def _by_digest(image: Reference) -> str:
    if not image.digest:
        raise SigningError(f"{image} names no digest", "signatures are made of digests, not tags")
    return str(image)


def _http(image: Reference) -> list[str]:
    return ["--allow-http-registry"] if image.loopback else []


def _generation(program: Path) -> int:
    """2 or 3 by the options that it has (a distribution's own build says `devel`); 0 for others."""
    try:
        done = proc.run([str(program), "sign", "--help"], capture=True, echo=False, timeout=60)
    except Exception:  # whatever it is, it is not a program that can be used
        return 0
    text = done.stdout + done.stderr
    if "--use-signing-config=true" in text:
        return 3
    return 2 if "--tlog-upload" in text else 0


def _version(program: Path) -> str:
    done = proc.run([str(program), "version", "--json"], capture=True, echo=False, timeout=60)
    try:
        return str(json.loads(done.stdout)["gitVersion"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
