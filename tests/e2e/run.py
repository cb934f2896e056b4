"""Run servers and record their answers: `run.py MODELS OUT.json [NAME ...]`.

Runs inside the image, or wherever its stack is installed. Each named configuration (all of
`configurations.PROOF` by default) starts once, answers its request groups, and stops; two run at a
time. Asserts nothing: the tests read OUT.json. Exit status 1 if a server died or a group raised;
what there is gets written all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

# The image sets PYTHONSAFEPATH: a script's own folder is not on the path there.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.client import JSON, Client
from tests.e2e.configurations import CONFIGURATIONS, CONTEXT, PROOF, Configuration
from tests.e2e.models.corpus import load_prompts
from tests.e2e.server import serving
from tests.e2e.session import Session

METRICS = ("sglang:ddtree_", "sglang:spec_", "sglang:num_retract")
LOGGED = ("tree budget:", "Retract requests", "Traceback", "Error", "DDTREE")
LOGGED_LINES = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="folder with target/ and draft/")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=PROOF, metavar="NAME")
    parser.add_argument("--port", type=int, default=31300, help="the first of two")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=None, help="only the first so many")
    parser.add_argument("--groups", default="", help="only these, comma-separated")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)

    ports: SimpleQueue[int] = SimpleQueue()
    for number in range(given.parallel):
        ports.put(given.port + number)

    def one(name: str) -> JSON:
        port = ports.get()
        try:
            return run(name, CONFIGURATIONS[name], given, port)
        finally:
            ports.put(port)

    with ThreadPoolExecutor(given.parallel) as pool:
        results = dict(zip(given.names, pool.map(one, given.names), strict=True))
    given.out.write_text(json.dumps(results), "utf-8")
    failed = [name for name, result in results.items() if result["error"]]
    for name in failed:
        print(f"{name}: {results[name]['error'][-3000:]}")
    return 1 if failed else 0


def run(name: str, configuration: Configuration, given: argparse.Namespace, port: int) -> JSON:
    """Everything that one server said."""
    log, trace, nodes = (
        given.out.with_name(f"{name}.{suffix}") for suffix in ("log", "trace", "nodes")
    )
    for file in (trace, nodes):
        file.unlink(missing_ok=True)
    environment = {
        # Two servers share two cores, and the order of a sum must not depend on how many are free.
        "OMP_NUM_THREADS": "1",
        "DDTREE_CPU_PROOF_TRACE": str(trace),
        **({"DDTREE_CPU_PROOF_NODES": str(nodes)} if configuration.nodes else {}),
        **configuration.environment,
    }
    if "cpu" in configuration.device:
        environment |= {"DDTREE_CPU_PROOF": "1", "CUDA_VISIBLE_DEVICES": ""}
    argv = configuration.argv(given.models)
    only = set(filter(None, given.groups.split(",")))
    result: JSON = {"argv": argv, "dtype": configuration.dtype, "error": "", "seconds": {}}
    groups: dict[str, JSON] = {}
    result["groups"] = groups
    began = time.monotonic()
    prompts = load_prompts()[: given.prompts]
    try:
        with serving(argv, port=port, log=log, environment=environment) as address:
            session = Session(Client(address), prompts, CONTEXT, groups)
            result["seconds"]["start"] = round(time.monotonic() - began, 1)
            for group in configuration.groups:
                if only and group.__name__ not in only:
                    continue
                start = time.monotonic()
                session.results[group.__name__] = group(session)
                result["seconds"][group.__name__] = round(time.monotonic() - start, 1)
                if group.__name__ == "sequential":
                    result["sequential_metrics"] = session.client.metrics(*METRICS)
            result["metrics"] = session.client.metrics(*METRICS)
    except Exception:
        result["error"] = traceback.format_exc()
    result["log"] = logged(log)
    result["trace"] = traced(trace)
    result["nodes"] = str(nodes) if nodes.exists() else ""
    print(f"{name}: {json.dumps(result['seconds'])}", flush=True)
    return result


def logged(log: Path) -> JSON:
    """Some lines of each kind that the tests look for, and how many there were."""
    found: JSON = {}
    for line in log.read_text("utf-8", "replace").splitlines() if log.exists() else ():
        for kind in LOGGED:
            if kind in line and "server_args=" not in line:
                entry = found.setdefault(kind, {"count": 0, "lines": []})
                entry["count"] += 1
                if len(entry["lines"]) < LOGGED_LINES:
                    entry["lines"].append(line[:600])
    return found


def traced(trace: Path) -> JSON:
    """Sums over the verify forwards (see ddtree_overlay.sglang.cpu_proof.trace)."""
    sums: JSON = {"forwards": 0, "masked": 0, "branching_requests": 0, "branching_rows": 0}
    widths, batches = set(), set()
    for line in trace.read_text("utf-8").splitlines() if trace.exists() else ():
        entry = json.loads(line)
        if "truncated" in entry:
            continue
        sums["forwards"] += 1
        for name in ("masked", "branching_requests", "branching_rows"):
            sums[name] += entry[name]
        widths.add(entry["width"])
        batches.add(entry["batch"])
    return sums | {"widths": sorted(widths), "batches": sorted(batches)}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
