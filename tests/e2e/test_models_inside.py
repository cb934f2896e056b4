"""The tiny models' torch parts, and what SGLang makes of the configs. Runs inside the image."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "sglang")):
    pytest.skip("torch and SGLang are not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]

from tests.e2e.models import configs
from tests.e2e.models.distil import blocks_at
from tests.e2e.models.drafter import (
    Drafter,
    Shape,
    load_drafter,
    save_drafter,
    target_features,
)
from tests.e2e.models.target import continue_greedily, new_target

SIZE, MASK = 4, 3
TAPS = (1, 3)


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(1)
    return new_target(end_id=0).eval()


@pytest.fixture(scope="module")
def drafter(target: Any) -> Drafter:
    torch.manual_seed(2)
    shape = Shape(
        hidden=target.config.hidden_size,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=32,
        intermediate=64,
        block_size=SIZE,
        taps=TAPS,
        target_layers=target.config.num_hidden_layers,
        vocabulary=target.config.vocab_size,
        mask_id=MASK,
        end_id=0,
        max_positions=512,
    )
    drafter = Drafter(shape)
    drafter.eval()
    return drafter


def test_training_blocks_equal_a_block_drafted_alone(target: Any, drafter: Drafter) -> None:
    tokens = torch.randint(4, 1000, (2, 24), generator=torch.Generator().manual_seed(3))
    starts = torch.tensor([[1, 9, 20], [5, 6, 19]])
    features = target_features(target, tokens, TAPS)
    embed = target.model.embed_tokens
    with torch.inference_mode():
        blocks = blocks_at(tokens, starts, SIZE, MASK)
        context = drafter.context(features, torch.arange(24)[None])
        together = drafter(embed(blocks.ids), blocks.places, context, blocks.mask)
        for row in range(2):
            for anchor in range(3):
                start = int(starts[row, anchor])
                ids = torch.tensor([[int(tokens[row, start])] + [MASK] * (SIZE - 1)])
                # The features of a shorter text: nothing after the bonus token may matter.
                cut = target_features(target, tokens[row : row + 1, :start], TAPS)
                alone = drafter(
                    embed(ids),
                    start + torch.arange(SIZE)[None],
                    drafter.context(cut, torch.arange(start)[None]),
                    None,
                )
                got = together[row, anchor * SIZE : (anchor + 1) * SIZE]
                assert torch.allclose(got, alone[0], atol=1e-5)
                assert blocks.labels[row, anchor].equal(tokens[row, start : start + SIZE])


def test_features_are_the_outputs_of_the_tapped_layers(target: Any) -> None:
    tokens, seen = torch.arange(4, 20)[None], []
    hooks = [
        target.model.layers[tap].register_forward_hook(
            lambda _m, _i, out: seen.append(out[0] if isinstance(out, tuple) else out)
        )
        for tap in TAPS
    ]
    features = target_features(target, tokens, TAPS)
    for hook in hooks:
        hook.remove()
    assert features.equal(torch.cat([state.view(1, 16, -1) for state in seen], -1))


def test_the_last_layer_cannot_be_tapped(target: Any) -> None:
    with pytest.raises(ValueError, match="below the last target layer"):
        target_features(target, torch.arange(4, 8)[None], (4,))


def test_greedy_continuation_equals_one_forward_per_token(target: Any) -> None:
    prefixes = torch.arange(4, 16).view(2, 6)
    tokens = continue_greedily(target, prefixes, 5)
    slow = prefixes
    with torch.inference_mode():
        for _ in range(5):
            slow = torch.cat([slow, target(slow).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert tokens.equal(slow)


def test_a_drafter_is_read_back_as_it_was_saved(drafter: Drafter, tmp_path: Path) -> None:
    save_drafter(drafter, tmp_path / "draft")
    again = load_drafter(tmp_path / "draft")
    assert again.shape == drafter.shape
    for name, tensor in drafter.state_dict().items():
        assert tensor.equal(again.state_dict()[name]), name


def test_sglang_sees_each_config_as_what_it_is_named(tmp_path: Path) -> None:
    from sglang.srt.configs.hybrid_arch import (  # type: ignore[import-not-found, unused-ignore]
        mambaish_config,
    )
    from sglang.srt.configs.model_config import (  # type: ignore[import-not-found, unused-ignore]
        AttentionArch,
        ModelConfig,
    )

    seen = {}
    for name, folder in configs.make_all(tmp_path).items():
        config = ModelConfig(str(folder))
        seen[name] = (
            type(mambaish_config(config)).__name__,
            bool(config.is_hybrid_swa),
            config.sliding_window_size,
            config.attention_arch == AttentionArch.MLA,
        )
    assert seen == {
        "dense": ("NoneType", False, None, False),
        "hybrid-gdn": ("Qwen3NextConfig", False, None, False),
        "hybrid-mamba": ("GraniteMoeHybridConfig", False, None, False),
        "hybrid-swa": ("NoneType", True, 128, False),
        "gemma3-swa": ("NoneType", False, 128, False),
        "mla": ("NoneType", False, None, True),
    }


def test_sglang_reads_the_drafters_config(tmp_path: Path) -> None:
    from sglang.srt.configs.model_config import (  # type: ignore[import-not-found, unused-ignore]
        ModelConfig,
    )
    from sglang.srt.speculative.dflash_utils import (  # type: ignore[import-not-found, unused-ignore]
        parse_dflash_draft_config,
    )

    folder = configs.write(tmp_path / "draft", configs.drafter(configs.dense()))
    config = ModelConfig(str(folder), is_draft_model=True).hf_config
    read = parse_dflash_draft_config(draft_hf_config=config)
    assert config.architectures == ["DFlashDraftModel"]
    assert (read.block_size, read.target_layer_ids, read.mask_token_id) == (16, [0, 2], 3)
