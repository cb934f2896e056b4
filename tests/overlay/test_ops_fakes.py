"""Every op has a fake that gives what the op gives: shape, dtype, strides, and for dynamic shapes."""

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

BATCH, LEVELS, RANKS, BUDGET, VOCABULARY = 3, 5, 4, 70, 50
WIDTH, COLUMNS = BUDGET + 1, LEVELS + 1


def logits(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def draft() -> tuple[Any, Any]:
    top = torch.log_softmax(logits(BATCH, LEVELS, VOCABULARY), -1).topk(RANKS, -1)
    return top.values, top.indices


def built() -> list[Any]:
    return list(ops.build_tree(*draft(), BUDGET))


def path() -> tuple[Any, Any]:
    """Of walks that accept nothing."""
    return torch.arange(COLUMNS).repeat(BATCH, 1), torch.zeros(BATCH, dtype=torch.int64)


def placed() -> tuple[Any, ...]:
    _, _, depths, _, _, ancestors, *_ = built()
    prefixes = torch.tensor([4, 0, 9])
    mask = torch.empty(WIDTH * (13 + BATCH * WIDTH), dtype=torch.bool)
    return ancestors, depths, prefixes, mask, torch.empty_like(depths)


def counted() -> tuple[Any, ...]:
    _, parents, _, first_child, _, _, counts, _, exact = built()
    return parents, first_child, counts, exact, *path(), torch.zeros(6, dtype=torch.int64)


def compacted() -> tuple[Any, ...]:
    slots = torch.arange(BATCH * WIDTH).view(BATCH, WIDTH)
    return [logits(BATCH * WIDTH, 2, 8), logits(BATCH * WIDTH, 3)], slots, *path()


# The op, the arguments that are tensors (or lists of them), and the numbers after those.
CASES: dict[str, tuple[Callable[[], tuple[Any, ...]], tuple[int, ...]]] = {
    "rank_tokens": (lambda: (logits(6, VOCABULARY),), (RANKS, 3)),
    "rank_shard": (lambda: (logits(6, VOCABULARY).bfloat16(),), (RANKS,)),
    "merge_shards": (
        lambda: (torch.stack([ops.rank_shard(logits(6, VOCABULARY), 4, s * 50) for s in (0, 1)]),),
        (5,),
    ),
    "build_tree": (draft, (BUDGET,)),
    "build_tree_out": (lambda: (*draft(), None, None, *built()), ()),
    "place_tree": (placed, ()),
    "walk_tree": (lambda: (*built()[:2], built()[0]), (COLUMNS,)),
    "walk_greedy": (lambda: (*built()[:2], logits(BATCH, WIDTH, VOCABULARY)), (COLUMNS,)),
    "count_round": (counted, ()),
    "compact_kv": (compacted, ()),
    "gather_path": (lambda: (logits(BATCH * WIDTH, 7).half(), path()[0]), ()),
}


def outputs(result: Any) -> list[Any]:
    if result is None:
        return []
    return list(result) if isinstance(result, tuple | list) else [result]


def described(result: Any) -> list[tuple[Any, ...]]:
    return [(tuple(t.shape), t.dtype, tuple(t.stride()), t.device.type) for t in outputs(result)]


def to_fake(mode: Any, argument: Any) -> Any:
    if isinstance(argument, list):
        return [mode.from_tensor(tensor) for tensor in argument]
    return None if argument is None else mode.from_tensor(argument)


def test_every_op_is_exported_and_has_a_case() -> None:
    names = {
        name.removeprefix("ddtree::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("ddtree::")
    }
    public = {name for name in names if not name.startswith("_")}
    assert public == set(CASES)
    for name in public:
        assert getattr(ops, name) is getattr(torch.ops.ddtree, name)
        assert name in ops.__all__
        assert f"\n{name}(" in ops.__doc__


@pytest.mark.parametrize("name", CASES)
def test_a_fake_agrees_with_the_op(name: str) -> None:
    from torch._subclasses.fake_tensor import (  # type: ignore[import-not-found, unused-ignore]
        FakeTensorMode,
    )

    tensors, numbers = CASES[name][0](), CASES[name][1]
    with FakeTensorMode() as mode:
        faked = getattr(ops, name)(*(to_fake(mode, tensor) for tensor in tensors), *numbers)
        traced = described(faked)
    assert traced == described(getattr(ops, name)(*tensors, *numbers))


@pytest.mark.parametrize("name", CASES)
def test_a_fake_follows_dynamic_shapes(name: str) -> None:
    """Traced with symbols for the sizes, then run: the graph gives what the op gives."""
    from torch.fx.experimental.proxy_tensor import (  # type: ignore[import-not-found, unused-ignore]
        make_fx,
    )

    op, numbers = getattr(ops, name), CASES[name][1]

    def call(*tensors: Any) -> list[Any]:
        return outputs(op(*tensors, *numbers))

    tensors = CASES[name][0]()
    graph = make_fx(call, tracing_mode="symbolic")(*tensors)
    assert any(f"ddtree.{name}" in str(node.target) for node in graph.graph.nodes)
    assert described(graph(*CASES[name][0]())) == described(call(*tensors))


def test_a_fake_of_cuda_tensors_needs_no_gpu() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        device = "cuda" if torch.version.cuda else "meta"
        made = ops.rank_tokens(torch.empty(6, VOCABULARY, device=device), RANKS)
    assert [tensor.device.type for tensor in made] == [device] * 2
