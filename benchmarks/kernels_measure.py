"""Times of the ops: on a GPU as CUDA graphs by events, on a CPU by the clock. Needs torch."""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import kernels_arithmetic as arithmetic
from benchmarks.kernels_heap import heap_tree
from benchmarks.kernels_round import OPS, Round, Shape

REPEATS = 10  # calls in one graph for the time of a call behind another
SPIN = 400_000  # clocks that keep the GPU busy while a replay and its events are enqueued
FLUSHED = 512 * 2**20  # bytes, more than any level-2 cache


def gpu_is_present() -> bool:
    return bool(torch.cuda.device_count() > 0)


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    found = {"torch": torch.__version__, "python": platform.python_version()}
    if gpu_is_present():
        fields = ("name", "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit")
        ran = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"],
            check=False,
            capture_output=True,
            text=True,
        )
        values = ran.stdout.strip().split(", ") if ran.returncode == 0 else []
        found |= dict(zip(fields, values, strict=False))
        found["name"] = torch.cuda.get_device_name(0)
        return found
    processors = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in processors if line.startswith("model name")]
    found["name"] = f"{len(models)} x {models[0] if models else 'unknown processor'} (no GPU)"
    return found


def summary(times: list[float]) -> dict[str, float]:
    """Microseconds of times in seconds."""
    ordered = sorted(times)
    last = min(len(ordered) - 1, round(0.95 * len(ordered)))
    return {"median": statistics.median(ordered) * 1e6, "p95": ordered[last] * 1e6}


def on_cpu(body: Callable[[], None], replays: int) -> list[float]:
    body()
    times = []
    for _ in range(replays):
        begin = time.perf_counter()
        body()
        times.append(time.perf_counter() - begin)
    return times


def captured(body: Callable[[], None], repeats: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            body()
    return graph


def on_gpu(
    body: Callable[[], None], replays: int, *, repeats: int = 1, flush: torch.Tensor | None = None
) -> list[float]:
    """Seconds of a call, one for each replay. With `flush` the level-2 cache holds nothing of use
    when a replay begins."""
    graph = captured(body, repeats)
    for _ in range(10):
        graph.replay()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(replays)
    ]
    for begin, end in events:
        if flush is not None:
            flush.zero_()
        torch.cuda._sleep(SPIN)
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 / repeats for begin, end in events]


def measure_rounds(options: argparse.Namespace) -> dict[str, Any]:
    """Every part of every shape: `alone` (one call in a graph, cache flushed), `warm` (one call in
    a graph) and `repeated` (a call among ten in a graph). On a CPU only `warm`."""
    device, replays = options.device, options.replays
    rows = []
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device=device) if device == "cuda" else None
    for batch in options.batches:
        for budget in options.budgets:
            shape = Shape(
                batch,
                budget,
                vocabulary=options.vocabulary,
                layers=options.layers,
                prefix=options.prefix,
            )
            parts = Round(shape, device).parts()
            for name, body in parts.items():
                row: dict[str, Any] = {"batch": batch, "budget": budget, "part": name}
                if flush is None:
                    row["warm"] = summary(on_cpu(body, replays))
                else:
                    row["alone"] = summary(on_gpu(body, replays, flush=flush))
                    row["warm"] = summary(on_gpu(body, replays))
                    row["repeated"] = summary(on_gpu(body, replays, repeats=REPEATS))
                rows.append(row)
    result = {"machine": machine(), "device": device, "replays": replays, "rows": rows}
    if flush is not None:
        word = torch.zeros(1, device=device)
        result["launch"] = summary(on_gpu(word.zero_, replays))
        result["launch repeated"] = summary(on_gpu(word.zero_, replays, repeats=REPEATS))
    result["targets"] = targets(result)
    return result


def targets(result: dict[str, Any]) -> list[dict[str, str]]:
    """The issue's targets on an H200, judged only there."""
    on_h200 = result["device"] == "cuda" and "H200" in result["machine"]["name"]
    times = {(r["batch"], r["budget"], r["part"]): r for r in result["rows"]}
    floor = arithmetic.rank_tokens(16).moved / arithmetic.MEMORY["H200"] * 1e6
    wanted = [
        ("build+walk+compact, batch 1, budget 64", (1, 64, "build+walk+compact"), "warm", 40.0),
        ("rank_tokens, batch 16: twice its bytes", (16, 64, "rank_tokens"), "alone", 2 * floor),
    ]
    judged = []
    for title, key, kind, limit in wanted:
        verdict = "not measured"
        if on_h200 and key in times:
            found = times[key][kind]["median"]
            verdict = f"{'met' if found <= limit else 'not met'} ({found:.1f} us)"
        judged.append({"target": f"{title}: at most {limit:.1f} us", "verdict": verdict})
    return judged


def report(result: dict[str, Any]) -> str:
    """Markdown."""
    kinds = [kind for kind in ("alone", "warm", "repeated") if kind in result["rows"][0]]
    lines = [f"- {key}: {value}" for key, value in sorted(result["machine"].items())]
    lines.append(f"- replays: {result['replays']}; microseconds, median (95th percentile)")
    for name in ("launch", "launch repeated"):
        if name in result:
            lines.append(f"- {name}: one word set to zero, {_cell(result[name])}")
    lines += ["", f"| batch | budget | part | {' | '.join(kinds)} |"]
    lines.append("|---|---|---|" + "---:|" * len(kinds))
    for row in result["rows"]:
        cells = " | ".join(_cell(row[kind]) for kind in kinds)
        lines.append(f"| {row['batch']} | {row['budget']} | {row['part']} | {cells} |")
    lines += ["", "Targets on an H200:", ""]
    lines += [f"- {t['target']}: {t['verdict']}" for t in result["targets"]]
    return "\n".join(lines) + "\n"


def _cell(times: dict[str, float]) -> str:
    return f"{times['median']:.1f} ({times['p95']:.1f})"


def measure_heap(
    *, batch: int = 32, levels: int = 15, ranks: int = 64, budget: int = 64, replays: int = 100
) -> dict[str, Any]:
    """build_tree on the CPU, one call for the batch, and a heap in Python, request by request, in
    turns on the same candidates. Both must give the same trees."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(batch, levels, 4_000, generator=generator)
    top = torch.log_softmax(logits, -1).topk(ranks, -1)
    rows, ids = top.values.tolist(), top.indices.tolist()
    built = OPS.build_tree(top.values, top.indices, budget)
    for request in range(batch):
        tree = heap_tree(rows[request], ids[request], budget)
        mine = (tree.tokens, tree.parents, tree.depths)
        if mine != tuple(output[request].tolist() for output in built[:3]):
            raise RuntimeError(f"the heap and the op disagree about request {request}")
    op, heap = [], []
    for _ in range(replays):
        op += on_cpu(lambda: OPS.build_tree(top.values, top.indices, budget), 1)
        begin = time.perf_counter()
        for request in range(batch):
            heap_tree(rows[request], ids[request], budget)
        heap.append(time.perf_counter() - begin)
    shape = {"batch": batch, "levels": levels, "ranks": ranks, "budget": budget}
    return {
        "machine": machine(),
        "shape": shape,
        "replays": replays,
        "op": summary(op),
        "heap": summary(heap),
    }


def heap_report(result: dict[str, Any]) -> str:
    """Markdown."""
    batch = result["shape"]["batch"]
    ratio = result["heap"]["median"] / result["op"]["median"]
    shape = ", ".join(f"{name} {value}" for name, value in result["shape"].items())
    return (
        f"- {result['machine']['name']}, torch {result['machine']['torch']}; {shape}; "
        f"{result['replays']} turns\n"
        f"- one call of the op: {_cell(result['op'])} us, "
        f"{result['op']['median'] / batch:.1f} us a request\n"
        f"- a heap in Python, {result['machine']['python']}: {_cell(result['heap'])} us, "
        f"{result['heap']['median'] / batch:.1f} us a request: {ratio:.0f} times the op's\n"
    )
