"""One rank of the functional all-reduce. Run by `collective`, one process a GPU.

Prints lines of JSON: {"stage": ...} before each step that can hang, {"bytes", "seconds", "wrong"}
for each size. Ranks meet through a file, so that no port can be taken by another process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from typing import Any

from ddtree_overlay.doctor.child import MARK

SIZES = (8 * 2**10, 2**20, 64 * 2**20)
"""Bytes: a decode step's activations, a prefill's, and what is bound by bandwidth alone."""
REPEATS = {SIZES[0]: 50, SIZES[1]: 20, SIZES[2]: 5}
_PERIOD = 1021
"""Of the pattern that is summed; a prime, so that no chunk of a ring repeats another."""


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 also for wrong values: those are a result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--rendezvous", required=True)
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--gpu-step", type=int, default=1)
    arguments = parser.parse_args(argv)
    out = sys.stdout
    sys.stdout = sys.stderr

    def say(message: dict[str, Any]) -> None:
        print(MARK + json.dumps(message), file=out, flush=True)

    say({"stage": "import torch"})
    import torch  # type: ignore[import-not-found, unused-ignore]
    import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

    cuda = arguments.backend == "nccl"
    gpu = arguments.first_gpu + arguments.rank * arguments.gpu_step
    device = torch.device("cuda", gpu) if cuda else torch.device("cpu")
    say({"stage": "open the GPU" if cuda else "start"})
    if cuda:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    say({"stage": "set up the group"})
    dist.init_process_group(
        arguments.backend,
        init_method=f"file://{arguments.rendezvous}",
        rank=arguments.rank,
        world_size=arguments.world,
        timeout=timedelta(seconds=arguments.seconds),
    )
    for size in SIZES:
        say({"stage": f"all-reduce of {size} bytes"})
        say(_measure(torch, dist, device, size, arguments.rank, arguments.world))
    say({"stage": "done"})
    # Not destroy_process_group: it can hang as well, and the process ends here.
    return 0


def _measure(
    torch: Any, dist: Any, device: Any, size: int, rank: int, world: int
) -> dict[str, Any]:
    """Sums whole numbers below 2**24, which float32 has exactly in whatever order."""
    pattern = (torch.arange(size // 4, device=device) % _PERIOD).to(torch.float32)
    wanted = pattern * world + world * (world - 1) // 2

    def once() -> Any:
        data = pattern + rank
        dist.all_reduce(data)
        return data

    wrong = int((once() != wanted).sum().item())
    data = pattern.clone()
    _wait(torch, device)
    began = time.monotonic()
    for _ in range(REPEATS[size]):
        dist.all_reduce(data)
    _wait(torch, device)
    seconds = (time.monotonic() - began) / REPEATS[size]
    # Once more: a path that is right when idle can be wrong under load.
    wrong += int((once() != wanted).sum().item())
    return {"bytes": size, "seconds": seconds, "wrong": wrong}


def _wait(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # NCCL's threads can hold up an ordinary exit after a result that is complete.
    import os

    os._exit(code)
