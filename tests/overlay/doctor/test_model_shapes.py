"""Sizes against parallelism and context: what SGLang's layers assert when they are built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddtree_overlay.doctor.model_checks.configuration import context_length, text_config
from ddtree_overlay.doctor.model_checks.shapes import (
    check_shapes,
    head_findings,
    layer_findings,
)
from tests.overlay.doctor.model_files import DRAFTER, TARGET, ids, subject, write_model

MOE = {**TARGET, "num_experts": 16, "moe_intermediate_size": 768, "intermediate_size": 6144}
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def test_a_fitting_pair_has_no_findings(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    draft = write_model(tmp_path / "draft", DRAFTER)
    given = subject(
        model=str(target), draft_model=str(draft), algorithm="DDTREE", tp=8, context_length=512
    )
    assert ids(check_shapes(given)) == []


@pytest.mark.parametrize(
    ("width", "tp", "remedy"),
    [(1536, 8, "add --ep-size 2"), (768, 8, "add --ep-size 4"), (192, 8, "choose a smaller")],
)
def test_the_remedy_for_cut_blocks_is_one(width: int, tp: int, remedy: str) -> None:
    config = {**MOE, **FP8, "moe_intermediate_size": width, "num_experts": 128}
    (finding,) = layer_findings("model", config, tp, 1)
    assert finding.code == "SHP003" and finding.remedy.startswith(remedy)
    if remedy.startswith("add"):
        assert not list(layer_findings("model", config, tp, int(finding.remedy.split()[2])))


@pytest.mark.parametrize(
    ("heads", "kv", "tp", "fits"),
    [
        (64, 8, 8, True),
        (64, 8, 1, True),
        (32, 4, 8, True),  # each key-value head on two ranks
        (32, 2, 8, True),
        (40, 8, 8, True),
        (64, 8, 7, False),
        (40, 8, 6, False),
        (28, 4, 8, False),
        (48, 6, 8, False),  # more ranks than heads, and not a multiple
        (48, 12, 8, False),
        (48, 3, 6, True),
        (24, 3, 8, False),
    ],
)
@pytest.mark.parametrize("name", ["num_key_value_heads", "num_kv_heads", "multi_query_group_num"])
def test_heads(heads: int, kv: int, tp: int, fits: bool, name: str) -> None:
    found = list(head_findings("model", {"num_attention_heads": heads, name: kv}, tp))
    assert ids(found) == ([] if fits else ["SHP001"])
    assert all(f"{tp} GPUs" in finding.what for finding in found)


def test_the_remedy_names_a_size_that_fits() -> None:
    text = {"num_attention_heads": 40, "num_key_value_heads": 8}
    (finding,) = head_findings("model", text, 6)
    assert "--tp-size 4" in finding.remedy
    assert ids(head_findings("model", text, 4)) == []


@pytest.mark.parametrize(
    ("config", "tp", "ep", "codes"),
    [
        (TARGET, 8, 1, []),
        ({**TARGET, "intermediate_size": 129}, 8, 1, ["SHP002"]),
        (MOE, 8, 1, []),
        ({**MOE, "moe_intermediate_size": 100}, 8, 1, ["SHP002"]),
        ({**MOE, "num_experts": 4}, 8, 1, ["SHP002"]),
        ({**MOE, "num_experts": None, "num_local_experts": 4}, 8, 1, ["SHP002"]),
        (MOE | FP8, 8, 1, ["SHP003"]),  # 96 a rank
        (MOE | FP8, 4, 1, ["SHP003"]),
        (MOE | FP8, 2, 1, []),
        (MOE | FP8, 8, 4, []),
        (MOE | FP8, 8, 8, []),
        (MOE, 8, 3, ["SHP002"]),
        ({"text_config": MOE, **FP8}, 8, 1, ["SHP003"]),
        ({"num_hidden_layers": 2}, 8, 1, []),
    ],
)
def test_layers(config: dict[str, Any], tp: int, ep: int, codes: list[str]) -> None:
    assert ids(layer_findings("model", config, tp, ep)) == codes


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": 512, "max_sequence_length": 100}, 100),
        ({"seq_length": 300}, 300),
        ({}, 2048),
        ({"max_position_embeddings": 512, "rope_scaling": {"factor": 4.0}}, 2048),
        ({"max_position_embeddings": 512, "rope_parameters": {"factor": 2.5}}, 1280),
        (
            {
                "max_position_embeddings": 512,
                "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 128},
            },
            512,
        ),
        (
            {"max_position_embeddings": 512, "rope_scaling": {"factor": 8, "rope_type": "llama3"}},
            512,
        ),
        ({"max_position_embeddings": 512, "rope_scaling": {"factor": None}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": "x"}, 512),
    ],
)
def test_the_context_that_a_model_was_made_for(config: dict[str, Any], length: int) -> None:
    assert context_length(config) == length


@pytest.mark.parametrize(
    ("wanted", "draft_length", "algorithm", "environment", "codes"),
    [
        (None, 512, "DDTREE", {}, []),
        (512, 512, "DDTREE", {}, []),
        (513, 512, "DDTREE", {}, ["SHP004"]),
        (513, 512, None, {}, ["SHP004"]),
        (513, 512, None, {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}, []),
        (None, 256, "DDTREE", {}, ["SHP004"]),
        (None, 256, "DFLASH", {}, ["SHP004"]),
        (256, 256, "DDTREE", {}, []),
        (None, 256, None, {}, []),
    ],
)
def test_context(
    tmp_path: Path,
    wanted: int | None,
    draft_length: int,
    algorithm: str | None,
    environment: dict[str, str],
    codes: list[str],
) -> None:
    target = write_model(tmp_path / "target")
    draft = write_model(tmp_path / "draft", DRAFTER, max_position_embeddings=draft_length)
    given = subject(
        model=str(target),
        draft_model=str(draft),
        algorithm=algorithm,
        context_length=wanted,
        environment=environment,
    )
    assert ids(check_shapes(given)) == codes


@pytest.mark.parametrize(
    ("algorithm", "codes"),
    [("DDTREE", ["SHP005"]), ("DFLASH", ["SHP005"]), ("EAGLE3", []), (None, [])],
)
def test_pipeline(tmp_path: Path, algorithm: str | None, codes: list[str]) -> None:
    target = write_model(tmp_path / "target")
    assert ids(check_shapes(subject(model=str(target), pp=2, algorithm=algorithm))) == codes


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"hidden_size": None, "num_hidden_layers": None, "vocab_size": None}, ["SHP006"]),
        ({"num_hidden_layers": 0}, ["SHP006"]),
        ({"vocab_size": -1}, ["SHP006"]),
        ({"num_attention_heads": 0}, ["SHP006"]),
        ({"hidden_size": None}, []),
        ({"hidden_size": None, "d_model": 64, "vocab_size": None}, []),
    ],
)
def test_sizes_that_are_not_stated(
    tmp_path: Path, changes: dict[str, Any], codes: list[str]
) -> None:
    target = write_model(tmp_path / "target", **changes)
    assert ids(check_shapes(subject(model=str(target)))) == codes


@pytest.mark.parametrize(
    "nested",
    [
        {"text_config": TARGET},
        {"llm_config": TARGET, "text_config": {}},
        {"language_config": TARGET},
        {"thinker_config": {"text_config": TARGET}},
        {"thinker_config": TARGET},
    ],
)
def test_nested_configurations(tmp_path: Path, nested: dict[str, Any]) -> None:
    config = {"architectures": ["X"], "model_type": "x", "num_attention_heads": 3, **nested}
    assert text_config(config)["num_attention_heads"] == 16
    target = write_model(tmp_path / "target", config)
    assert ids(check_shapes(subject(model=str(target), tp=8))) == []
    assert ids(check_shapes(subject(model=str(target), tp=3))) == ["SHP001", "SHP002"]


def test_llavas_own_layout_is_flat() -> None:
    config = {"architectures": ["LlavaQwenForCausalLM"], "text_config": {}, "hidden_size": 8}
    assert text_config(config)["hidden_size"] == 8


def test_the_drafter_has_heads_of_its_own(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    draft = write_model(tmp_path / "draft", DRAFTER, num_attention_heads=12, num_key_value_heads=4)
    (finding,) = check_shapes(
        subject(model=str(target), draft_model=str(draft), algorithm="EAGLE3", tp=8)
    )
    assert finding.code == "SHP001" and "draft model" in finding.what


def test_attention_over_data_ranks_is_left_to_sglang(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", num_attention_heads=4, num_key_value_heads=4)
    assert ids(check_shapes(subject(model=str(target), tp=8))) == ["SHP001"]
    assert ids(check_shapes(subject(model=str(target), tp=8, dp=8))) == []
