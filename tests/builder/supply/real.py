"""The real cosign, and keys made with it."""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path

from builder.errors import ToolMissingError
from builder.pins import load_shared
from builder.project import default_project
from builder.supply.cosign import Cosign
from builder.supply.keys import SigningKey, public_key, signing_key
from tests.builder.local_registry import skip_or_fail

PASSWORD = "of a test, w1th spaces"


@lru_cache(maxsize=1)
def _obtained(cache: str, path: str) -> Cosign:
    project = default_project()
    return Cosign.obtain(project, load_shared(project))


def real_cosign() -> Cosign:
    """From PATH or Debian; skips where neither can be had (fails in CI)."""
    try:
        return _obtained(str(default_project().cache), os.environ["PATH"])
    except ToolMissingError as exc:
        skip_or_fail(f"{exc.what} ({exc.remedy})")
        raise


def key_pair(cosign: Cosign, folder: Path, name: str) -> tuple[SigningKey, str]:
    """A new pair by `cosign generate-key-pair`, encrypted with PASSWORD."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [str(cosign.program), "generate-key-pair", "--output-key-prefix", name],
        cwd=folder,
        env={**os.environ, "COSIGN_PASSWORD": PASSWORD},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    key = signing_key(str(folder / f"{name}.key"), password)
    return key, public_key(str(folder / f"{name}.pub"))
