"""What only a GPU proves. Each test's body also runs on the CPU, so that it is known to work; its
`cuda` parameters carry the mark `gpu` and skip where there is no GPU.

Runs inside the image, or where its stack is installed: `pytest tests/gpu`. DDTREE_E2E_MODELS may name
a trained pair (tests/e2e/models/train.py); else one is trained here.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REASON = "needs an NVIDIA GPU"


def pytest_configure(config: pytest.Config) -> None:
    # Inside the image there is no pyproject.toml.
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")


def gpus() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch  # type: ignore[import-not-found, unused-ignore]

    return int(torch.cuda.device_count())


def on_gpu(*values: Any, id: str, count: int = 1) -> Any:
    """A parameter that needs `count` GPUs."""
    reason = REASON if count == 1 else f"needs {count} NVIDIA GPUs"
    absent = pytest.mark.skipif(gpus() < count, reason=reason)
    return pytest.param(*values, id=id, marks=[pytest.mark.gpu, absent])


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("DDTREE_E2E_MODELS")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("models")
    subprocess.run(
        [sys.executable, str(ROOT / "tests/e2e/models/train.py"), str(folder)], check=True
    )
    return folder
