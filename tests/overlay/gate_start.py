"""A start of SGLang with DDTREE, up to where weights would load, for the tests of the gates.

Needs torch, the patched SGLang and the overlay: import it after the file's own guard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.arg_groups import ddtree_hook  # type: ignore[import-not-found, unused-ignore]
from sglang.srt.server_args import (  # type: ignore[import-not-found, unused-ignore]
    prepare_server_args,
)

from ddtree_overlay.sglang import gates
from tests.overlay import gate_models as models

UNSAFE = "--speculative-ddtree-allow-hybrid-unsafe"
Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Parse a command line up to where weights would load, on a machine without a GPU."""
    monkeypatch.setattr(ddtree_hook, "_check_ddtree_device", lambda _: None)
    monkeypatch.setattr(gates, "_device_megabytes", lambda _: 96 * 1024)
    monkeypatch.chdir(tmp_path)

    def run(
        *flags: str,
        target: dict[str, Any] = models.TARGET,
        drafter: dict[str, Any] | str = models.DRAFTER,
        backend: tuple[str, ...] = ("--attention-backend", "triton"),
    ) -> Any:
        forget_configurations()
        models.write_model(tmp_path / "target", target)
        path = drafter
        if not isinstance(drafter, str):
            path = str(models.write_model(tmp_path / "drafter", drafter))
        # fmt: off
        return prepare_server_args([
            "--model-path", str(tmp_path / "target"), "--device", "cpu", "--skip-tokenizer-init",
            "--load-format", "dummy", *backend, "--speculative-algorithm", "DDTREE",
            "--speculative-draft-model-path", str(path), *flags,
        ])
        # fmt: on

    return run


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the overlay logs from INFO on."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, handler = logging.getLogger("ddtree_overlay"), Keep()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(before)


def refused(start: Start, *flags: str, **models_: Any) -> str:
    """The refusal of a start, checked for its form."""
    with pytest.raises(ValueError, match="DDTREE") as caught:
        start(*flags, **models_)
    return well_formed(caught.value)


def well_formed(refusal: ValueError) -> str:
    """The text of a refusal of ours: one line that gives the found value."""
    said = str(refusal)
    assert "\n" not in said
    assert said.startswith("DDTREE: ") and "(got " in said and said.endswith(".")
    return said


def forget_configurations() -> None:
    """SGLang keeps what it read from a path, and the models here are rewritten in place."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    getattr(get_config, "cache_clear", lambda: None)()
