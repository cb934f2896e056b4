"""Request groups that sample: many short samples of one prompt, and seeded ones."""

from __future__ import annotations

from functools import partial

from tests.e2e.client import JSON, at_once
from tests.e2e.session import Session

SAMPLES = 240
BATCH = 48
# The first token comes from the prefill: the tree speaks from the second on.
LENGTH = 4
LAWS: dict[str, JSON] = {
    "plain": {"temperature": 1.0},
    "hot": {"temperature": 1.4, "top_k": 40},
    "top-p": {"temperature": 1.0, "top_p": 0.7},
    "top-k": {"temperature": 0.8, "top_k": 5},
    "min-p": {"temperature": 1.0, "min_p": 0.15},
    "all": {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "min_p": 0.05},
}


def samples(session: Session) -> JSON:
    """For each law SAMPLES continuations of one prompt, `LENGTH` tokens each.

    The prompt goes as ids (of the greedy answer to another): SGLang then hands a batch to the
    scheduler as one, and the server's --random-seed alone decides what is drawn.
    """
    name = session.of_group("text")[10].name
    prompt = session.results["sequential"][name]["ids"][:24]
    found: JSON = {}
    for name, law in LAWS.items():
        params = {"max_new_tokens": LENGTH, "ignore_eos": True, **law}
        drawn: list[list[int]] = []
        for _ in range(SAMPLES // BATCH):
            answers = session.client.post(
                "/generate", {"input_ids": [prompt] * BATCH, "sampling_params": params}
            )
            drawn += [answer["output_ids"] for answer in answers]
        found[name] = drawn
    return found


def seeded(session: Session) -> JSON:
    """Samples with a seed of their own, eight at a time; needs --enable-deterministic-inference.

    Requests with and without top-p or top-k do not share a batch: SGLang draws from the sorted
    vocabulary where any request of a batch filters, and a seed then means another token.
    """
    found: JSON = {}
    prompts = session.of_group("text")[4:20]
    laws: tuple[list[JSON], list[JSON]] = (
        [{"temperature": 1.0}, {"temperature": 0.6}],
        [LAWS[name] for name in ("hot", "top-p", "top-k")],
    )
    for part, kinds in enumerate(laws):
        calls = {}
        for number, prompt in enumerate(prompts[8 * part : 8 * part + 8]):
            params = {"max_new_tokens": 40, "sampling_seed": 1000 + number}
            law = kinds[number % len(kinds)]
            calls[prompt.name] = partial(session.client.generate, prompt.text, params | law)
        found |= dict(zip(calls, at_once(list(calls.values())), strict=True))
    return found
