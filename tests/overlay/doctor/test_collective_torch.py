"""The real ranks, over gloo on CPU tensors. Runs where torch is: inside the image."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)

from ddtree_overlay.doctor.collective import all_reduce
from tests.overlay.doctor.model_files import ids, subject


def _run(ranks: int, seconds: float = 120, **environment: str) -> Any:
    return all_reduce(
        subject(
            device="cpu",
            python=sys.executable,
            gpus_needed=ranks,
            collective_seconds=seconds,
            environment={**os.environ, **environment},
        )
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_right_values(ranks: int) -> None:
    decided = _run(ranks)
    assert decided.findings == ()
    assert decided.verdict.peer_to_peer and f"{ranks} ranks" in decided.verdict.why
    assert "at 64 MiB" in decided.verdict.why


_PRELOAD = """
import os, sys
rank = sys.orig_argv[sys.orig_argv.index("--rank") + 1] if "--rank" in sys.orig_argv else None
if rank == "1" and os.environ.get("NCCL_P2P_DISABLE") != "1":
    import torch.distributed as dist
    real = dist.all_reduce
    def all_reduce(data):
        {body}
    dist.all_reduce = all_reduce
"""


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("real(data); data[3] += 1", "COL002", "gave rank 1 2 wrong values of 8192 bytes"),
        ("os._exit(7)", "COL001", "rank 1 ended with exit code 7 (at: all-reduce of 8192 bytes)"),
        ("import time; time.sleep(300)", "COL001", "hung"),
    ],
)
def test_a_rank_that_fails_until_peer_to_peer_is_off(
    tmp_path: Path, body: str, code: str, says: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_PRELOAD.format(body=body))
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    decided = _run(2, seconds=25, PYTHONPATH=path)
    assert ids(decided.findings) == [code]
    assert says in decided.findings[0].what
    assert decided.verdict.peer_to_peer is False
