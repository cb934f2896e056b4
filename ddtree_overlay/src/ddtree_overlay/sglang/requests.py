"""Which request parameters DDTREE applies exactly, and the refusal of those that it does not.

A verified node sees the target's logits after its own path and goes through SGLang's own sampler,
so whatever depends on the request alone, on the position or on one node's logits is exact. What
depends on the tokens emitted so far (penalties), returns something per emitted token
(log-probabilities, hidden states) or runs foreign code over the history is refused with its name,
never ignored.

A refusal reaches the client through `Req.set_finish_with_abort`: HTTP 400 with the message where
nothing is streamed, from the native and the OpenAI endpoints alike. Where the request streams, the
status line (200) is out before the scheduler answers: the native endpoint sends one chunk whose
`meta_info.finish_reason` is {"type": "abort", "status_code": 400, "message": ...} (its one token is
that of SGLang's stand-in prompt), the OpenAI endpoints one event {"error": {"message": ...,
"code": 400}}, then `[DONE]`.

`SAMPLING` and `REQUEST` name every field of SGLang's `SamplingParams` and
`TokenizedGenerateReqInput`, which is all that reaches a scheduler, `FRONT` those of
`GenerateReqInput` that stay in the tokenizer process. A test compares them with the classes, so
that a field of a later SGLang has to be judged before it is served. The OpenAI endpoints build a
`GenerateReqInput`: `logprobs` and `top_logprobs` are `return_logprob`, `logit_bias`, `seed`
(`sampling_seed`), `stop`, `min_tokens` (`min_new_tokens`) and `response_format` (`json_schema`,
`structural_tag`) keep their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ddtree_overlay.sglang.refusal import one_line

Verdict = Literal["exact", "refused", "irrelevant"]


class Rule(NamedTuple):
    """How a field is treated. A refused one is so where its value is not `neutral`."""

    verdict: Verdict
    why: str
    neutral: Any = None


def _exact(why: str) -> Rule:
    return Rule("exact", why)


def _irrelevant(why: str) -> Rule:
    return Rule("irrelevant", why)


_LENGTH = "checked on emitted tokens, which are cut where it ends"
_SAMPLER = "SGLang's sampler at every visited node"
_GRAMMAR = "a grammar mask per node"
_TEXT = "the detokenizer's"
_HISTORY = "depends on the tokens emitted so far, which differ from node to node"
_SLOT = "is kept by KV slot, and accepted nodes change slots"
_PER_OUTPUT = "is not kept per emitted token"
_PROMPT = "part of the prompt, which is prefilled as always"
_DISAGGREGATION = "disaggregation, refused at start"
_ROUTING = "routing and bookkeeping"
_ENCODER = "transport of multimodal input"

SAMPLING: Mapping[str, Rule] = {
    "max_new_tokens": _exact(_LENGTH),
    "stop": _exact(_LENGTH),
    "stop_token_ids": _exact(_LENGTH),
    "stop_regex": _exact(_LENGTH),
    "stop_strs": _exact(_LENGTH),
    "stop_regex_strs": _exact(_LENGTH),
    "stop_str_max_len": _exact(_LENGTH),
    "stop_regex_max_len": _exact(_LENGTH),
    "ignore_eos": _exact(_LENGTH),
    "no_stop_trim": _exact(_LENGTH),
    "temperature": _exact(_SAMPLER),
    "top_p": _exact(_SAMPLER),
    "top_k": _exact(_SAMPLER),
    "min_p": _exact(_SAMPLER),
    "sampling_seed": _exact(_SAMPLER + ", with the emitted token's position"),
    "logit_bias": _exact("added to every node's logits: it does not change along a path"),
    "frequency_penalty": Rule("refused", _HISTORY, 0.0),
    "presence_penalty": Rule("refused", _HISTORY, 0.0),
    "repetition_penalty": Rule("refused", _HISTORY, 1.0),
    "min_new_tokens": Rule("refused", _HISTORY, 0),
    "n": _exact("the tokenizer process sends n requests of one completion each"),
    "json_schema": _exact(_GRAMMAR),
    "regex": _exact(_GRAMMAR),
    "ebnf": _exact(_GRAMMAR),
    "structural_tag": _exact(_GRAMMAR),
    "skip_special_tokens": _irrelevant(_TEXT),
    "spaces_between_special_tokens": _irrelevant(_TEXT),
    "stream_interval": _irrelevant("when output is sent"),
    "custom_params": _exact("read by a grammar, or by a custom_logit_processor, which is refused"),
    "is_normalized": _irrelevant("internal"),
}

REQUEST: Mapping[str, Rule] = {
    "rid": _irrelevant(_ROUTING),
    "http_worker_ipc": _irrelevant(_ROUTING),
    "input_text": _exact(_PROMPT),
    "input_ids": _exact(_PROMPT),
    "input_embeds": _exact(_PROMPT),
    "positional_embed_overrides": _exact(_PROMPT),
    "token_type_ids": _exact(_PROMPT),
    "mm_inputs": _exact(_PROMPT),
    "session_id": _exact(_PROMPT),
    "session_params": _exact(_PROMPT),
    "extra_key": _exact("a part of the prefix cache's key"),
    "sampling_params": _exact("see SAMPLING"),
    "require_reasoning": _exact(_GRAMMAR),
    "return_logprob": Rule("refused", _PER_OUTPUT, False),
    "logprob_start_len": _irrelevant("read with return_logprob"),
    "top_logprobs_num": _irrelevant("read with return_logprob"),
    "token_ids_logprob": _irrelevant("read with return_logprob"),
    "return_flat_raw_top_logprobs": _irrelevant("read with return_logprob"),
    "multi_item_delimiter_indices": _irrelevant("scoring, which needs return_logprob"),
    "return_sampling_mask": Rule("refused", _PER_OUTPUT, False),
    "return_hidden_states": Rule("refused", _PER_OUTPUT, False),
    "return_routed_experts": Rule("refused", _SLOT, False),
    "routed_experts_start_len": _irrelevant("read with return_routed_experts"),
    "return_indexer_topk": Rule("refused", _SLOT, False),
    "lora_id": Rule("refused", "changes the target and not the drafter"),
    "custom_logit_processor": Rule("refused", "runs over the history, " + _HISTORY),
    "stream": _irrelevant("when output is sent"),
    "bootstrap_host": _irrelevant(_DISAGGREGATION),
    "bootstrap_port": _irrelevant(_DISAGGREGATION),
    "bootstrap_room": _irrelevant(_DISAGGREGATION),
    "bootstrap_pair_key": _irrelevant(_DISAGGREGATION),
    "decode_tp_size": _irrelevant(_DISAGGREGATION),
    "disagg_prefill_dp_rank": _irrelevant(_DISAGGREGATION),
    "routed_dp_rank": _irrelevant(_ROUTING),
    "routing_key": _irrelevant(_ROUTING),
    "priority": _irrelevant(_ROUTING),
    "no_logs": _irrelevant(_ROUTING),
    "time_stats": _irrelevant(_ROUTING),
    "return_bytes": _irrelevant("image generation"),
    "return_entropy": _irrelevant("no scheduler of 0.5.17 reads it"),
    "need_wait_for_mm_inputs": _irrelevant(_ENCODER),
    "num_items_assigned": _irrelevant(_ENCODER),
    "mm_data_mooncake": _irrelevant(_ENCODER),
    "encoder_urls": _irrelevant(_ENCODER),
}

FRONT: Mapping[str, Rule] = {
    "text": _exact("input_text"),
    "image_data": _exact("mm_inputs"),
    "video_data": _exact("mm_inputs"),
    "audio_data": _exact("mm_inputs"),
    "mm_hashes": _exact("mm_inputs"),
    "use_audio_in_video": _exact("mm_inputs"),
    "modalities": _exact("mm_inputs"),
    "max_dynamic_patch": _exact("mm_inputs"),
    "min_dynamic_patch": _exact("mm_inputs"),
    "image_max_dynamic_patch": _exact("mm_inputs"),
    "video_max_dynamic_patch": _exact("mm_inputs"),
    "images_config": _exact("mm_inputs"),
    "max_thinking_tokens": _exact("custom_params, " + _GRAMMAR),
    "lora_path": Rule("refused", "becomes lora_id"),
    "return_text_in_logprobs": _irrelevant("read with return_logprob"),
    "return_flat_raw_top_logprobs_b64": _irrelevant("read with return_logprob"),
    "return_prompt_token_ids": _irrelevant(_TEXT),
    "log_metrics": _irrelevant(_ROUTING),
    "conversation_id": _irrelevant(_ROUTING),
    "background": _irrelevant(_ROUTING),
    "custom_labels": _irrelevant(_ROUTING),
    "external_trace_header": _irrelevant(_ROUTING),
    "received_time": _irrelevant(_ROUTING),
}

_ALSO_CALLED = {
    "return_logprob": " (logprobs, top_logprobs)",
    "lora_id": " (lora_path, model:adapter)",
    "min_new_tokens": " (min_tokens)",
}


def unsupported_sampling(params: Mapping[str, Any]) -> tuple[str, Any, str] | None:
    """Name, value and reason of the first refused sampling parameter in `params`, None if all are
    applied exactly. A parameter that is absent or None takes its default, which is neutral."""
    return _first_refused(SAMPLING, params.get)


def refuse_request(req: Any) -> str | None:
    """Why DDTREE refuses this request, in one line, or None.

    A request that is refused still runs: SGLang prefills one token in its place to end it. What it
    asked for is therefore also taken back, or it would cost every other request (the first
    repetition penalty of a server is a minute of compilation).

    Args:
        req: SGLang's `Req` as `Scheduler.handle_generate_request` made it, before it is queued.
    """
    found = _first_refused(REQUEST, lambda name: getattr(req, name, None)) or _first_refused(
        SAMPLING, lambda name: getattr(req.sampling_params, name, None)
    )
    if found is None:
        return None
    _take_back(REQUEST, req)
    _take_back(SAMPLING, req.sampling_params)
    name, value, why = found
    return (
        f"DDTREE speculative decoding does not support {name}{_ALSO_CALLED.get(name, '')} "
        f"(got {one_line(repr(value), 60)}), which {why}: remove it from the request, or use a "
        "server without --speculative-algorithm DDTREE."
    )


def _take_back(rules: Mapping[str, Rule], holder: Any) -> None:
    for name, rule in rules.items():
        if rule.verdict == "refused" and hasattr(holder, name):
            setattr(holder, name, rule.neutral)


def _first_refused(rules: Mapping[str, Rule], value_of: Any) -> tuple[str, Any, str] | None:
    for name, rule in rules.items():
        value = value_of(name)
        if rule.verdict == "refused" and value is not None and value != rule.neutral:
            return name, value, rule.why
    return None
