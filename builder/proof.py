"""Run the image once before it gets its name: what it says of itself, and one op for real."""

from __future__ import annotations

import json
from typing import Any

from builder.engine import Engine
from builder.errors import ProofFailedError
from builder.pins import Target

# The op against the reference that the wheel carries: proves that the extension loads into this
# torch and computes, not only that files are there.
_OP_CHECK = """
import json, torch
import ddtree_overlay.ops
from ddtree_overlay.tree.reference import build_tree as reference
generator = torch.Generator().manual_seed(7)
logits = torch.randn(2, 5, 40, generator=generator)
top = torch.log_softmax(logits, -1).topk(8, -1)
tree = torch.ops.ddtree.build_tree(top.values.contiguous(), top.indices.contiguous(), 12)
for row in range(2):
    want = reference(top.values[row].tolist(), top.indices[row].tolist(), 12)
    assert tree[0][row].tolist() == list(want.tokens), (tree[0][row].tolist(), want.tokens)
    assert tree[1][row].tolist() == list(want.parents), (tree[1][row].tolist(), want.parents)
print(json.dumps({"op": "ddtree::build_tree", "torch": torch.__version__, "equal": True}))
"""


def prove(engine: Engine, target: Target, reference: str, build_id: str) -> dict[str, Any]:
    """`version --json` agrees with the build, and the op equals its reference.

    Raises ProofFailedError with what the container printed.
    """
    version = json.loads(_run(engine, reference, ["version", "--json"]))
    expected = {
        "variant": target.variant,
        "stand_in": target.stand_in,
        "build_id": build_id,
    }
    for key, want in expected.items():
        if version.get(key) != want:
            raise ProofFailedError(
                f"`version` says {key} = {version.get(key)!r}, built was {want!r}",
                "the overlay and the manifest disagree; see `version --json`",
            )
    op = json.loads(_run(engine, reference, ["python", "-c", _OP_CHECK]).splitlines()[-1])
    return {"version": version, "op": op}


def _run(engine: Engine, reference: str, argv: list[str]) -> str:
    container = engine.client.containers.create(reference, argv, network_mode="none")
    try:
        container.start()
        status = int(container.wait()["StatusCode"])
        out = bytes(container.logs(stdout=True, stderr=False)).decode(errors="replace")
        err = bytes(container.logs(stdout=False, stderr=True)).decode(errors="replace")
    finally:  # on Ctrl-C as well: a leftover container would also hold the candidate image
        container.remove(force=True)
    if status != 0:
        text = err.strip().splitlines()
        last = text[-1] if text else "no output"
        raise ProofFailedError(
            f"`docker run IMAGE {argv[0]}` exited with {status}: {last}",
            "run the same command by hand for the whole output",
        )
    return out
