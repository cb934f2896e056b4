"""Every op on a tree: PyTorch's own checker, an empty batch, and arguments that do not fit. Runs where
torch and the wheel are: inside the image (an image test does it)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from ddtree_overlay import ops  # noqa: E402
from ddtree_overlay.tree.mask import mask_numel  # noqa: E402
from tests.overlay.torch_ops import INTS, buffers, draft, tree  # noqa: E402


def calls() -> dict[str, tuple[Any, ...]]:
    """Legal arguments of every op."""
    tokens, parents, depths, first_child, _, ancestors, counts, _, exact = tree()
    path, accepted = torch.arange(5).repeat(3, 1), torch.zeros(3, dtype=INTS)
    mask = torch.zeros(mask_numel(9, 3, 13), dtype=torch.bool)
    prefixes = torch.tensor([4, 0, 5])
    return {
        "build_tree": (*draft(3, 4, 6), 12, torch.tensor([3, 0, 12]), torch.arange(3)),
        "build_tree_out": (*draft(3, 4, 6), None, torch.arange(3), *buffers(3, 13, 0)),
        "place_tree": (ancestors, depths, prefixes, mask, torch.zeros_like(depths)),
        "walk_tree": (tokens, parents, tokens.clone(), 5),
        "walk_greedy": (tokens, parents, torch.zeros(3, 13, 7), 5),
        "count_round": (parents, first_child, counts, exact, path, accepted, torch.zeros(6).long()),
    }


@pytest.mark.parametrize("op", calls())
def test_opcheck(op: str) -> None:
    """Schema, mutation, fake, and the dispatch of functional transforms, as PyTorch sees them."""
    torch.library.opcheck(getattr(torch.ops.ddtree, op).default, calls()[op])


@pytest.mark.parametrize("op", calls())
def test_an_empty_batch(op: str) -> None:
    arguments = [
        each[:0] if isinstance(each, torch.Tensor) and each.dim() and each.shape[0] == 3 else each
        for each in calls()[op]
    ]
    result = getattr(ops, op)(*arguments)
    for output in result or ():
        assert output.shape[0] == 0
    if op == "place_tree":
        assert arguments[3].all()
    if op == "count_round":
        assert not arguments[6].any()


BAD: dict[str, list[tuple[int, Callable[[Any], Any], str]]] = {
    "build_tree": [
        (3, lambda x: x.int(), "budgets must be Long, got Int"),
        (3, lambda x: x[:2], r"budgets must have shape \[3\], got \[2\]"),
        (4, lambda x: x.float(), "roots must be Long, got Float"),
        (4, lambda x: x[None], r"roots must have shape \[3\], got \[1, 3\]"),
    ],
    "build_tree_out": [
        (4, lambda x: x[0], r"tokens must have shape \[batch, budget \+ 1\], got \[13\]"),
        (4, lambda x: x[:, :1], r"budget must be 1..1024, got 0"),
        (5, lambda x: x.int(), "parents must be Long, got Int"),
        (5, lambda x: x[:2], r"parents must have shape \[3, 13\], got \[2, 13\]"),
        (6, lambda x: x.t().contiguous().t(), "depths must be contiguous, got strides"),
        (7, lambda x: x[:, :-1], r"first_child must have shape \[3, 13\], got \[3, 12\]"),
        (8, lambda x: x.bool(), "next_sibling must be Long, got Bool"),
        (
            9,
            lambda x: x.repeat(1, 1, 2),
            r"ancestors must have shape \[3, 13, 1\], got \[3, 13, 2\]",
        ),
        (10, lambda x: x[:, None], r"counts must have shape \[3\], got \[3, 1\]"),
        (11, lambda x: x.double(), "scores must be Float, got Double"),
        (12, lambda x: x.byte(), "exact must be Bool, got Byte"),
    ],
    "place_tree": [
        (0, lambda x: x.int(), "ancestors must be Long, got Int"),
        (0, lambda x: x[0], r"ancestors must have shape \[batch, width, words\], got \[13, 1\]"),
        (
            0,
            lambda x: x.repeat(1, 1, 2),
            r"ancestors must have shape \[3, 13, 1\], got \[3, 13, 2\]",
        ),
        (0, lambda x: x.repeat(1, 100, 1), r"width .* must be 1..1025, got 1300"),
        (0, lambda x: x.repeat(2000, 1, 1), r"batch .* must be 0..4096, got 6000"),
        (1, lambda x: x[:, 1:], r"depths must have shape \[3, 13\], got \[3, 12\]"),
        (2, lambda x: x.short(), "prefix_lens must be Int or Long, got Short"),
        (2, lambda x: x[:2], r"prefix_lens must have shape \[3\], got \[2\]"),
        (3, lambda x: x.byte(), "mask must be Bool, got Byte"),
        (3, lambda x: x[None], r"mask must have shape \[numel\], got \[1, 624\]"),
        (3, lambda x: x[::2], "mask must be contiguous, got strides"),
        (
            3,
            lambda x: x[:1].expand(2**31),
            "elements of mask must be 0..2147483647, got 2147483648",
        ),
        (4, lambda x: x.int(), "positions must be Long, got Int"),
        (4, lambda x: x.t().contiguous().t(), "positions must be contiguous, got strides"),
    ],
    "walk_tree": [
        (0, lambda x: x.int(), "tokens must be Long, got Int"),
        (0, lambda x: x[0], r"tokens must have shape \[batch, width\], got \[13\]"),
        (1, lambda x: x[:, 1:], r"parents must have shape \[3, 13\], got \[3, 12\]"),
        (2, lambda x: x.float(), "target_ids must be Long, got Float"),
        (2, lambda x: x[:2], r"target_ids must have shape \[3, 13\], got \[2, 13\]"),
        (3, lambda _: 0, "columns must be 1..13, got 0"),
        (3, lambda _: 14, "columns must be 1..13, got 14"),
    ],
    "walk_greedy": [
        (1, lambda x: x.bool(), "parents must be Long, got Bool"),
        (2, lambda x: x.double(), "logits must be BFloat16, Half or Float, got Double"),
        (2, lambda x: x[0], r"logits must have shape \[batch, width, vocabulary\], got \[13, 7\]"),
        (2, lambda x: x[:2], r"logits must have shape \[3, 13, 7\], got \[2, 13, 7\]"),
        (2, lambda x: x[:, :, :0], "vocabulary .* must be 1..1048576, got 0"),
        (2, lambda x: x[:, :, :1].expand(3, 13, 2**21), "vocabulary .* got 2097152"),
        (2, lambda x: x[:, :, ::2], r"logits must be contiguous in the vocabulary \(stride 1\)"),
        (3, lambda _: -(2**40), "columns must be 1..13, got -1099511627776"),
    ],
    "count_round": [
        (0, lambda x: x.int(), "parents must be Long, got Int"),
        (0, lambda x: x[0], r"parents must have shape \[batch, width\], got \[13\]"),
        (1, lambda x: x[:, 1:], r"first_child must have shape \[3, 13\], got \[3, 12\]"),
        (2, lambda x: x[:2], r"counts must have shape \[3\], got \[2\]"),
        (3, lambda x: x.long(), "exact must be Bool, got Long"),
        (4, lambda x: x[:, :0], "columns .* must be 1..13, got 0"),
        (4, lambda x: x[:2], r"path must have shape \[3, 5\], got \[2, 5\]"),
        (5, lambda x: x[:2], r"accepted must have shape \[3\], got \[2\]"),
        (6, lambda x: x[:5], r"sums must have shape \[6\], got \[5\]"),
        (6, lambda x: x.repeat(2)[::2], "sums must be contiguous, got strides"),
    ],
}


@pytest.mark.parametrize(
    ("op", "at", "change", "text"),
    [
        pytest.param(op, *case, id=f"{op}: {case[2][:50]}")
        for op, cases in BAD.items()
        for case in cases
    ],
)
def test_bad_arguments_are_refused(
    op: str, at: int, change: Callable[[Any], Any], text: str
) -> None:
    arguments = list(calls()[op])
    arguments[at] = change(arguments[at])
    with pytest.raises(RuntimeError, match=f"ddtree::{op}: {text}"):
        getattr(ops, op)(*arguments)


@pytest.mark.parametrize("op", calls())
def test_mixed_devices_are_refused_by_name(op: str) -> None:
    """A meta tensor in place of each argument in turn; the key reaches the implementation."""
    from torch._C import (  # type: ignore[import-not-found, unused-ignore]
        DispatchKey,
        DispatchKeySet,
    )

    call = getattr(torch.ops.ddtree, op).default
    names = [argument.name for argument in call._schema.arguments]
    for key in (DispatchKey.CPU, DispatchKey.CUDA):
        for at, value in enumerate(calls()[op]):
            if not isinstance(value, torch.Tensor):
                continue
            arguments = list(calls()[op])
            arguments[at] = value.to("meta")
            with pytest.raises(
                RuntimeError, match=f"ddtree::{op}: {names[at]} must be on .* got meta"
            ):
                call.redispatch(DispatchKeySet(key), *arguments)
