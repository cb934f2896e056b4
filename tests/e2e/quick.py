"""The smallest end-to-end check: one DDTREE server against stored answers without speculation.

  quick.py MODELS PROOF.json OUT.json [--accept LENGTH] [--port PORT]

Runs inside the image. PROOF.json is run.py's; only its plain answers are read. OUT.json gets
{"failed": [check, ...], "accept": tokens per round, "notes": [...]}; exit status 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e import frontends
from tests.e2e.client import JSON, Client, at_once
from tests.e2e.configurations import CONFIGURATIONS
from tests.e2e.models.corpus import load_prompts
from tests.e2e.server import ServerDiedError, serving

TOKENS = 32
# A drafter that lost a part of its context still drafts, but not as well.
ACCEPT_SHARE = 0.95
# What a server that never answered fails: too little memory would do it, so that no breakage may
# name it.
START = "start"
CHECKS = ("tokens", "acceptance", "grammar", "bias")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("proof", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--accept", type=float, default=0.0, help="what is expected")
    parser.add_argument("--port", type=int, default=31390)
    given = parser.parse_args()
    plain = json.loads(given.proof.read_text("utf-8"))["plain"]["groups"]
    result = check(given.models, plain, given.out.with_suffix(".log"), given.accept, given.port)
    given.out.write_text(json.dumps(result), "utf-8")
    return 1 if result["failed"] else 0


def check(models: Path, plain: JSON, log: Path, accept: float, port: int) -> JSON:
    """Start the server and run every check; one that does not come up fails START alone."""
    argv = CONFIGURATIONS["ddtree16"].argv(models)
    environment = {"OMP_NUM_THREADS": "1", "DDTREE_CPU_PROOF": "1", "CUDA_VISIBLE_DEVICES": ""}
    failed: list[str] = []
    notes: list[str] = []
    found: JSON = {"accept": 0.0}
    checks = {"tokens": tokens, "grammar": grammar, "bias": bias}
    try:
        with serving(argv, port=port, log=log, environment=environment) as address:
            client = Client(address, timeout=60)
            for name, body in checks.items():
                try:
                    body(client, plain, found)
                except Exception as error:
                    failed.append(name)
                    notes.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    except ServerDiedError as error:
        return {"failed": [START], "accept": 0.0, "notes": [str(error)[-1500:]]}
    if found["accept"] < accept * ACCEPT_SHARE or not found["accept"]:
        failed.append("acceptance")
    return {"failed": failed, "accept": found["accept"], "notes": notes}


def tokens(client: Client, plain: JSON, found: JSON) -> None:
    """Eight prompts, one by one and all at once: the tokens without speculation."""
    prompts = [p for p in load_prompts() if p.group != "chat"][2:34:4]
    calls = [partial(client.generate, p.text, {"max_new_tokens": TOKENS}) for p in prompts]
    alone = [call() for call in calls]
    rounds = sum(answer["spec_verify_ct"] for answer in alone)
    found["accept"] = sum(answer["completion_tokens"] - 1 for answer in alone) / rounds
    for prompt, *answers in zip(prompts, alone, at_once(calls), strict=True):
        expected = plain["sequential"][prompt.name]["ids"][:TOKENS]
        for answer in answers:
            _equal(prompt.name, answer["ids"], expected)


def grammar(client: Client, plain: JSON, _found: JSON) -> None:
    """Answers under a JSON schema and a regular expression."""
    texts = {p.name: p.text for p in load_prompts()}
    constraints: dict[str, JSON] = {
        "json": {"json_schema": json.dumps(frontends.SCHEMA)},
        "regex": {"regex": frontends.REGEX},
    }
    names = ("text-2", "text-3")
    calls = {
        f"{kind}/{name}": partial(
            client.generate, texts[name], {"max_new_tokens": 60, **constraint}
        )
        for kind, constraint in constraints.items()
        for name in names
    }
    for name, answer in zip(calls, at_once(list(calls.values())), strict=True):
        _equal(name, answer["ids"], plain["grammar"][name]["ids"])


def bias(client: Client, plain: JSON, _found: JSON) -> None:
    """Completions with a logit bias."""
    texts = {p.name: p.text for p in load_prompts()}
    for name in [n.removeprefix("bias/") for n in plain["openai"] if n.startswith("bias/")]:
        ids = plain["sequential"][name]["ids"][:3]
        body: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 40}
        body |= {"prompt": texts[name], "logit_bias": frontends.biases(ids)}
        answer = client.post("/v1/completions", body)["choices"]
        _equal(name, answer, plain["openai"][f"bias/{name}"])


def _equal(name: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"{name}: {found} is not {expected}")


if __name__ == "__main__":
    sys.exit(main())
