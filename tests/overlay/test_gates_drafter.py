"""What DDTREE refuses of a drafter: configurations without weights.

Runs where torch, the patched SGLang and the overlay are: inside the image."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.overlay import gate_models as models

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

from ddtree_overlay.sglang import drafter_gate  # noqa: E402
from tests.overlay import gate_start  # noqa: E402
from tests.overlay.gate_start import Start, refused  # noqa: E402

start = gate_start.start


def drafter(**changes: Any) -> dict[str, Any]:
    """The fitting drafter with top-level changes; None drops a key."""
    return {key: value for key, value in {**models.DRAFTER, **changes}.items() if value is not None}


def own(**changes: Any) -> dict[str, Any]:
    """The fitting drafter with changes in its dflash_config; None drops a key."""
    merged = {**models.DRAFTER["dflash_config"], **changes}
    return drafter(dflash_config={k: v for k, v in merged.items() if v is not None})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (drafter(architectures=["LlamaForCausalLMEagle3"]), "LlamaForCausalLMEagle3"),
        (drafter(architectures=["DFlash2DraftModel"]), "DFlash2DraftModel"),
        (drafter(architectures=["DSparkDraftModel"]), "DSparkDraftModel"),
        (drafter(dflash_config=None), "no dflash_config"),
        (own(projector_type="domino"), "projector_type=domino"),
        (own(markov_rank=256), "markov_rank"),
        (own(selector_rank=64), "selector_rank"),
        (own(shift_label=True), "shift_label"),
        (own(target_layer_ids=None), "no target_layer_ids"),
        (own(target_layer_ids=[]), "target_layer_ids must be non-empty"),
        (own(target_layer_ids=[1, 4]), "(it can from 0..2)"),
        (own(target_layer_ids=[1, 3]), "(it can from 0..2)"),
        (own(target_layer_ids=[-1, 2]), "(it can from 0..2)"),
        (own(target_layer_ids=[2, 1]), "ascending order"),
        (own(mask_token_id=None), "no mask_token_id"),
        (own(mask_token_id=256), "outside the target's vocabulary of 256"),
        (own(mask_token_id=-1), "non-negative"),
        (own(draft_vocab_size=128), "draft_vocab_size 128"),
        (drafter(num_target_layers=36), "num_target_layers 36"),
        (drafter(hidden_size=128), "hidden_size 128"),
        (drafter(vocab_size=512), "vocab_size 512"),
        (drafter(block_size=1), "block_size 1"),
        (drafter(block_size=65), "block_size 65, above the 64"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    start: Start, changed: dict[str, Any], says: str
) -> None:
    said = refused(start, drafter=changed)
    assert "--speculative-draft-model-path" in said and says in said


@pytest.mark.parametrize(
    "changed",
    [
        own(projector_type="dflash", shift_label=False),
        own(mask_token_id=0, draft_vocab_size=256),
        own(target_layer_ids=[0, 2]),
        drafter(num_target_layers=None),
        drafter(is_causal=True),
        drafter(layer_types=["sliding_attention"], sliding_window=32, use_sliding_window=True),
    ],
    ids=["plain projector", "first token", "edge layers", "layers unsaid", "causal", "sliding"],
)
def test_a_drafter_that_fits_in_another_way_is_let_through(
    start: Start, changed: dict[str, Any]
) -> None:
    assert start(drafter=changed).speculative_dflash_block_size == 8


def test_the_block_size_is_the_drafters(start: Start) -> None:
    said = refused(start, "--speculative-dflash-block-size", "4")
    assert "--speculative-dflash-block-size (got 4)" in said and "(8)" in said
    assert start("--speculative-dflash-block-size", "8").speculative_dflash_block_size == 8


def test_a_drafter_without_a_block_size_needs_the_flag(start: Start) -> None:
    changed = drafter(block_size=None)
    said = refused(start, drafter=changed)
    assert "--speculative-dflash-block-size (got None)" in said
    args = start("--speculative-dflash-block-size", "4", drafter=changed)
    assert args.speculative_dflash_block_size == 4


def test_a_drafter_that_ranks_cannot_share_is_refused(start: Start) -> None:
    # 3 KV heads: neither divisible by 2 ranks nor replicated over them.
    changed = drafter(num_attention_heads=6, num_key_value_heads=3)
    said = refused(start, "--tp-size", "2", drafter=changed)
    assert "--tp-size (got 2)" in said and "num_key_value_heads" in said


def test_the_known_architectures_are_upstreams() -> None:
    from sglang.srt.models.dflash import (  # type: ignore[import-not-found, unused-ignore]
        EntryClass,
    )

    assert {entry.__name__ for entry in EntryClass} == drafter_gate.ARCHITECTURES


def test_an_unreadable_drafter_is_named_before_sglang_reads_it(
    start: Start, tmp_path: Path
) -> None:
    said = refused(start, drafter=str(tmp_path / "nowhere"))
    assert "nowhere" in said and "does not exist" in said
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refused(start, drafter=str(tmp_path / "empty"))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"block_size": 8,', encoding="utf-8")
    said = refused(start, drafter=str(broken))
    assert "cannot be read" in said and "Traceback" not in said
    (broken / "config.json").write_text("[]", encoding="utf-8")
    assert "without an object" in refused(start, drafter=str(broken))


def test_a_draft_window_below_the_block_is_refused(start: Start) -> None:
    said = refused(start, "--speculative-draft-window-size", "7")
    assert "--speculative-draft-window-size (got 7)" in said
    assert start("--speculative-draft-window-size", "8").speculative_draft_window_size == 8
