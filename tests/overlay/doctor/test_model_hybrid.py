"""The kind of target, from config.json alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.model import Severity
from ddtree_overlay.doctor.model_checks.hybrid import check_target, target_findings
from ddtree_overlay.doctor.model_checks.kinds import kind_of
from tests.overlay import gate_models as models
from tests.overlay.doctor.model_files import TARGET, ids, subject, write_model

RECURRENT = "recurrent layers"
HYBRIDS = [
    (models.HYBRID_GDN, RECURRENT),
    (models.HYBRID_MAMBA, RECURRENT),
    ({**TARGET, "model_type": "x", "linear_attn_config": {"kda_layers": [1]}}, RECURRENT),
    ({**TARGET, "text_config": {**TARGET, "model_type": "qwen3_5_text"}}, RECURRENT),
    ({**TARGET, "llm_config": {**TARGET, "model_type": "nemotron_h"}}, RECURRENT),
    ({**TARGET, "layers_block_type": ["attention", "rwkv"]}, "layers of type rwkv"),
    (models.SLIDING, "sliding_attention"),
    (models.HYBRID_SWA, "sliding-window layers"),
    (models.WINDOWED, "a sliding window of 128 tokens"),
    ({**TARGET, "attention_chunk_size": 64}, "attention_chunk_size 64"),
    ({**TARGET, "use_sliding_window": True, "sliding_window": 64}, "window of 64"),
    ({**TARGET, "is_hybrid_swa": True}, "sliding-window layers"),
]
FINAL = [
    (models.MLA, "MLA"),
    (models.DEEPSEEK_SPARSE, "sparse attention"),
    (models.GLM_SPARSE, "sparse attention"),
    (models.DEEPSEEK_V4, "sparse attention"),
    (models.MINIMAX_SPARSE, "sparse attention"),
    (models.ENCODER_DECODER, "attends to an encoder"),
    ({**TARGET, "architectures": ["Qwen3ForRewardModel"]}, "decodes nothing"),
    ({**TARGET, "use_ngram_embedding": True}, "n-grams"),
]
PLAIN = [
    TARGET,
    models.M_ROPE,
    {**TARGET, "sliding_window": 4096},  # Qwen's: not switched on
    {**TARGET, "sliding_window": 4096, "use_sliding_window": False},
    {**models.WINDOWED, "sliding_window": None},
    {**TARGET, "layer_types": ["full_attention"] * 4},
    {**TARGET, "model_type": "granitemoehybrid", "layer_types": ["attention"], "mamba_d_state": 16},
    {**TARGET, "architectures": ["LagunaForCausalLM"], "model_type": "laguna"},
]


@pytest.mark.parametrize("config", PLAIN)
def test_full_attention_is_let_through(config: dict[str, Any]) -> None:
    assert ids(target_findings("m", config, False, "flashinfer")) == []


@pytest.mark.parametrize(("config", "says"), HYBRIDS)
def test_a_hybrid_is_refused_and_can_be_allowed(config: dict[str, Any], says: str) -> None:
    (finding,) = target_findings("m", config, False, "triton")
    assert (finding.code, finding.severity) == ("HYB002", Severity.ERROR)
    assert says in finding.what
    (allowed,) = target_findings("m", config, True, "triton")
    assert (allowed.code, allowed.severity) == ("HYB003", Severity.WARNING)


@pytest.mark.parametrize(("config", "says"), FINAL)
@pytest.mark.parametrize("allowed", [False, True])
def test_a_final_refusal(config: dict[str, Any], says: str, allowed: bool) -> None:
    (finding,) = target_findings("m", config, allowed, None)
    assert finding.code == "HYB001" and says in finding.what


def test_windows_and_flashinfer() -> None:
    found = list(target_findings("m", models.SLIDING, True, "flashinfer"))
    assert ids(found) == ["HYB003", "HYB004"]


def test_both_kinds_are_named() -> None:
    config = {**models.HYBRID_GDN, "sliding_window": 64}
    kind = kind_of(config | {"use_sliding_window": True})
    assert kind.recurrent and kind.local and kind.final is None


@pytest.mark.parametrize("layer_types", [None, "sliding_attention", 3, {}])
def test_layer_types_of_another_kind_do_no_harm(layer_types: object) -> None:
    assert kind_of({**TARGET, "layer_types": layer_types}).local is None


@pytest.mark.parametrize(
    ("algorithm", "codes"), [("DDTREE", ["HYB002"]), ("DFLASH", []), (None, [])]
)
def test_only_trees_ask(tmp_path: Path, algorithm: str | None, codes: list[str]) -> None:
    target = write_model(tmp_path / "target", models.HYBRID_GDN)
    assert ids(check_target(subject(model=str(target), algorithm=algorithm))) == codes
