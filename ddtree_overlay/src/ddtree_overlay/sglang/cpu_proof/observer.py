"""A record of verified trees with their logits, to compare each node with its path as a chain.

DDTREE_CPU_PROOF_NODES=FILE appends a JSON line per request and round to FILE, for the first
LIMIT_TREES of them without a grammar, a bias or another change to the logits:

- `context`: token ids whose KV the round found in the cache, int [prefix]
- `tokens`, `parents`: of the root and the drafted nodes, int [nodes]
- `logits`: the target's at each of them, base64 of little-endian fp32 [nodes, vocabulary]
- `path`: the nodes that the walk accepted, the root first, int [accepted + 1]
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from ddtree_overlay.sglang.cpu_proof.errors import CpuProofError
from ddtree_overlay.sglang.cpu_proof.hooks import Shim

NODES = "DDTREE_CPU_PROOF_NODES"
LIMIT_TREES = 120


def shims() -> tuple[Shim, ...]:
    """The hook that observes DDTREE's worker, if the environment asks for it."""
    if not os.environ.get(NODES):
        return ()
    # The worker itself is imported when it is made: earlier its modules would bind what the other
    # shims have yet to replace.
    return (
        Shim(
            "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
            ("self", "server_args"),
            create_observed_worker,
        ),
    )


def create_observed_worker(original: Any, algorithm: Any, server_args: Any) -> Any:
    """The worker's class, DDTREE's with a `_walk` that records what it is given."""
    worker = original(algorithm, server_args)
    if not algorithm.is_ddtree():
        return worker
    if not hasattr(worker, "_walk"):
        raise CpuProofError(
            f"{worker.__name__} has no _walk to observe", "adapt cpu_proof/observer.py to it"
        )
    record = NodeRecord(Path(os.environ[NODES]))

    class Observed(worker):  # type: ignore[misc, valid-type, unused-ignore]
        def _walk(self, logits: Any, tree: Any, batch: Any, positions: Any) -> Any:
            # A sampled walk overwrites the logits.
            before = logits.clone()
            walk = super()._walk(logits, tree, batch, positions)
            record.add(before, tree, batch, positions, walk)
            return walk

    return Observed


class NodeRecord:
    """Appends to a file until LIMIT_TREES are in it."""

    def __init__(self, path: Path, limit: int = LIMIT_TREES) -> None:
        self._path, self._left = path, limit

    def add(self, logits: Any, tree: Any, batch: Any, positions: Any, walk: Any) -> None:
        """Record one round. Arguments as DDTreeWorker._walk takes and returns them, the logits as
        they were before it.

        Raises RuntimeError if a request's tokens are not those that the round verified from, which
        overlap scheduling makes so: the scheduler then knows of a round's tokens too late.
        """
        info = batch.sampling_info
        if batch.has_grammar or (info is not None and info.logit_bias is not None):
            return
        # A root stands right behind its prefix.
        prefixes, accepted = positions[:, 0].tolist(), walk.accepted.tolist()
        with self._path.open("a", encoding="utf-8") as file:
            for row, (request, prefix) in enumerate(zip(batch.reqs, prefixes, strict=True)):
                if self._left == 0:
                    return
                self._left -= 1
                known = [*request.origin_input_ids, *request.output_ids]
                nodes = int(tree.counts[row]) + 1
                tokens = tree.tokens[row, :nodes].tolist()
                if known[prefix:] != tokens[:1]:
                    raise RuntimeError(
                        f"{NODES}: request {request.rid} has {len(known)} tokens, its tree starts "
                        f"at {prefix}: use it with --disable-overlap-schedule"
                    )
                values = logits[row, :nodes].float().contiguous().numpy()
                document = {
                    "context": known[:prefix],
                    "tokens": tokens,
                    "parents": tree.parents[row, :nodes].tolist(),
                    "logits": base64.b64encode(values.astype("<f4").tobytes()).decode(),
                    "path": walk.path[row, : accepted[row] + 1].tolist(),
                }
                file.write(json.dumps(document) + "\n")
