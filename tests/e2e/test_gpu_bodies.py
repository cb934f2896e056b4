"""The bodies of tests/gpu run on the CPU, in the image; only their GPU parameters are skipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.stack import ROOT, Stack

pytestmark = pytest.mark.docker


def test_bodies_pass_on_the_cpu(
    stack: Stack, tiny_models: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ROOT if stack.python else Path("/repo")
    monkeypatch.setenv("DDTREE_E2E_MODELS", str(tiny_models))
    ran = stack.run(
        *("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-c", "/dev/null"),
        *("--rootdir", str(root / "tests/gpu"), str(root / "tests/gpu")),
        writable=workspace,
        readable=[tiny_models],
        seconds=600,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert re.search(r"[1-9]\d* passed", ran.stdout)
    reasons = re.findall(r"^SKIPPED \[\d+\] [^ ]+ (.*)$", ran.stdout, re.MULTILINE)
    assert reasons and all(re.fullmatch(r"needs (an|2) NVIDIA GPUs?", one) for one in reasons)
