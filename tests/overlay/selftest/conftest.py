"""`ddtree selftest` as a process, with the stub server as `python` on PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.overlay.conftest import OVERLAY

HERE = Path(__file__).resolve().parent
# Only so that a hang ends.
SECONDS = 90.0
# Its pace is set for real servers; what is waited for here is a stub's.
RUN = """
import sys
from ddtree_overlay.selftest import run, server
from ddtree_overlay.serve.cli import main
run.METRICS_SECONDS, server.POLL_SECONDS, server.TERM_SECONDS = 1.0, 0.05, 1.5
sys.exit(main())
"""


@dataclass
class Bench:
    """A file system for the self-test, and the stub's records."""

    root: Path

    def environment(self, fault: str = "", **more: str) -> dict[str, str]:
        from ddtree_overlay.selftest.model_files import FOLDER
        from ddtree_overlay.selftest.workload import TEXTS

        return {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(OVERLAY / "src"), str(HERE.parents[2])]),
            "DDTREE_HOST_ROOT": str(self.root / "host"),
            "DDTREE_MANIFEST": str(self.root / "manifest.json"),
            "TMPDIR": str(self.root / "tmp"),
            "STUB_FAULT": fault,
            "STUB_FOLDER": str(self.root / "stub"),
            "STUB_RECORD": str(FOLDER / "models.json"),
            "STUB_TEXTS": json.dumps(dict(TEXTS)),
            **more,
        }

    def start(self, *arguments: str, fault: str = "", **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", RUN, "selftest", *arguments],
            env=self.environment(fault, **more),
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *arguments: str, fault: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, fault=fault, **more)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def started(self, name: str) -> dict[str, Any]:
        """What the server "plain" or "tree" was started with."""
        found: dict[str, Any] = json.loads((self.root / "stub" / f"{name}.json").read_text())
        return found

    def left(self) -> list[int]:
        """Processes of the stub that still run."""
        files = [*(self.root / "stub").glob("*.child"), *(self.root / "stub").glob("*.json")]
        pids = [
            int(f.read_text()) if f.suffix == ".child" else int(json.loads(f.read_text())["pid"])
            for f in files
        ]
        return [pid for pid in pids if alive(pid)]

    def gpu(self) -> None:
        (self.root / "host/dev/nvidia0").touch()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # dead, and its parent has not asked


def set_up(tmp_path: Path) -> Bench:
    """A bench in an empty folder."""
    for name in ("bin", "host/dev", "stub", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    python = tmp_path / "bin/python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "stub_server.py"}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "manifest.json").write_text(
        json.dumps({"version": "0.1.0", "build_id": "b-123", "variant": "cu130", "stand_in": False})
    )
    return Bench(tmp_path)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = set_up(tmp_path)
    yield found
    for pid in found.left():
        os.kill(pid, 9)


Run = Callable[..., subprocess.CompletedProcess[str]]
