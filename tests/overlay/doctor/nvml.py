"""Runs our code in a child whose libnvidia-ml.so.1 is the stub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.overlay.doctor.fake_host import FakeHost, manifest

STUB = Path(__file__).with_name("nvml_stub.c")


def compile_stub(folder: Path) -> Path:
    """The folder with the library."""
    subprocess.run(
        [
            "g++",
            "-x",
            "c",
            "-shared",
            "-fPIC",
            "-O1",
            str(STUB),
            "-o",
            str(folder / "libnvidia-ml.so.1"),
        ],
        check=True,
        timeout=120,
    )
    return folder


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def codes(self) -> list[str]:
        return [finding["code"] for finding in self.document["findings"]]

    def what(self, code: str) -> str:
        return " / ".join(f["what"] for f in self.document["findings"] if f["code"] == code)


def environment_of(host: FakeHost, library: Path, folder: Path, **variables: str) -> dict[str, str]:
    """Of a container on that host."""
    root = folder / "root"
    if not root.exists():
        host.build(root)
    found = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOME": str(folder),
        "DDTREE_HOST_ROOT": str(root),
        "DDTREE_MANIFEST": str(manifest(folder / "manifest.json")),
        "DDTREE_CACHE_DIR": str(folder / "cache"),
        "NVML_STUB": host.stub(),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    # A machine that has a real NVML would answer for a host that is to have none.
    found["LD_LIBRARY_PATH"] = str(library) if host.library else str(_broken(folder))
    return {**found, **variables}


def _broken(folder: Path) -> Path:
    """A folder whose libnvidia-ml.so.1 cannot be loaded, as none were there."""
    empty = folder / "no-library"
    empty.mkdir(exist_ok=True)
    (empty / "libnvidia-ml.so.1").write_text("not a library")
    return empty


def run(program: list[str], environment: dict[str, str], seconds: float = 120) -> Run:
    done = subprocess.run(
        [sys.executable, *program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def doctor(environment: dict[str, str], *arguments: str) -> Run:
    """`ddtree doctor --json ...`."""
    return run(["-m", "ddtree_overlay.serve.cli", "doctor", "--json", *arguments], environment)
