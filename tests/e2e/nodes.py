"""Each tree node's logits against its path run as a plain chain: `nodes.py TARGET NODES OUT.json`.

Runs inside the image. TARGET is the model's folder, NODES the record that
`ddtree_overlay.sglang.cpu_proof.observer` wrote. The reference is Transformers' own forward over
context + path to the node, without a cache, a tree or a mask: nothing of SGLang. fp32 on both sides.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# fp32 logits of order 10 after five layers, summed in another order: differences of a few 1e-5.
TOLERANCE = 2e-3


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Nodes from the root to `node`, both included."""
    found = [node]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return found[::-1]


def leaves(parents: Sequence[int]) -> list[int]:
    """Nodes without a child: the chains to them pass every node."""
    return sorted(set(range(len(parents))) - set(parents))


def compare(model: Any, document: dict[str, Any]) -> dict[str, Any]:
    """The greatest difference over a tree's nodes, and the argmaxes that differ by more."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    context, tokens, parents = document["context"], document["tokens"], document["parents"]
    raw = bytearray(base64.b64decode(document["logits"]))
    found = torch.frombuffer(raw, dtype=torch.float32).view(len(tokens), -1)
    seen: set[int] = set()
    worst, flips, branching = 0.0, 0, len(leaves(parents)) > 1
    for leaf in leaves(parents):
        path = path_to(leaf, parents)
        chain = torch.tensor([context + [tokens[node] for node in path]])
        with torch.inference_mode():
            expected = model(input_ids=chain, use_cache=False).logits[0, len(context) :]
        for node, row in zip(path, expected, strict=True):
            if node in seen:
                continue
            seen.add(node)
            worst = max(worst, float((found[node] - row).abs().max()))
            best, other = int(row.argmax()), int(found[node].argmax())
            flips += best != other and float(row[best] - row[other]) > TOLERANCE
    assert len(seen) == len(tokens)
    return {"nodes": len(seen), "worst": worst, "flips": flips, "branching": branching}


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    target, record, out = map(Path, sys.argv[1:4])
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    lines = record.read_text("utf-8").splitlines()
    found = [compare(model, json.loads(line)) for line in lines]
    summary = {
        "trees": len(found),
        "branching_trees": sum(one["branching"] for one in found),
        "nodes": sum(one["nodes"] for one in found),
        "worst": max(one["worst"] for one in found),
        "flips": sum(one["flips"] for one in found),
        "tolerance": TOLERANCE,
    }
    out.write_text(json.dumps(summary), "utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
