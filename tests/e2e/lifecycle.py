"""Request groups in which batches change, requests are aborted, and room runs out."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from tests.e2e.client import JSON, at_once, request
from tests.e2e.session import NEW_TOKENS, Session, by_name

ABORTED_TOKENS = 250


def staggered(session: Session) -> JSON:
    """Sixteen requests that arrive one after another and end at different lengths, so that the
    batch changes from round to round."""
    prompts = session.prompts[5:37:2]

    def late(number: int) -> JSON:
        time.sleep(0.11 * number)
        length = 5 + 13 * number % (NEW_TOKENS - 4)
        return session.client.generate(prompts[number].text, {"max_new_tokens": length})

    calls = [partial(late, number) for number in range(len(prompts))]
    return by_name(prompts, at_once(calls, workers=len(prompts)))


def aborts(session: Session) -> JSON:
    """One request whose client hangs up, one ended by /abort_request, both in mid-flight among six
    others; then eight more. Returns the answers of those that were not aborted."""
    prompts = session.prompts[8:22]
    long = {"max_new_tokens": ABORTED_TOKENS, "ignore_eos": True}
    seen: dict[str, Any] = {"disconnected_after": 0, "aborted": None}

    def hang_up() -> None:
        for event in session.client.events("/generate", request("The module that", long)):
            seen["disconnected_after"] = len(event["output_ids"])
            if seen["disconnected_after"] >= 10:
                return

    def be_aborted() -> None:
        body = request("A class is", long) | {"rid": "to-be-aborted"}
        sent = False
        for event in session.client.events("/generate", body):
            if not sent and len(event["output_ids"]) >= 10:
                sent = True
                session.client.call("POST", "/abort_request", {"rid": "to-be-aborted"})
            seen["aborted"] = event["meta_info"]["finish_reason"]
            seen["aborted_after"] = len(event["output_ids"])

    threads = [threading.Thread(target=body) for body in (hang_up, be_aborted)]
    for thread in threads:
        thread.start()
    params = {"max_new_tokens": NEW_TOKENS}
    calls = [partial(session.client.generate, p.text, params) for p in prompts]
    answers = at_once(calls[:6], 6)
    for thread in threads:
        thread.join(120)
    answers += at_once(calls[6:])
    return {"answers": by_name(prompts, answers), **seen}


def context(session: Session) -> JSON:
    """Requests that run into the end of the context, alone and together, and one beyond it.

    SGLang takes no prompt that reaches its last six tokens. DFLASH is not asked: in 0.5.17 it
    reserves KV slots beyond the request's row of `req_to_token` there, which on a GPU overwrites
    the neighbouring row and on a CPU ends the server.
    """
    ids = [token for answer in session.results["sequential"].values() for token in answer["ids"]]
    calls = []
    lefts = (7, 8, 9, 16, 17, 18, 24, 40)
    for number, left in enumerate(lefts):
        prompt = ids[number * 7 : number * 7 + session.context - left]
        params = {"max_new_tokens": left, "ignore_eos": True}
        calls.append(partial(session.client.generate, prompt, params))
    alone = calls[5]()
    answers = dict(zip(map(str, lefts), at_once(calls), strict=True))
    status, text = session.client.call(
        "POST",
        "/generate",
        request(ids[: session.context - 8], {"max_new_tokens": 9}),
    )
    return {"together": answers, "alone": alone, "beyond": {"status": status, "text": text[:300]}}


def pressure(session: Session) -> JSON:
    """Twelve requests at once with far more tokens than the KV pool holds."""
    prompts = session.of_group("text")[4:16]
    params = {"max_new_tokens": 2 * NEW_TOKENS, "ignore_eos": True}
    calls = [partial(session.client.generate, p.text, params) for p in prompts]
    return by_name(prompts, at_once(calls, workers=len(calls)))


def few(session: Session) -> JSON:
    """Three short requests, one alone and then two at once, for a slow server."""
    prompts = session.of_group("text")[3:6]
    calls = [partial(session.client.generate, p.text, {"max_new_tokens": 10}) for p in prompts]
    return by_name(prompts, [calls[0](), *at_once(calls[1:])])
