"""Server arguments that contradict DDTREE. Silence would mean one of the two is ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from ddtree_overlay.sglang.refusal import refusal
from ddtree_overlay.sglang.requests import unsupported_sampling


class Contradiction(NamedTuple):
    """`field` of the server arguments is refused where `clashes(value)`."""

    field: str
    clashes: Callable[[Any], bool]
    why: str
    remedy: str


def _set(value: Any) -> bool:
    return bool(value)


def _more_than_one(value: Any) -> bool:
    return value is not None and int(value) > 1


def _not_one(value: Any) -> bool:
    return value is not None and float(value) != 1.0


_CONTEXT_PARALLEL = "splits the context over ranks, and a tree mask is not split"
_KV_LAYOUT = "lays out KV in a way for which moving accepted nodes is not proven"
_TREE_ACCEPT = "changes what a draft token is accepted for, and a tree is walked by exact match"
_DSPARK = "belongs to DSPARK"

CONTRADICTIONS = (
    Contradiction(
        "disaggregation_mode",
        lambda value: value != "null",
        "splits prefill and decode, and the drafter's KV is not transferred",
        "remove it, or disaggregate with --speculative-algorithm EAGLE3",
    ),
    Contradiction(
        "enable_lora", _set, "changes the target per request, and the drafter not", "remove it"
    ),
    Contradiction(
        "lora_paths", _set, "changes the target per request, and the drafter not", "remove it"
    ),
    Contradiction(
        "enable_two_batch_overlap",
        _set,
        "splits a batch, and its tree mask is not split",
        "remove it",
    ),
    Contradiction("enable_pdmux", _set, "keeps several decode backends, one mask", "remove it"),
    Contradiction("dllm_algorithm", _set, "replaces autoregressive decoding", "remove it"),
    Contradiction("enable_hisparse", _set, "attends to a selection, without a mask", "remove it"),
    Contradiction("dcp_size", _more_than_one, _CONTEXT_PARALLEL, "use --tp-size"),
    Contradiction("attn_cp_size", _more_than_one, _CONTEXT_PARALLEL, "use --tp-size"),
    Contradiction("dwdp_size", _more_than_one, "is not proven with a drafter", "use --tp-size"),
    Contradiction("enable_prefill_cp", _set, _CONTEXT_PARALLEL, "remove it"),
    Contradiction("enable_unified_memory", _set, _KV_LAYOUT, "remove it"),
    Contradiction("enable_page_major_kv_layout", _set, _KV_LAYOUT, "remove it"),
    Contradiction(
        "kv_cache_dtype",
        lambda value: str(value).startswith(("nvfp4", "fp4", "mxfp8")),
        _KV_LAYOUT,
        "use auto, bf16, fp8_e4m3 or fp8_e5m2",
    ),
    Contradiction(
        "prefill_only_disable_kv_cache", _set, "keeps no KV, and a tree needs it", "remove it"
    ),
    Contradiction(
        "enable_streaming_session", _set, "keeps KV held ahead between requests", "remove it"
    ),
    Contradiction(
        "enable_return_hidden_states",
        _set,
        "returns hidden states, which DDTREE does not keep per emitted token",
        "remove it and --return-hidden-states-mode",
    ),
    Contradiction(
        "enable_return_routed_experts",
        _set,
        "returns routed experts by KV slot, and accepted nodes change slots",
        "remove it",
    ),
    Contradiction(
        "enable_return_indexer_topk",
        _set,
        "returns indexer choices by KV slot, and accepted nodes change slots",
        "remove it",
    ),
    Contradiction(
        "speculative_use_rejection_sampling",
        _set,
        "accepts by min(1, p/q), which is biased on a tree",
        "remove it: DDTREE samples the target at every visited node",
    ),
    Contradiction("speculative_accept_threshold_single", _not_one, _TREE_ACCEPT, "remove it"),
    Contradiction("speculative_accept_threshold_acc", _not_one, _TREE_ACCEPT, "remove it"),
    Contradiction("speculative_token_map", _set, "is a vocabulary of EAGLE drafters", "remove it"),
    Contradiction("enable_multi_layer_eagle", _set, "belongs to EAGLE", "remove it"),
    Contradiction("speculative_dspark_block_size", _set, _DSPARK, "remove it"),
    Contradiction("speculative_dspark_sps_table_path", _set, _DSPARK, "remove it"),
    Contradiction("speculative_dspark_confidence_sts_path", _set, _DSPARK, "remove it"),
    Contradiction(
        "speculative_dspark_align_verify_tokens_to_graph_tier", _set, _DSPARK, "remove it"
    ),
)


def check_server(server_args: Any) -> None:
    """Raises ValueError for the first contradiction."""
    for contradiction in CONTRADICTIONS:
        value = getattr(server_args, contradiction.field)
        if contradiction.clashes(value):
            raise refusal(contradiction.field, value, contradiction.why, contradiction.remedy)
    _check_preferred_sampling(server_args.preferred_sampling_params)
    _check_environment()


def check_adaptive(server_args: Any) -> None:
    """Apart, because SGLang switches the flag off with a warning before it asks the algorithm."""
    if server_args.speculative_adaptive:
        raise refusal(
            "speculative_adaptive",
            True,
            "changes EAGLE's number of steps as it runs, and a tree has one step",
            "remove it, and set --speculative-ddtree-budget",
        )


def _check_preferred_sampling(preferred: Any) -> None:
    if not preferred:
        return
    given = json.loads(preferred) if isinstance(preferred, str) else preferred
    found = unsupported_sampling(given)
    if found is not None:
        name, value, why = found
        raise refusal(
            "preferred_sampling_params",
            f"{name}={value}",
            f"sets a parameter that {why}, so that every request would be refused",
            f"remove {name} from it",
        )


def _check_environment() -> None:
    from sglang.srt.environ import envs

    simulated = envs.SGLANG_SIMULATE_ACC_LEN.get()
    if simulated > 0:
        raise refusal(
            "SGLANG_SIMULATE_ACC_LEN",
            simulated,
            "forces an accept length, which makes output wrong and DDTREE does not read",
            "unset it",
        )
