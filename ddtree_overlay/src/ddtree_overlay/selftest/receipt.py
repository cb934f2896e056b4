"""What a run showed, and what it did not."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ddtree_overlay.selftest.device import name_of
from ddtree_overlay.selftest.verdict import Check
from ddtree_overlay.serve.errors import SelftestNotRunError

SCHEMA = 1
CLAIMS = {
    "cpu": "CPU-verified: the image's worker, tree and server, on a CPU",
    "cuda": "self-test passed on GPU: the image's kernels and server, on a tiny model",
}
NO_CLAIM = "nothing: the self-test did not pass"
_ALWAYS = (
    "a model of real size: its memory, its accept length, its speed",
    "serving for hours, or more than eight requests at a time",
)
NOT_PROVEN: Mapping[str, tuple[str, ...]] = {
    "cpu": (
        "anything on a GPU: CUDA kernels, CUDA graphs, FlashInfer's tree mask, NCCL, the driver",
        "speed of any kind",
        *_ALWAYS,
    ),
    "cuda": (
        "each kernel by itself, and its speed: that is tests/gpu and benchmarks/on_gpu.py",
        "GPUs beyond the tensor-parallel ranks named here, and links between them (ddtree doctor)",
        "seeded sampling: seeds need --enable-deterministic-inference, which serving does not use",
        "tokens where two are tied in bfloat16: either is taken for right",
        *_ALWAYS,
    ),
}


@dataclass
class Receipt:
    """Filled while the self-test runs. Times are UTC; the result is "error" until it is known.

    requests: of each server; tokens: of the greedy answers without speculation.
    """

    image: Mapping[str, Any]
    device: Mapping[str, Any]
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    result: str = "error"
    error: str = ""
    checks: Sequence[Check] = ()
    requests: int = 0
    tokens: int = 0
    sha256: str = ""
    accept_length: float = 0.0
    accept_length_recorded: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    start_seconds: Mapping[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        finished = datetime.now(timezone.utc)
        passed = self.result == "pass"
        kind = self.device["kind"]
        return {
            "kind": "ddtree-selftest",
            "schema": SCHEMA,
            "result": self.result,
            "error": self.error or None,
            "claim": CLAIMS[kind] if passed else NO_CLAIM,
            "not_proven": list(NOT_PROVEN[kind]),
            "started": _stamp(self.started),
            "finished": _stamp(finished),
            "seconds": round((finished - self.started).total_seconds(), 1),
            "start_seconds": dict(self.start_seconds),
            "image": dict(self.image),
            "device": dict(self.device),
            "checks": [check.document() for check in self.checks],
            "requests_per_server": self.requests,
            "greedy_tokens": self.tokens,
            "greedy_tokens_sha256": self.sha256 or None,
            "accept_length": round(self.accept_length, 4),
            "accept_length_recorded": self.accept_length_recorded,
            "metrics": dict(self.metrics),
        }


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def render_json(document: Mapping[str, Any]) -> str:
    """One object, keys in the order of the receipt."""
    return json.dumps(document, indent=2)


def render_text(document: Mapping[str, Any]) -> str:
    """A table of the checks, what was run on what, and last the verdict."""
    image = document["image"]
    lines = [
        f"image   {image['version']}, build {image['build_id']}, {image['variant']}"
        + (" (stand-in)" if image["stand_in"] else ""),
        f"sglang  {image['sglang']}, tree {str(image['sglang_patched_tree'])[:12]}",
        f"device  {name_of(document['device'])}",
        f"run     {document['started']}, {document['seconds']:.0f} s",
    ]
    checks = document["checks"]
    if checks:
        lines += [
            f"tokens  {document['greedy_tokens']} greedy of {document['requests_per_server']} "
            f"requests, sha256 {document['greedy_tokens_sha256'][:16]}",
            "",
        ]
        width = max(len(check["name"]) for check in checks)
        for check in checks:
            word = "ok  " if check["passed"] else "FAIL"
            lines.append(f"{word}  {check['name']:<{width}}  {check['what']} - {check['title']}")
            lines += [f"        {line}" for line in check.get("wrong", [])[:3]]
    lines += ["", "not proven by this:"]
    lines += [f"  - {one}" for one in document["not_proven"]]
    lines.append(f"{document['result'].upper()}: {document['claim']}")
    return "\n".join(lines)


def check_writable(path: Path) -> None:
    """Raises SelftestNotRunError unless a receipt can be written there; leaves nothing."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SelftestNotRunError(
            f"--receipt {path} cannot be written", "name a file in a folder that can be written to"
        )


def write_receipt(path: Path, document: Mapping[str, Any]) -> None:
    """All of it or nothing. Raises SelftestNotRunError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(render_json(document) + "\n", "utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise SelftestNotRunError(
            f"--receipt {path} cannot be written: {error.strerror}",
            "name a file in a folder that can be written to",
        ) from None
