"""Request parameters: refused ones by name, and no field of SGLang's classes left unjudged."""

from __future__ import annotations

import dataclasses
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_overlay.sglang.requests import (
    FRONT,
    REQUEST,
    SAMPLING,
    refuse_request,
    unsupported_sampling,
)

REFUSED_SAMPLING = {
    "frequency_penalty": (0.0, 0.5),
    "presence_penalty": (0.0, -0.5),
    "repetition_penalty": (1.0, 1.05),
    "min_new_tokens": (0, 1),
}
REFUSED_REQUEST: dict[str, tuple[Any, Any]] = {
    "return_logprob": (False, True),
    "return_sampling_mask": (False, True),
    "return_hidden_states": (False, True),
    "return_routed_experts": (False, True),
    "return_indexer_topk": (False, True),
    "lora_id": (None, "adapter"),
    "custom_logit_processor": (None, "{}"),
}


def request(**changes: Any) -> SimpleNamespace:
    """A request as the scheduler makes it, with every refused field at its default."""
    sampling = {name: values[0] for name, values in REFUSED_SAMPLING.items()}
    fields = {name: values[0] for name, values in REFUSED_REQUEST.items()}
    for name, value in changes.items():
        (fields if name in fields else sampling)[name] = value
    return SimpleNamespace(**fields, sampling_params=SimpleNamespace(**sampling))


def test_the_tests_know_every_refused_field() -> None:
    assert {n for n, rule in SAMPLING.items() if rule.verdict == "refused"} == set(REFUSED_SAMPLING)
    assert {n for n, rule in REQUEST.items() if rule.verdict == "refused"} == set(REFUSED_REQUEST)


@pytest.mark.parametrize("name", [*REFUSED_SAMPLING, *REFUSED_REQUEST])
def test_a_parameter_that_is_not_applied_exactly_is_refused_by_name(name: str) -> None:
    neutral, value = {**REFUSED_SAMPLING, **REFUSED_REQUEST}[name]
    assert refuse_request(request(**{name: neutral})) is None
    said = refuse_request(request(**{name: value}))
    assert said is not None and "\n" not in said
    assert f"does not support {name}" in said and f"(got {value!r})" in said
    assert "remove it from the request" in said


def test_a_refused_request_is_left_with_nothing_that_was_refused() -> None:
    """SGLang runs one token of it all the same, beside the requests of others."""
    wanted = {**REFUSED_SAMPLING, **REFUSED_REQUEST}
    refused = request(**{name: value for name, (_, value) in wanted.items()})
    assert refuse_request(refused) is not None
    assert refuse_request(refused) is None


def test_what_the_client_called_it_is_named_too() -> None:
    assert "(logprobs, top_logprobs)" in str(refuse_request(request(return_logprob=True)))
    assert "(min_tokens)" in str(refuse_request(request(min_new_tokens=3)))


def test_hidden_states_are_refused_in_every_mode() -> None:
    for mode in (True, "full", "last", "last_prompt"):
        assert refuse_request(request(return_hidden_states=mode)) is not None


def test_a_long_value_is_cut() -> None:
    said = refuse_request(request(custom_logit_processor="x" * 10_000))
    assert said is not None and len(said) < 600


@pytest.mark.parametrize(
    "exact",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "sampling_seed": 3},
        {"logit_bias": {"5": 1.0}, "stop_strs": ["x"], "stop_token_ids": {3}, "ignore_eos": True},
        {"json_schema": "{}", "max_new_tokens": 3, "n": 4},
    ],
)
def test_what_is_exact_is_let_through(exact: dict[str, Any]) -> None:
    assert refuse_request(request(**exact)) is None
    assert unsupported_sampling(exact) is None
    assert all(SAMPLING[name].verdict == "exact" for name in exact)


def test_sampling_parameters_of_a_file_are_judged_alike() -> None:
    assert unsupported_sampling({}) is None
    assert unsupported_sampling({"repetition_penalty": None, "temperature": 0.6}) is None
    found = unsupported_sampling({"temperature": 0.6, "repetition_penalty": 1.05})
    assert found is not None and found[:2] == ("repetition_penalty", 1.05)


def test_every_rule_says_why() -> None:
    for rules in (SAMPLING, REQUEST, FRONT):
        assert all(rule.why for rule in rules.values())


def _fields(struct: Any) -> set[str]:
    return set(struct.__struct_fields__)


@pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None,
    reason="SGLang is not installed here; the image has it",
)
class TestAgainstSGLang:
    def test_every_sampling_parameter_is_judged(self) -> None:
        from sglang.srt.sampling.sampling_params import SamplingParams

        assert _fields(SamplingParams) == set(SAMPLING)

    def test_the_neutral_values_are_the_defaults(self) -> None:
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams()
        for name, rule in SAMPLING.items():
            if rule.verdict == "refused":
                assert getattr(params, name) == rule.neutral, name

    def test_everything_that_reaches_a_scheduler_is_judged(self) -> None:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

        assert _fields(TokenizedGenerateReqInput) == set(REQUEST)

    def test_everything_that_a_client_can_send_is_judged(self) -> None:
        from sglang.srt.managers.io_struct import GenerateReqInput

        names = {field.name for field in dataclasses.fields(GenerateReqInput)}
        assert names - set(REQUEST) == set(FRONT)

    def test_a_request_of_sglang_has_the_attributes_that_are_read(self) -> None:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        def made(sampling: Any, **fields: Any) -> Any:
            return Req("1", "", [1, 2], sampling, vocab_size=256, **fields)

        assert refuse_request(made(SamplingParams(min_p=0.1, top_p=0.9))) is None
        for name, (_, value) in REFUSED_SAMPLING.items():
            refused = made(SamplingParams(**{name: value}))
            assert name in str(refuse_request(refused)), name
            assert refuse_request(refused) is None, name
        for name, (_, value) in REFUSED_REQUEST.items():
            assert name in str(refuse_request(made(SamplingParams(), **{name: value}))), name
