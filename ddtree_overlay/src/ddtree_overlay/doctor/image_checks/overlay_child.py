"""Tries the overlay in a process of its own and prints one line of JSON. Run by `overlay`.

It takes no memory of a GPU beyond a CUDA context's, and that only as long as it lives.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ddtree_overlay.doctor.child import MARK

PLUGIN_GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms")
BUDGET, LEVELS, RANKS, PREFIX = 24, 5, 6, 7


def main(argv: list[str] | None = None) -> int:
    """Prints {"problems": [[kind, text], ...], "torch", "cuda", "seconds"}; kinds: `overlay`'s."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--algorithm", default="")
    parser.add_argument("--architecture", default="")
    arguments = parser.parse_args(argv)
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is not for the reader of our line
    problems: list[tuple[str, str]] = []
    result: dict[str, Any] = {"problems": problems, "seconds": {}}

    def step(name: str, run: Callable[[], Iterator[tuple[str, str]]], kind: str) -> bool:
        began = time.monotonic()
        before = len(problems)
        try:
            problems.extend(run())
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            problems.append((kind, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"))
        result["seconds"][name] = round(time.monotonic() - began, 1)
        return len(problems) == before

    if step("torch", lambda: _torch(arguments.device, result), "torch"):
        if step("extension", _extension, "extension"):
            step("cpu", lambda: _ops("cpu"), "op")
            if arguments.device == "cuda":
                step("cuda", lambda: _ops("cuda:0"), "op")
        if arguments.device == "cuda":
            step("sgl_kernel", _sgl_kernel, "sgl_kernel")
        step("sglang", lambda: _registered(arguments.algorithm), "registered")
        if arguments.architecture and arguments.algorithm in ("DDTREE", "DFLASH"):
            step("capture", lambda: _capture(arguments.architecture), "capture")
    step("plugins", _plugins, "plugin")
    print(MARK + json.dumps(result), file=out, flush=True)
    return 0


def _torch(device: str, result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    import torch  # type: ignore[import-not-found, unused-ignore]

    result["torch"] = str(torch.__version__)
    result["cuda"] = torch.version.cuda
    if device == "cuda":
        try:
            torch.cuda.init()
            torch.cuda.get_device_capability(0)
        except Exception as error:
            yield "gpu", " ".join(str(error).split())[:300]


def _extension() -> Iterator[tuple[str, str]]:
    importlib.import_module("ddtree_overlay.ops")
    yield from ()


def _sgl_kernel() -> Iterator[tuple[str, str]]:
    importlib.import_module("sgl_kernel")
    yield from ()


def _registered(algorithm: str) -> Iterator[tuple[str, str]]:
    module = importlib.import_module("sglang.srt.speculative.spec_info")
    if "DDTREE" not in module.SpeculativeAlgorithm.__members__:
        yield "registered", "SpeculativeAlgorithm has no DDTREE: SGLang is not the patched one"
    elif algorithm in ("", "DDTREE"):
        importlib.import_module("ddtree_overlay.sglang.worker")


def _capture(architecture: str) -> Iterator[tuple[str, str]]:
    """Imports the one module that defines the class, not all models."""
    from pathlib import Path

    from sglang.srt import models  # type: ignore[import-not-found, unused-ignore]

    folder = Path(next(iter(models.__path__)))
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if f"class {architecture}(" not in text or "EntryClass" not in text:
            continue
        module = importlib.import_module(f"sglang.srt.models.{path.stem}")
        kind = getattr(module, architecture, None)
        if kind is not None and not hasattr(kind, "set_dflash_layers_to_capture"):
            yield "capture", f"{architecture} has no set_dflash_layers_to_capture"
        return


def _plugins() -> Iterator[tuple[str, str]]:
    for group in PLUGIN_GROUPS:
        for entry in importlib.metadata.entry_points(group=group):
            try:
                entry.load()
            except Exception as error:
                yield "plugin", f"{entry.name} ({entry.value}): {type(error).__name__}: {error}"


def _ops(device: str) -> Iterator[tuple[str, str]]:
    """build_tree, place_tree and walk_tree against the reference, bit for bit."""
    import torch

    from ddtree_overlay import ops
    from ddtree_overlay.tree.mask import full_mask, mask_numel
    from ddtree_overlay.tree.reference import build_tree, pack_words
    from ddtree_overlay.tree.walk import walk_greedy

    logprobs, ids = _draft(torch)
    tree = build_tree(logprobs[0].tolist(), ids[0].tolist(), BUDGET)
    built = ops.build_tree(logprobs.to(device), ids.to(device), BUDGET)
    got = [output.cpu() for output in built]
    wanted = {
        "tokens": (0, tree.tokens),
        "parents": (1, tree.parents),
        "depths": (2, tree.depths),
        "first_child": (3, tree.first_child),
        "next_sibling": (4, tree.next_sibling),
        "ancestors": (5, [pack_words(bits, BUDGET) for bits in tree.ancestors]),
        "counts": (6, tree.count),
        "exact": (8, tree.exact),
    }
    for name, (index, value) in wanted.items():
        if got[index][0].tolist() != value:
            yield "wrong", f"build_tree's {name} on {device} differ from the reference"
            return
    width = BUDGET + 1
    lengths = torch.tensor([PREFIX], dtype=torch.int64)
    mask = torch.zeros(mask_numel(PREFIX, 1, width), dtype=torch.bool, device=device)
    positions = torch.zeros(1, width, dtype=torch.int64, device=device)
    ops.place_tree(built[5], built[2], lengths.to(device), mask, positions)
    expected = full_mask(got[5], lengths, mask.numel())
    if not torch.equal(mask.cpu(), expected) or not torch.equal(positions.cpu(), PREFIX + got[2]):
        yield "wrong", f"place_tree on {device} differs from the reference"
    # The target follows the last node's path, and then says something new.
    target = torch.full((1, width), 10**6, dtype=torch.int64)
    node = tree.count
    while node > 0:
        target[0, tree.parents[node]] = tree.tokens[node]
        node = tree.parents[node]
    walked = ops.walk_tree(built[0], built[1], target.to(device), LEVELS + 1)
    reference = walk_greedy(got[0], got[1], target, LEVELS + 1)
    for name, value in zip(("path", "accepted", "tokens", "bonus"), walked, strict=True):
        if not torch.equal(value.cpu(), getattr(reference, name)):
            yield "wrong", f"walk_tree's {name} on {device} differs from the reference"
            return


def _draft(torch: Any) -> tuple[Any, Any]:
    """Candidates as a drafter ranks them, the same on every machine: no generator of torch's."""
    state, levels, ids = 1, [], []
    for level in range(LEVELS):
        weights = []
        for _ in range(RANKS):
            state = state * 48271 % (2**31 - 1)
            weights.append(1 + state % 1000)
        ranked = sorted(weights, reverse=True)
        levels.append([-(ranked[0] - weight) / 256 - 0.125 for weight in ranked])
        ids.append([100 * level + rank for rank in range(RANKS)])
    return torch.tensor([levels], dtype=torch.float32), torch.tensor([ids], dtype=torch.int64)


if __name__ == "__main__":
    sys.exit(main())
