"""What DDTREE refuses of a target: configurations without weights.

Runs where torch, the patched SGLang and the overlay are: inside the image."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.overlay import gate_models as models

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

from sglang.srt.configs.model_config import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    ModelConfig,
)

from ddtree_overlay.sglang import target_gate  # noqa: E402
from tests.overlay import gate_start  # noqa: E402
from tests.overlay.gate_start import UNSAFE, Start, refused, well_formed  # noqa: E402

start, logged = gate_start.start, gate_start.logged
NO_BUFFER = ("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule")


@pytest.mark.parametrize(
    ("target", "flags", "says"),
    [
        (models.HYBRID_GDN, NO_BUFFER, "recurrent layers (Mamba, GDN or linear attention)"),
        (models.HYBRID_MAMBA, NO_BUFFER, "recurrent layers (Mamba, GDN or linear attention)"),
        (models.SLIDING, (), "sliding_attention"),
        (models.HYBRID_SWA, (), "sliding-window layers"),
        (models.HYBRID_SWA, ("--disable-hybrid-swa-memory",), "sliding-window layers"),
        (models.WINDOWED, (), "a sliding window of 128 tokens"),
        ({**models.TARGET, "layers_block_type": ["rwkv"]}, (), "layers of type rwkv"),
        ({**models.TARGET, "attention_chunk_size": 64}, (), "attention_chunk_size 64"),
    ],
    ids=["gdn", "mamba", "sliding", "swa", "swa-memory-off", "windowed", "new", "chunked"],
)
def test_a_hybrid_target_is_refused_and_the_unsafe_flag_only_warns(
    start: Start,
    logged: list[logging.LogRecord],
    target: dict[str, Any],
    flags: tuple[str, ...],
    says: str,
) -> None:
    said = refused(start, *flags, target=target)
    assert "--model-path" in said and target["architectures"][0] in said
    assert says in said and UNSAFE in said
    logged.clear()
    assert start(*flags, UNSAFE, target=target).speculative_ddtree_budget == 16
    (warning,) = [r.getMessage() for r in logged if r.levelno == logging.WARNING]
    assert "WRONG, not slow" in warning and says in warning and UNSAFE in warning


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (models.MLA, "uses MLA"),
        ({**models.TARGET, "use_ngram_embedding": True}, "n-grams"),
        (models.ENCODER_DECODER, "attends to an encoder"),
        (models.MINIMAX_SPARSE, "(sparse attention)"),
    ],
    ids=["mla", "ngram", "encoder-decoder", "minimax"],
)
def test_other_targets_are_refused_with_or_without_the_unsafe_flag(
    start: Start, target: dict[str, Any], says: str
) -> None:
    assert says in refused(start, target=target)
    said = refused(start, UNSAFE, target=target)
    assert says in said and UNSAFE not in said


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize(
    "target",
    [models.DEEPSEEK_SPARSE, models.GLM_SPARSE, models.DEEPSEEK_V4],
    ids=["dsa", "glm", "v4"],
)
def test_sparse_attention_is_refused(tmp_path: Path, target: dict[str, Any], unsafe: bool) -> None:
    # Not by a start: before our gates SGLang asks these for a GPU driver, and V4 for EAGLE.
    config = ModelConfig(str(models.write_model(tmp_path / "target", target)))
    with pytest.raises(ValueError, match="DDTREE") as caught:
        target_gate.check_target(config, allow_hybrid_unsafe=unsafe)
    said = well_formed(caught.value)
    assert "--model-path" in said and target["architectures"][0] in said
    assert "(sparse attention)" in said and UNSAFE not in said


def test_a_deepseek_without_an_indexer_is_refused_for_mla_alone(tmp_path: Path) -> None:
    target = {**models.DEEPSEEK_SPARSE, "model_type": "deepseek_v2", "index_topk": None}
    config = ModelConfig(str(models.write_model(tmp_path / "target", target)))
    with pytest.raises(ValueError, match="uses MLA"):
        target_gate.check_target(config, allow_hybrid_unsafe=False)


def test_an_embedding_model_is_refused(start: Start) -> None:
    assert "decodes nothing" in refused(start, "--is-embedding")


def test_m_rope_is_let_through(start: Start) -> None:
    assert start(target=models.M_ROPE).get_model_config().model_is_mrope


def test_a_window_that_the_model_does_not_use_is_let_through(start: Start) -> None:
    target = {**models.TARGET, "sliding_window": 64, "use_sliding_window": False}
    assert start(target=target).speculative_ddtree_budget == 16


def test_a_window_on_flashinfer_is_refused_with_the_unsafe_flag_too(start: Start) -> None:
    flashinfer = ("--attention-backend", "flashinfer")
    said = refused(start, UNSAFE, target=models.WINDOWED, backend=flashinfer)
    assert "--attention-backend (got flashinfer)" in said and "triton" in said
    start(UNSAFE, target=models.WINDOWED)
