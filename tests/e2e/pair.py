"""The same prompts to a plain server and to a DDTREE server of one device, compared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.client import JSON, Client, at_once
from tests.e2e.configurations import CONFIGURATIONS
from tests.e2e.models.corpus import load_prompts
from tests.e2e.server import serving

PROMPTS, TOKENS = 12, 40


def compare(
    models: Path,
    work: Path,
    *,
    device: Sequence[str],
    dtype: str,
    arguments: Sequence[str],
    environment: dict[str, str],
    port: int,
) -> JSON:
    """Greedy tokens at batch 1 and 8 from both servers, which run beside each other.

    "gaps": for each answer that differs, how far apart (in log-probability) the plain server finds
    the two tokens at the first difference: 0 is a tie. "accept": tokens per round and request of
    DDTREE. "off_spine": its accepted siblings. "graph": decode log lines with a CUDA graph.
    """
    plain, tree = (
        replace(CONFIGURATIONS[name], device=device, dtype=dtype, arguments=arguments)
        for name in ("plain", "ddtree16")
    )
    prompts = [p for p in load_prompts() if p.group != "chat"][: 3 * PROMPTS : 3]
    with ExitStack() as stack:
        clients = [
            Client(
                stack.enter_context(
                    serving(
                        one.argv(models),
                        port=port + number,
                        log=work / f"pair-{number}.log",
                        environment=environment,
                    )
                )
            )
            for number, one in enumerate((plain, tree))
        ]
        answers = []
        for client in clients:
            calls = [partial(client.generate, p.text, {"max_new_tokens": TOKENS}) for p in prompts]
            answers.append([call() for call in calls] + at_once(calls))
        texts = [p.text for p in prompts] * 2
        gaps = [
            gap(clients[0], text, one["ids"], other["ids"])
            for text, one, other in zip(texts, *answers, strict=True)
            if one["ids"] != other["ids"]
        ]
        metrics = clients[1].metrics("sglang:ddtree_off_spine")
    rounds = sum(answer["spec_verify_ct"] for answer in answers[1])
    log = (work / "pair-1.log").read_text("utf-8", "replace")
    return {
        "answers": len(texts),
        "gaps": gaps,
        "accept": sum(answer["completion_tokens"] - 1 for answer in answers[1]) / rounds,
        "off_spine": sum(metrics.values()),
        "graph": log.count("cuda graph: True"),
    }


def gap(client: Client, text: str, expected: list[int], found: list[int]) -> float:
    """Difference of the two tokens' log-probabilities where the answers part; infinite where one
    answer only is shorter."""
    same = next(
        (i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), None
    )
    if same is None:
        return float("inf")
    body: dict[str, Any] = {
        "text": text,
        "sampling_params": {"temperature": 0, "max_new_tokens": same + 1},
        "return_logprob": True,
        "token_ids_logprob": [expected[same], found[same]],
    }
    meta = client.post("/generate", body)["meta_info"]
    one, other = (entry[0] for entry in meta["output_token_ids_logprobs"][same])
    return abs(float(one) - float(other))
