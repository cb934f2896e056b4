"""A run of accepted tokens ends its request where the same tokens, one at a time, would."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ddtree_overlay.sglang.finish import update_finish_state

EOS, STOP = 0, 1


class Request:
    """What of SGLang's `Req` is used, with its order of checks: of a whole run, length first."""

    def __init__(self, output_ids: list[int], limit: int, ends_grammar: int | None = None) -> None:
        self.output_ids = output_ids
        self.limit = limit
        self.finished_len: int | None = None
        self.reason = ""
        self.to_finish: str | None = None
        self.grammar: Any = None if ends_grammar is None else Grammar(ends_grammar)

    def finished(self) -> bool:
        return bool(self.reason)

    def update_finish_state(self, run_length: int = 1) -> None:
        if self.finished():
            return
        run = self.output_ids[-run_length:]
        if self.to_finish:
            self.reason = self.to_finish
        elif len(self.output_ids) >= self.limit:
            self.reason, self.finished_len = "length", self.limit
        elif STOP in run:  # a stop string: upstream looks for it before the stop tokens
            self.reason = "string"
            self.finished_len = len(self.output_ids) - run_length + run.index(STOP) + 1
        elif EOS in run:
            self.reason = "eos"
            self.finished_len = len(self.output_ids) - run_length + run.index(EOS) + 1
        elif self.grammar is not None and self.grammar.is_terminated():
            self.reason = "grammar"

    def answer(self) -> tuple[list[int], str]:
        return self.output_ids[: self.finished_len], self.reason


class Grammar:
    """Already advanced over the run, as SGLang does before it looks at the finish state."""

    def __init__(self, terminated: int) -> None:
        self.terminated = terminated

    def is_terminated(self) -> bool:
        return bool(self.terminated)


def one_by_one(before: list[int], run: list[int], limit: int) -> tuple[list[int], str]:
    request = Request(list(before), limit)
    for token in run:
        request.output_ids.append(token)
        request.update_finish_state()
        if request.finished():
            break
    return request.answer()


@pytest.mark.parametrize("run", [*itertools.product([EOS, STOP, 7], repeat=4)])
@pytest.mark.parametrize("limit", [4, 5, 6, 7, 8, 20])
def test_every_run_ends_as_its_tokens_one_by_one(run: tuple[int, ...], limit: int) -> None:
    before = [5, 5, 5]
    request = Request([*before, *run], limit)
    update_finish_state(request, len(run))
    assert request.answer() == one_by_one(before, list(run), limit)
    assert request.output_ids == [*before, *run], "the KV cache has all of them"


def test_a_whole_run_at_once_would_not() -> None:
    """Else the test above could not fail."""
    request = Request([5, 5, 5, EOS, 7], limit=5)
    request.update_finish_state(2)
    assert request.answer() != one_by_one([5, 5, 5], [EOS, 7], 5)


def test_a_grammar_that_ended_ends_the_request_at_the_runs_last_token() -> None:
    request = Request([7, 7, 7], limit=20, ends_grammar=1)
    grammar = request.grammar
    update_finish_state(request, 3)
    assert request.answer() == ([7, 7, 7], "grammar")
    assert request.grammar is grammar


def test_a_grammar_is_kept_where_a_token_ends_the_request() -> None:
    request = Request([7, EOS, 7], limit=20, ends_grammar=1)
    grammar = request.grammar
    update_finish_state(request, 3)
    assert request.answer() == ([7, EOS], "eos")
    assert request.grammar is grammar


def test_a_request_to_be_aborted_is_aborted() -> None:
    request = Request([7, EOS, 7], limit=20)
    request.to_finish = "abort"
    update_finish_state(request, 3)
    assert request.reason == "abort"


@pytest.mark.parametrize("run", [[], [7]])
def test_nothing_and_a_single_token_are_upstreams(run: list[int]) -> None:
    request = Request([5, *run], limit=20)
    update_finish_state(request, len(run))
    assert not request.finished() and request.output_ids == [5, *run]
