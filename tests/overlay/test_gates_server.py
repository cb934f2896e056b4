"""Server arguments that DDTREE refuses, each by its flag's name.

Runs where torch, the patched SGLang and the overlay are: inside the image."""

from __future__ import annotations

import copy
import importlib.util
import json
from typing import Any

import pytest

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

from sglang.srt.server_args import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    ServerArgs,
)

from ddtree_overlay.sglang import server_gate  # noqa: E402
from tests.overlay import gate_start  # noqa: E402
from tests.overlay.gate_start import Start, refused, well_formed  # noqa: E402

start = gate_start.start


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--disaggregation-mode", "decode"), "--disaggregation-mode (got decode)"),
        (("--enable-lora", "--max-lora-rank", "8"), "--enable-lora (got True)"),
        (("--lora-paths", "a=b"), "--lora-paths"),
        (("--speculative-adaptive",), "--speculative-adaptive (got True)"),
        (("--speculative-use-rejection-sampling",), "--speculative-use-rejection-sampling"),
        (
            ("--speculative-accept-threshold-single", "0.5"),
            "--speculative-accept-threshold-single (got 0.5)",
        ),
        (("--speculative-accept-threshold-acc", "0.5"), "--speculative-accept-threshold-acc"),
        (("--speculative-token-map", "x"), "--speculative-token-map"),
        (("--enable-return-hidden-states",), "--enable-return-hidden-states"),
        (("--return-hidden-states-mode", "last"), "--enable-return-hidden-states"),
        (("--enable-return-routed-experts",), "--enable-return-routed-experts"),
        (("--kv-cache-dtype", "fp4_e2m1"), "--kv-cache-dtype"),
        (("--speculative-dspark-block-size", "4"), "--speculative-dspark-block-size"),
        (
            ("--preferred-sampling-params", json.dumps({"presence_penalty": 0.5})),
            "presence_penalty=0.5",
        ),
    ],
)
def test_a_contradicting_argument_is_refused(
    start: Start, flags: tuple[str, ...], names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # fp4 is refused by SGLang itself on a machine without CUDA.
    monkeypatch.setattr(ServerArgs, "_handle_kv4_compatibility", lambda _: None)
    assert names in refused(start, *flags)


CLASHING: dict[str, tuple[Any, ...]] = {
    "disaggregation_mode": ("prefill", "decode"),
    "enable_lora": (True,),
    "lora_paths": (["a=b"],),
    "enable_two_batch_overlap": (True,),
    "enable_pdmux": (True,),
    "dllm_algorithm": ("LowConfidence",),
    "enable_hisparse": (True,),
    "dcp_size": (2,),
    "attn_cp_size": (2,),
    "dwdp_size": (2,),
    "enable_prefill_cp": (True,),
    "enable_unified_memory": (True,),
    "enable_page_major_kv_layout": (True,),
    "kv_cache_dtype": ("mxfp8", "nvfp4", "fp4_mx_block16", "fp4_e2m1"),
    "prefill_only_disable_kv_cache": (True,),
    "enable_streaming_session": (True,),
    "enable_return_hidden_states": (True,),
    "enable_return_routed_experts": (True,),
    "enable_return_indexer_topk": (True,),
    "speculative_use_rejection_sampling": (True,),
    "speculative_accept_threshold_single": (0.5,),
    "speculative_accept_threshold_acc": (0.5,),
    "speculative_token_map": ("map.pt",),
    "enable_multi_layer_eagle": (True,),
    "speculative_dspark_block_size": (4,),
    "speculative_dspark_sps_table_path": ("table.json",),
    "speculative_dspark_confidence_sts_path": ("table.json",),
    "speculative_dspark_align_verify_tokens_to_graph_tier": (True,),
}
"""What every row of the table refuses; a row that is not here fails the test after this."""


def test_every_contradiction_has_a_clashing_value_here() -> None:
    rows = [row.field for row in server_gate.CONTRADICTIONS]
    assert len(rows) == len(set(rows))
    assert set(rows) == set(CLASHING)


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in CLASHING.items() for value in values]
)
def test_every_contradiction_is_refused_by_its_flag(start: Start, field: str, value: Any) -> None:
    resolved = copy.copy(start())
    server_gate.check_server(resolved)
    # Past the record's lock: for some flags SGLang's own validation answers before ours.
    object.__setattr__(resolved, field, value)
    with pytest.raises(ValueError, match="DDTREE") as caught:
        server_gate.check_server(resolved)
    flag = "--" + field.replace("_", "-")
    assert well_formed(caught.value).startswith(f"DDTREE: {flag} (got {value}) ")


@pytest.mark.parametrize("dtype", ["auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"])
def test_kv_that_a_node_is_moved_in_whole_is_let_through(start: Start, dtype: str) -> None:
    resolved = copy.copy(start())
    object.__setattr__(resolved, "kv_cache_dtype", dtype)
    server_gate.check_server(resolved)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--enable-dp-attention", "--tp-size", "2", "--dp-size", "2"),
            "--enable-dp-attention (got True)",
        ),
        (("--pp-size", "2"), "--pp-size 1 only (got 2)"),
    ],
    ids=["dp attention", "pipeline"],
)
def test_a_layout_over_ranks_that_is_not_tensor_parallel_is_refused(
    start: Start, flags: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ValueError, match="DDTREE") as caught:
        start(*flags)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_every_contradiction_is_a_server_argument_whose_default_is_accepted(start: Start) -> None:
    args = start("--preferred-sampling-params", json.dumps({"min_p": 0.1, "top_k": 5}))
    for contradiction in server_gate.CONTRADICTIONS:
        value = getattr(args, contradiction.field)
        assert not contradiction.clashes(value), contradiction.field


def test_a_simulated_accept_length_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "4")
    assert "SGLANG_SIMULATE_ACC_LEN (got 4.0)" in refused(start)
