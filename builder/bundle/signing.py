"""The bundle's signature: by cosign's key, checked on the host by openssl alone."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from shutil import which

from builder import console, proc
from builder.bundle.make import Signer
from builder.errors import SigningError
from builder.pins import SharedPins
from builder.project import Project
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey


def signer(project: Project, shared: SharedPins, key: SigningKey) -> Signer:
    """Signs with cosign, tried once here so that a key that cannot sign is found early.

    Raises SigningError, ToolMissingError.
    """
    cosign = Cosign.obtain(project, shared)

    def sign(path: Path) -> bytes:
        with tempfile.TemporaryDirectory(prefix="ddtree-sign-") as scratch:
            signature = Path(scratch) / "signature"
            cosign.sign_blob(path, key, signature)
            public = cosign.public_key(key, Path(scratch) / "cosign.pub")
            text = signature.read_bytes()
            check_with_openssl(path, Path(public), text)
        return text

    with tempfile.TemporaryDirectory(prefix="ddtree-sign-") as scratch:
        probe = Path(scratch) / "probe"
        probe.write_bytes(b"")
        sign(probe)
    return sign


def check_with_openssl(path: Path, public: Path, signature: bytes) -> None:
    """Raises SigningError for a signature that import.sh could not check (of an Ed25519 key).

    Where there is no openssl nothing is checked, and a warning says so.
    """
    program = which("openssl")
    if program is None:
        console.warn(f"no openssl on PATH: the signature of {path.name} was not tried with it")
        return
    with tempfile.TemporaryDirectory(prefix="ddtree-sign-") as scratch:
        der = Path(scratch) / "signature"
        der.write_bytes(base64.b64decode(signature))
        proc.run(
            [program, "dgst", "-sha256", "-verify", str(public), "-signature", str(der), str(path)],
            capture=True,
            echo=False,
            error=SigningError,
            what="openssl cannot verify a signature of this key",
            remedy="use an ECDSA P-256 key: `cosign generate-key-pair`",
        )
