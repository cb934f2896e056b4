"""Greedy request groups: every prompt at batch 1 and batch 8, streamed and not, and how it ends."""

from __future__ import annotations

from functools import partial

from tests.e2e.client import JSON, at_once
from tests.e2e.session import NEW_TOKENS, Session, by_name

PARAMS: JSON = {"max_new_tokens": NEW_TOKENS}
# Around a block of 16 and a tree of 16, so that a round is cut at its start, middle and end.
CUTS = (1, 2, 3, 7, 16, 17, 18, 33)


def sequential(session: Session) -> JSON:
    """Batch 1, not streamed, from an empty prefix cache."""
    session.client.flush()
    answers = [session.client.generate(p.text, PARAMS) for p in session.prompts]
    return by_name(session.prompts, answers)


def sequential_streamed(session: Session) -> JSON:
    """Batch 1, streamed, every prompt in the prefix cache."""
    answers = [session.client.stream(p.text, PARAMS) for p in session.prompts]
    return by_name(session.prompts, answers)


def concurrent(session: Session) -> JSON:
    """Batch 8, not streamed, from an empty prefix cache."""
    session.client.flush()
    calls = [partial(session.client.generate, p.text, PARAMS) for p in session.prompts]
    return by_name(session.prompts, at_once(calls))


def concurrent_streamed(session: Session) -> JSON:
    """Batch 8, streamed, every prompt in the prefix cache."""
    calls = [partial(session.client.stream, p.text, PARAMS) for p in session.prompts]
    return by_name(session.prompts, at_once(calls))


def edges(session: Session) -> JSON:
    """Requests whose stop token and length lie within one round, eight at a time.

    The answer ends at whichever comes first, as without speculation. (Upstream's speculative
    algorithms look at the length of a whole run first: they are not asked.)
    """
    known = session.results["sequential"]
    calls = {}
    ending = [
        p for p in session.of_group("chat") if known[p.name]["finish_reason"]["type"] == "stop"
    ]
    texts = [p for p in session.of_group("text") if len(known[p.name]["ids"]) == NEW_TOKENS][:6]
    for prompt in [*ending, *texts]:
        ids = known[prompt.name]["ids"]
        stop: JSON = {} if prompt in ending else {"stop_token_ids": [ids[len(ids) // 2]]}
        last = len(ids) if prompt in ending else ids.index(ids[len(ids) // 2]) + 1
        for spare in (0, 1, 2, 5, 11):
            params = {"max_new_tokens": last + spare, **stop}
            calls[f"{prompt.name}+{spare}"] = partial(session.client.generate, prompt.text, params)
    return dict(zip(calls, at_once(list(calls.values())), strict=True))


def endings(session: Session) -> JSON:
    """Requests that end in each way, eight at a time: by a stop token, a stop string, a stop regex,
    the length, the end token, and not by it where it is ignored.

    What stops a request is taken from the continuation that this server gave before (`sequential`).
    """
    known = session.results["sequential"]
    calls = {}
    texts = [p for p in session.of_group("text") if len(known[p.name]["ids"]) == NEW_TOKENS][:8]
    for number, prompt in enumerate(texts):
        ids, text = known[prompt.name]["ids"], known[prompt.name]["text"]
        cut = len(text) // 2
        for name, params in (
            (
                "stop-token",
                {"max_new_tokens": NEW_TOKENS, "stop_token_ids": [ids[20 + number]]},
            ),
            ("stop-string", {"max_new_tokens": NEW_TOKENS, "stop": [text[cut : cut + 6]]}),
            ("stop-regex", {"max_new_tokens": NEW_TOKENS, "stop_regex": "[aeiou]n[a-z]* [st]"}),
            ("length", {"max_new_tokens": CUTS[number]}),
        ):
            calls[f"{name}/{prompt.name}"] = partial(session.client.generate, prompt.text, params)
    for prompt in session.of_group("chat"):
        for name, params in (
            ("eos", {"max_new_tokens": 2 * NEW_TOKENS}),
            ("ignore-eos", {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}),
        ):
            calls[f"{name}/{prompt.name}"] = partial(session.client.generate, prompt.text, params)
    return dict(zip(calls, at_once(list(calls.values())), strict=True))
