"""Request groups over the OpenAI endpoints, with grammars and tools, and what DDTREE refuses."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.e2e.client import JSON, Client, at_once
from tests.e2e.models.corpus import Prompt
from tests.e2e.session import Session

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "long-tag"]}, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
TOOL: JSON = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"enum": ["draft", "tree"]},
                "exact": {"type": "boolean"},
            },
            "required": ["word", "exact"],
            "additionalProperties": False,
        },
    },
}
REGEX = r"(yes|no|perhaps), (the|a|an) [a-z]{2,9}( [a-z]{2,9}){1,4}\."
EBNF = 'root ::= item ("; " item){1,3} "."\nitem ::= [a-z]{2,5} "=" [0-9]{1,3}\n'
REFUSED: dict[str, tuple[str, JSON]] = {
    # name in the message: (endpoint, what is added to a request)
    "frequency_penalty": ("/generate", {"sampling_params": {"frequency_penalty": 0.5}}),
    "presence_penalty": ("/generate", {"sampling_params": {"presence_penalty": 0.5}}),
    "repetition_penalty": ("/generate", {"sampling_params": {"repetition_penalty": 1.2}}),
    "min_new_tokens": ("/generate", {"sampling_params": {"min_new_tokens": 4}}),
    "return_logprob": ("/generate", {"return_logprob": True}),
    "logprobs": ("/v1/completions", {"logprobs": 1}),
    "top_logprobs": ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}),
    "min_tokens": ("/v1/chat/completions", {"min_tokens": 4}),
}


def openai(session: Session) -> JSON:
    """Completions and chats, streamed and not, n = 2, logit_bias, a stop string."""
    client = session.client
    texts, chats = session.of_group("text")[6:10], session.of_group("chat")[:3]
    known = session.results["sequential"]
    first_ids = [known[p.name]["ids"][:3] for p in texts]
    greedy: JSON = {"model": "tiny", "temperature": 0, "max_tokens": 40}
    found: JSON = {}
    for prompt, ids in zip(texts, first_ids, strict=True):
        body = greedy | {"prompt": prompt.text}
        found[f"completion/{prompt.name}"] = client.post("/v1/completions", body)["choices"]
        found[f"streamed/{prompt.name}"] = joined(client, "/v1/completions", body)
        found[f"n/{prompt.name}"] = client.post("/v1/completions", body | {"n": 2})["choices"]
        biased = client.post("/v1/completions", body | {"logit_bias": biases(ids)})
        found[f"bias/{prompt.name}"] = biased["choices"]
        found[f"stop/{prompt.name}"] = client.post("/v1/completions", body | {"stop": ["e "]})[
            "choices"
        ]
    for prompt in chats:
        body = greedy | {"messages": messages(prompt)}
        found[f"chat/{prompt.name}"] = client.post("/v1/chat/completions", body)["choices"]
        found[f"chat-streamed/{prompt.name}"] = joined(client, "/v1/chat/completions", body)
    return found


def grammar(session: Session) -> JSON:
    """JSON schema, regular expression, EBNF and a required tool call; half of them in one batch
    with requests that have no grammar."""
    client = session.client
    prompts, chats = session.of_group("text")[2:6], session.of_group("chat")[:3]
    constraints: dict[str, JSON] = {
        "json": {"json_schema": json.dumps(SCHEMA)},
        "regex": {"regex": REGEX},
        "ebnf": {"ebnf": EBNF},
        "none": {},
    }
    calls = {
        f"{name}/{prompt.name}": partial(
            client.generate, prompt.text, {"max_new_tokens": 60, **constraint}
        )
        for prompt in prompts
        for name, constraint in constraints.items()
    }
    found: JSON = {f"alone/{key}": call() for key, call in list(calls.items())[:4]}
    found |= dict(zip(calls, at_once(list(calls.values())), strict=True))
    chat: JSON = {"model": "tiny", "temperature": 0, "max_tokens": 80}
    for prompt in chats:
        body = chat | {"messages": messages(prompt)}
        schema = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
        found[f"response-format/{prompt.name}"] = client.post(
            "/v1/chat/completions", body | {"response_format": schema}
        )["choices"]
        called = client.post(
            "/v1/chat/completions",
            body | {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        )["choices"]
        for choice in called:
            for call in choice["message"]["tool_calls"] or []:
                call.pop("id")  # random
        found[f"tool/{prompt.name}"] = called
    return found


def refusals(session: Session) -> JSON:
    """What DDTREE does not apply exactly, and an ordinary request after each."""
    found = {}
    prompt = session.of_group("text")[3]
    for name, (path, extra) in REFUSED.items():
        params = {"temperature": 0, "max_new_tokens": 8} | extra.get("sampling_params", {})
        bodies: dict[str, JSON] = {
            "/generate": {"text": prompt.text, **extra, "sampling_params": params},
            "/v1/completions": {"model": "tiny", "prompt": prompt.text, "max_tokens": 8, **extra},
            "/v1/chat/completions": {
                "model": "tiny",
                "max_tokens": 8,
                "messages": [{"role": "user", "content": prompt.text}],
                **extra,
            },
        }
        status, text = session.client.call("POST", path, bodies[path])
        after = session.client.generate(prompt.text, {"max_new_tokens": 8})
        found[name] = {"status": status, "text": text[:600], "after": after["ids"]}
    return found


def biases(ids: list[int]) -> dict[str, float]:
    """A logit_bias that forbids what would have been said and favours something else."""
    return {str(token): -100.0 for token in ids} | {str(ids[0] + 7): 2.5}


def messages(prompt: Prompt) -> list[JSON]:
    """A chat prompt's turn as the OpenAI endpoint takes it."""
    question = prompt.text.split("<|user|>")[1].split("<|end|>")[0]
    return [{"role": "user", "content": question}]


def joined(client: Client, path: str, body: JSON) -> JSON:
    """A streamed answer of an OpenAI endpoint as one text and its finish reason."""
    text, finish = "", None
    for event in client.events(path, body):
        for choice in event["choices"]:
            delta: Any = choice.get("delta")
            text += (choice["text"] if delta is None else delta.get("content")) or ""
            finish = choice["finish_reason"] or finish
    return {"text": text, "finish_reason": finish}
