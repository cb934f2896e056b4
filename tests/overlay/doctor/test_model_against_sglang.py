"""What is told from config.json against what SGLang says of the same file.

Runs where torch and the patched SGLang are: inside the image."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_overlay.doctor.model_checks import configuration, kinds, known
from ddtree_overlay.doctor.model_checks.hybrid import target_findings
from ddtree_overlay.sglang import drafter_fields, target_gate
from tests.e2e.models import configs
from tests.overlay import gate_models as models
from tests.overlay.doctor.model_files import DRAFTER, ids

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

from sglang.srt.configs import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    hybrid_arch,
    model_config,
)
from sglang.srt.speculative.dflash_utils import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    parse_dflash_draft_config,
)

TARGETS: dict[str, dict[str, Any]] = {
    **{name: maker() for name, maker in configs.MAKERS.items()},
    **{
        name.lower(): value
        for name, value in vars(models).items()
        if name.isupper() and isinstance(value, dict) and "architectures" in value
    },
    "chunked": {**models.TARGET, "attention_chunk_size": 64},
    "rwkv": {**models.TARGET, "layers_block_type": ["rwkv"]},
    "qwen-window-off": {**models.TARGET, "sliding_window": 64},
    "qwen-window-on": {**models.TARGET, "sliding_window": 64, "use_sliding_window": True},
    "reward": {**models.TARGET, "architectures": ["Qwen3ForRewardModel"]},
    "ngram": {**models.TARGET, "use_ngram_embedding": True},
    "yarn": {
        **models.TARGET,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "linear": {**models.TARGET, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}
TARGETS.pop("shape", None)
TARGETS.pop("drafter", None)


def _real(folder: Path, config: dict[str, Any]) -> Any:
    return model_config.ModelConfig(str(models.write_model(folder, config)))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("allowed", [False, True])
def test_the_verdict_is_the_gates(tmp_path: Path, name: str, allowed: bool) -> None:
    config = TARGETS[name]
    real = _real(tmp_path, config)
    try:
        target_gate.check_target(real, allow_hybrid_unsafe=allowed)
        refused = None
    except ValueError as error:
        refused = str(error)
    found = [f for f in target_findings("m", config, allowed, None) if f.severity == "error"]
    assert bool(found) == bool(refused), refused or found
    if refused:
        reason = found[0].what.partition(") ")[2].partition(", for which tree")[0]
        assert reason in refused, (reason, refused)


@pytest.mark.parametrize("name", [n for n in TARGETS if n != "encoder_decoder"])
def test_the_sizes_are_sglangs(tmp_path: Path, name: str) -> None:
    config = TARGETS[name]
    real, text = _real(tmp_path, config), configuration.text_config(config)
    assert configuration.attention_heads(text) == real.num_attention_heads
    assert configuration.kv_heads(text) == real.get_total_num_kv_heads()
    # Never below SGLang's, or a context that it takes would be refused.
    assert configuration.context_length(text) >= real.context_len


def _strings(function: Any, name: str | None = None) -> set[str]:
    """String constants in a function's source; in the value of a variable of it, if named."""
    tree: ast.AST = ast.parse(textwrap.dedent(inspect.getsource(function)))
    if name is not None:
        (tree,) = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == name
        ]
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def _architectures(strings: set[str]) -> set[str]:
    return {text for text in strings if text[:1].isupper() and text.isidentifier()}


def test_the_lists_of_architectures_are_sglangs() -> None:
    sliding = _strings(model_config.is_hybrid_swa_model, "hybrid_swa_archs")
    sliding |= set(model_config.MIMO_V2_MODEL_ARCHS)
    assert sliding == kinds.SLIDING_ARCHITECTURES
    assert _strings(model_config.is_encoder_decoder_model, "models") == kinds.ENCODER_DECODERS
    generating = _architectures(_strings(model_config.is_generation_model))
    assert generating == kinds.NOT_GENERATING
    indexed = _architectures(_strings(model_config.is_deepseek_dsa))
    assert indexed == kinds.INDEXED_ARCHITECTURES
    sparse = _architectures(_strings(model_config.is_deepseek_v4))
    sparse |= _architectures(_strings(model_config.is_minimax_sparse))
    assert sparse == kinds.SPARSE_ARCHITECTURES


def test_the_list_of_mla_architectures_is_sglangs() -> None:
    """Of each branch of the one `if` that sets `attention_arch`, those that set it to MLA."""
    shapes = model_config.ModelConfig._derive_model_shapes
    tree = ast.parse(textwrap.dedent(inspect.getsource(shapes)))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(
            "AttentionArch.MLA" in ast.unparse(n) for n in node.body
        ):
            found |= {
                inner.value
                for inner in ast.walk(node.test)
                if isinstance(inner, ast.Constant)
                and isinstance(inner.value, str)
                and inner.value[:1].isupper()
            }
    conditional = {"PixtralForConditionalGeneration", "DeepseekVL2ForCausalLM"}
    assert found - conditional == kinds.MLA_ARCHITECTURES
    assert conditional <= found


def test_the_recurrent_model_types_are_sglangs() -> None:
    classes = {
        name: value
        for name, value in vars(hybrid_arch).items()
        if inspect.isclass(value) and hasattr(value, "model_type")
    }
    types = {value.model_type for value in classes.values()} - {"granitemoehybrid", ""}
    assert len(types) > 10
    assert types <= kinds.RECURRENT_TYPES


def test_the_models_that_sglang_has_are_read_from_its_files() -> None:
    from sglang.srt.models.registry import (  # type: ignore[import-not-found, unused-ignore]
        ModelRegistry,
    )

    # Modules that do not import here (other hardware's) are in the files alone.
    assert set(ModelRegistry.models) <= known.installed().architectures


def test_the_model_types_that_are_known_are_read_from_files() -> None:
    from sglang.srt.utils.hf_transformers.common import (  # type: ignore[import-not-found, unused-ignore]
        _CONFIG_REGISTRY,
    )
    from transformers.models.auto.configuration_auto import (  # type: ignore[import-not-found, unused-ignore]
        CONFIG_MAPPING_NAMES,
    )

    types = known.installed().model_types
    assert set(CONFIG_MAPPING_NAMES) <= types
    assert set(_CONFIG_REGISTRY) - {None, ""} <= types


DRAFTS: list[dict[str, Any]] = [
    {},
    {"block_size": None},
    {"block_size": "8"},
    {"block_size": 8.7},
    {"block_size": 0},
    {"block_size": "many"},
    {"block_size": [8]},
    {"num_target_layers": -1},
    {"num_hidden_layers": 0},
    {"num_hidden_layers": "x"},
    {"dflash_config": {}},
    {"dflash_config": None},
    {"dflash_config": {"target_layer_ids": []}},
    {"dflash_config": {"target_layer_ids": 3}},
    {"dflash_config": {"target_layer_ids": ["1", 2.5]}},
    {"dflash_config": {"target_layer_ids": ["a"]}},
    {"dflash_config": {"block_size": 4, "num_target_layers": 9}},
    {"dflash_config": {"block_size": None}},
    {"dflash_config": {"mask_token": ""}},
    {"dflash_config": {"mask_token": 3}},
    {"dflash_config": {"mask_token_id": -1}},
    {"dflash_config": {"mask_token_id": True}},
    {"dflash_config": {"mask_token_id": 2.0}},
    {"dflash_config": {"mask_token_id": "2"}},
    {"target_layer_ids": [0], "dflash_config": {"mask_token_id": 2}},
]


@pytest.mark.parametrize("changes", DRAFTS, ids=str)
def test_a_drafters_fields_are_read_as_sglang_reads_them(changes: dict[str, Any]) -> None:
    config: SimpleNamespace = drafter_fields.as_object({**DRAFTER, **changes})
    try:
        wanted = parse_dflash_draft_config(draft_hf_config=config)
    except Exception:
        with pytest.raises(ValueError):
            drafter_fields.parse(config)
        return
    found = drafter_fields.parse(config)
    for name in ("num_target_layers", "block_size", "target_layer_ids", "mask_token_id"):
        assert getattr(found, name) == getattr(wanted, name), name


def test_an_allowed_hybrid_is_only_warned_of() -> None:
    assert ids(target_findings("m", models.HYBRID_GDN, True, "triton")) == ["HYB003"]
