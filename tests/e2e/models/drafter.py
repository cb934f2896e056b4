"""The DFlash drafter in plain torch, as SGLang's `DFlashDraftModel` computes it, and its training.

A block is [bonus token, mask, mask, ...] at positions prefix .. prefix + block_size - 1. It attends
to itself in both directions and to the context: the keys and values that each draft layer projects
from `hidden_norm(fc(target hidden states))` of every token before the bonus token. The target's
embedding and head are used; there are none here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from torch import nn  # type: ignore[import-not-found, unused-ignore]
from torch.nn import functional as F  # type: ignore[import-not-found, unused-ignore]  # noqa: N812

EPSILON = 1e-6
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a drafter. `taps` are target layers, 0-based: the hidden state after each."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    block_size: int
    taps: tuple[int, ...]
    target_layers: int
    vocabulary: int
    mask_id: int
    end_id: int
    max_positions: int


class RMSNorm(nn.Module):  # type: ignore[misc, unused-ignore]
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Any) -> Any:
        return F.rms_norm(x, (x.shape[-1],), self.weight, EPSILON)


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    """Grouped-query attention with per-head q and k norms and rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim)
        self.k_norm = RMSNorm(shape.head_dim)

    def keys_values(self, x: Any, positions: Any) -> tuple[Any, Any]:
        """[batch, kv_heads, tokens, head_dim] each, of x [batch, tokens, hidden]."""
        split = (*x.shape[:2], self.shape.kv_heads, self.shape.head_dim)
        keys = self.k_norm(self.k_proj(x).view(split)).transpose(1, 2)
        return rotate(keys, positions), self.v_proj(x).view(split).transpose(1, 2)

    def forward(self, x: Any, positions: Any, context: tuple[Any, Any], mask: Any) -> Any:
        split = (*x.shape[:2], self.shape.heads, self.shape.head_dim)
        queries = rotate(self.q_norm(self.q_proj(x).view(split)).transpose(1, 2), positions)
        own_keys, own_values = self.keys_values(x, positions)
        keys = torch.cat([context[0], own_keys], 2)
        values = torch.cat([context[1], own_values], 2)
        groups = self.shape.heads // self.shape.kv_heads
        mixed = F.scaled_dot_product_attention(
            queries,
            keys.repeat_interleave(groups, 1),
            values.repeat_interleave(groups, 1),
            attn_mask=mask,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden)
        self.mlp = MLP(shape)

    def forward(self, x: Any, positions: Any, context: tuple[Any, Any], mask: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), positions, context, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):  # type: ignore[misc, unused-ignore]
    """The module's parameter names are those of the checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.taps) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = RMSNorm(shape.hidden)

    def context(self, features: Any, positions: Any) -> list[tuple[Any, Any]]:
        """Each layer's keys and values of the committed tokens.

        features [batch, tokens, taps * hidden], positions [batch or 1, tokens].
        """
        projected = self.hidden_norm(self.fc(features))
        return [layer.self_attn.keys_values(projected, positions) for layer in self.layers]

    def forward(
        self, embeddings: Any, positions: Any, context: Sequence[tuple[Any, Any]], mask: Any
    ) -> Any:
        """Hidden states [batch, tokens, hidden] for the target's head.

        embeddings [batch, tokens, hidden], positions [batch or 1, tokens], mask bool, True where
        a query may see a key: [batch or 1, 1, tokens, context tokens + tokens], or None for all.
        """
        x = embeddings
        for layer, layer_context in zip(self.layers, context, strict=True):
            x = layer(x, positions, layer_context, mask)
        return self.norm(x)


def rotate(x: Any, positions: Any) -> Any:
    """Rotary embedding, halves convention: x [batch, heads, tokens, head_dim]."""
    half = x.shape[-1] // 2
    rates = ROPE_THETA ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = (positions[..., None].float() * rates)[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def target_features(target: Any, tokens: Any, taps: Sequence[int]) -> Any:
    """[batch, tokens, taps * hidden]: the residual stream after each tapped target layer."""
    if max(taps) >= target.config.num_hidden_layers - 1:
        # Transformers gives the last layer's output only after the final norm.
        raise ValueError(f"taps must be below the last target layer, got {list(taps)}")
    with torch.no_grad():
        states = target.model(tokens, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[tap + 1] for tap in taps], -1)


def save_drafter(drafter: Drafter, folder: Path) -> None:
    """Write config.json and model.safetensors as SGLang loads them."""
    from safetensors.torch import (  # type: ignore[import-not-found, unused-ignore]
        save_file,
    )

    shape = drafter.shape
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_THETA,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": shape.end_id,
        "dtype": "float32",
        "block_size": shape.block_size,
        "num_target_layers": shape.target_layers,
        "dflash_config": {"target_layer_ids": list(shape.taps), "mask_token_id": shape.mask_id},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    weights = {name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    readable(folder)


def readable(folder: Path) -> None:
    """Let any user read the files: safetensors makes them for the owner alone."""
    for file in folder.iterdir():
        file.chmod(0o644)


def load_drafter(folder: Path) -> Drafter:
    """Read back what save_drafter wrote."""
    from safetensors.torch import (  # type: ignore[import-not-found, unused-ignore]
        load_file,
    )

    config = json.loads((folder / "config.json").read_text("utf-8"))
    drafter = Drafter(
        Shape(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            intermediate=config["intermediate_size"],
            block_size=config["block_size"],
            taps=tuple(config["dflash_config"]["target_layer_ids"]),
            target_layers=config["num_target_layers"],
            vocabulary=config["vocab_size"],
            mask_id=config["dflash_config"]["mask_token_id"],
            end_id=config["eos_token_id"],
            max_positions=config["max_position_embeddings"],
        )
    )
    drafter.load_state_dict(load_file(str(folder / "model.safetensors")))
    drafter.eval()
    return drafter
