"""Stands in for `python -m sglang.launch_server`: answers as the shipped models would, with a fault.

STUB_FAULT names what goes wrong (in the DDTREE server, unless it says otherwise), STUB_FOLDER gets
what this process was started with, STUB_RECORD is the models.json to answer from.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULT = os.environ.get("STUB_FAULT", "")
RECORD = json.loads(Path(os.environ["STUB_RECORD"]).read_text("utf-8"))
FOLDER = Path(os.environ["STUB_FOLDER"])
TEXTS = json.loads(os.environ["STUB_TEXTS"])
GAP = float(os.environ.get("STUB_GAP", "0.1"))
TREE = "--speculative-algorithm" in sys.argv
OTHER = 7777


def tokens(prompt: Any, params: dict[str, Any]) -> list[int]:
    """The answer of both servers, faults left out."""
    names = [name for name, text in TEXTS.items() if text == prompt]
    kinds = {key: params[key] for key in ("regex", "json_schema", "sampling_seed") if key in params}
    if names and not kinds and params.get("temperature") == 0:
        return list(RECORD["answers"][names[0]])
    seed = hashlib.sha256(json.dumps([prompt, kinds], sort_keys=True).encode()).digest()
    return [int(byte) for byte in (seed * 2)[:40]]


def faulty(path: str, prompt: Any, params: dict[str, Any], stream: bool) -> bool:
    if FAULT == "both":
        return True
    return TREE and {
        "token": prompt == TEXTS["class"] and not {"regex", "json_schema"} & set(params),
        "ends": prompt == TEXTS["class"],
        "finish": prompt == TEXTS["class"],
        "stream": stream,
        "chat": path == "/v1/chat/completions",
        "grammar": "regex" in params,
        "sampled": "sampling_seed" in params,
    }.get(FAULT, False)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body in one packet: two wait for each other's acknowledgement

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(503 if TREE and FAULT == "never-ready" else 200, b"")
        elif self.path == "/metrics":
            self._send(200, metrics().encode())
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if TREE and FAULT == "hangs":
            time.sleep(3600)
        if TREE and FAULT == "dies-asked":
            print("CUDA error: an illegal memory access", flush=True)
            os._exit(9)
        if TREE and FAULT == "refuses":
            self._send(400, b'{"message": "regex is not supported"}')
            return
        if self.path == "/v1/chat/completions":
            self._chat(body)
        else:
            self._generate(body)

    def _chat(self, body: dict[str, Any]) -> None:
        question = body["messages"][0]["content"]
        ids = tokens(question, {})
        if faulty(self.path, question, {}, False):
            ids[3] = OTHER
        choice = {"prompt_token_ids": [1, 2], "token_ids": ids, "finish_reason": "stop"}
        self._json({"choices": [choice]})

    def _generate(self, body: dict[str, Any]) -> None:
        prompt = body.get("text", body.get("input_ids"))
        params = body["sampling_params"]
        if body.get("return_logprob"):
            self._logprobs(prompt, params, body["token_ids_logprob"])
            return
        ids, end = tokens(prompt, params), "length"
        if FAULT == "no-grammar":
            ids = tokens(prompt, {k: v for k, v in params.items() if k in ("temperature",)})
        stream = bool(body.get("stream"))
        if faulty(self.path, prompt, params, stream):
            if FAULT == "ends":
                ids = ids[:-1]
            elif FAULT == "finish":
                end = "stop"
            else:
                ids[3] = OTHER
        rounds = max(1, int((len(ids) - 1) / RECORD["accept_length"]))
        if FAULT == "slow":
            rounds *= 2
        meta = {"finish_reason": {"type": end}, "spec_verify_ct": rounds if TREE else 0}
        if not stream:
            self._json({"output_ids": ids, "text": "", "meta_info": meta})
            return
        pieces = [ids] if FAULT == "one-piece" else [ids[:1], ids[:5], ids]
        if TREE and FAULT == "takes-back":
            pieces.insert(2, ids[:3])
        events = [json.dumps({"output_ids": one, "meta_info": meta}) for one in pieces]
        self._send(200, "".join(f"data: {e}\n\n" for e in [*events, "[DONE]"]).encode())

    def _logprobs(self, prompt: Any, params: dict[str, Any], pair: list[int]) -> None:
        ids = tokens(prompt, params)[: params["max_new_tokens"]]
        entries = [[[-1.0, pair[0], None], [-1.0 - GAP, pair[1], None]]] * len(ids)
        meta = {"finish_reason": {"type": "length"}, "output_token_ids_logprobs": entries}
        self._json({"output_ids": ids, "text": "", "meta_info": meta})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def metrics() -> str:
    trees = 0 if FAULT == "no-trees" else 100
    values = {
        "ddtree_trees_total": trees,
        "ddtree_nodes_verified_total": trees if FAULT == "chains" else 16 * trees,
        "ddtree_off_spine_tokens_total": 0 if FAULT in ("no-trees", "chains") else 30,
        "ddtree_fallbacks_total": 1 if FAULT == "fall-backs" else 0,
        "spec_accept_length": 0 if FAULT == "no-metric" else 2.5,
    }
    lines = ["# HELP sglang:spec_accept_length text"]
    return "\n".join([*lines, *(f'sglang:{k}{{rank="0"}} {v}' for k, v in values.items())]) + "\n"


def main() -> None:
    name = "tree" if TREE else "plain"
    started = {"argv": sys.argv, "environment": dict(os.environ), "cwd": str(Path.cwd())}
    (FOLDER / f"{name}.json").write_text(json.dumps(started | {"pid": os.getpid()}))
    if TREE and FAULT == "dies":
        print("ValueError: the drafter is another target's", flush=True)
        raise SystemExit(3)
    if "STUB_STUBBORN" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A worker that does not notice its parent's end.
    child = subprocess.Popen(["sleep", "3600"])
    (FOLDER / f"{name}.child").write_text(str(child.pid))
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
