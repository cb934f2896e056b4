"""What both servers are asked. The tokens of each answer must not depend on speculation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ddtree_overlay.selftest.client import Answer, Client

T = TypeVar("T")

TOKENS = 48
WORKERS = 8
# For the tiny target, which knows the language reference of Python. In the greedy continuation of
# each no two tokens are close: see `min_gap` in models/models.json.
TEXTS: Mapping[str, str] = {
    "walk": "def walk(tree, visit):\n    ",
    "example": "For example, the expression",
    "class": "The class statement",
    "operator": "The operator and the result of its operands",
    "imported": "When a module is imported",
    "sequences": "Sequences are ordered, and",
    "following": "In the following example,",
    "attribute": "The value of the attribute",
    "lines": "with open(path) as lines:\n    ",
    "endless": "A loop that never ends",
    "while": "The while statement is used for",
    "definition": "A function definition",
}
CHATS: Mapping[str, str] = {
    "leave": "How do I leave a function early?",
    "dictionaries": "Tell me about dictionaries.",
}
STREAMED = ("walk", "sequences")
CONSTRAINED = ("class", "example")
SEEDED = ("walk", "imported", "lines", "while")
LAWS: tuple[dict[str, Any], ...] = ({"temperature": 1.0}, {"temperature": 0.6})

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}
REGEX = r"(yes|no), (the|a) [a-z]{2,9}( [a-z]{2,9}){1,3}\."

Calls = Mapping[str, Callable[[], Answer]]


def ask(client: Client, *, seeds: bool) -> dict[str, dict[str, Answer]]:
    """Every group's answers by name, in the order of asking.

    alone:     batch 1, an empty prefix cache: the first time that the server sees the prompts
    streamed:  batch 1, their prefixes cached
    together:  up to WORKERS at a time, their prefixes cached
    chat:      over the OpenAI endpoint
    grammar:   under a JSON schema and a regular expression, one batch with unconstrained requests
    sampled:   at a temperature; only where `seeds` mean anything are they comparable
    """
    greedy = {"temperature": 0, "max_new_tokens": TOKENS}
    plain: Calls = {name: partial(client.generate, text, greedy) for name, text in TEXTS.items()}
    streamed: Calls = {name: partial(client.stream, TEXTS[name], greedy) for name in STREAMED}
    chat: Calls = {name: partial(client.chat, question, TOKENS) for name, question in CHATS.items()}
    constraints = {
        "json": {"json_schema": json.dumps(SCHEMA)},
        "regex": {"regex": REGEX},
        "free": {},
    }
    grammar: Calls = {
        f"{kind}-{name}": partial(client.generate, TEXTS[name], greedy | constraint)
        for kind, constraint in constraints.items()
        for name in CONSTRAINED
    }
    # No top-p or top-k: SGLang draws from the sorted vocabulary where any request of a batch
    # filters, and a seed then means another token.
    sampled: Calls = {
        name: partial(
            client.generate,
            TEXTS[name],
            {"max_new_tokens": TOKENS, **LAWS[number % len(LAWS)]}
            | ({"sampling_seed": 1000 + number} if seeds else {}),
        )
        for number, name in enumerate(SEEDED)
    }
    return {
        "alone": {name: call() for name, call in plain.items()},
        "streamed": {name: call() for name, call in streamed.items()},
        "together": _at_once(plain),
        "chat": {name: call() for name, call in chat.items()},
        "grammar": _at_once(grammar),
        "sampled": _at_once(sampled),
    }


def _at_once(calls: Calls) -> dict[str, Answer]:
    return dict(zip(calls, at_once(list(calls.values())), strict=True))


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Results in order, WORKERS calls at a time. The first error is raised at once."""
    pool = ThreadPoolExecutor(WORKERS)
    try:
        return [future.result() for future in [pool.submit(call) for call in calls]]
    finally:
        # Without waiting: where this is interrupted, the servers are stopped next, and that ends
        # the requests that are left.
        pool.shutdown(wait=False, cancel_futures=True)
