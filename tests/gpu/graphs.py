"""CUDA graphs for tests whose bodies also run on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]


def recorded(device: str, body: Callable[[], Any]) -> Callable[[], Any]:
    """`body` as a CUDA graph whose replay returns its outputs; on a CPU `body` itself."""
    if device == "cpu":
        return body
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = body()

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay


@contextmanager
def no_synchronisation(device: str) -> Iterator[None]:
    """What waits for the GPU through torch raises; on a CPU nothing waits."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
