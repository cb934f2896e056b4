"""The flat tree mask against reachability by parents, laid out row by row in plain Python."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from torch._subclasses.fake_tensor import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    DataDependentOutputException,
    FakeTensorMode,
)

from ddtree_overlay import ops  # noqa: E402
from ddtree_overlay.tree.mask import full_mask, mask_numel, unpack_ancestors  # noqa: E402
from tests.overlay.torch_trees import (  # noqa: E402
    PROPERTY,
    arbitrary_trees,
    fake_device,
    op_draft,
    packed,
    reachable,
)
from tests.overlay.trees import seeded  # noqa: E402

RANDOM = st.randoms(use_true_random=False)
DEVICE = fake_device()


def flat(visible: Sequence[Sequence[Sequence[bool]]], prefixes: Sequence[int]) -> list[bool]:
    """Request after request, row after row: the prefix, then the row of the tree."""
    elements: list[bool] = []
    for rows, prefix in zip(visible, prefixes, strict=True):
        for row in rows:
            elements += [True] * prefix + list(row)
    return elements


def check(ancestors: Any, parents: list[list[int]], prefixes: list[int], slack: int) -> None:
    width = len(parents[0])
    visible = [reachable(row) for row in parents]
    assert unpack_ancestors(ancestors, width).tolist() == visible
    want = flat(visible, prefixes)
    assert mask_numel(sum(prefixes), len(parents), width) == len(want)
    bound = mask_numel(sum(prefixes) + slack, len(parents), width)
    for numel in (len(want), bound):
        mask = full_mask(ancestors, torch.tensor(prefixes), numel)
        assert (mask.dtype, tuple(mask.shape)) == (torch.bool, (numel,))
        assert mask.is_contiguous()
        assert mask.tolist() == want + [True] * (numel - len(want))


@PROPERTY
@given(RANDOM, st.data())
def test_equals_reachability_on_any_legal_tree(random_: Any, data: Any) -> None:
    trees = arbitrary_trees(random_)
    ancestors = torch.tensor([packed(reachable(row)) for row in trees.parents])
    prefixes = [data.draw(st.integers(0, 9)) for _ in trees.parents]
    check(ancestors, trees.parents, prefixes, data.draw(st.integers(0, 9)))


@pytest.mark.parametrize(
    ("batch", "levels", "ranks", "budget"),
    [
        pytest.param(1, 15, 16, 16, id="one request"),
        pytest.param(4, 15, 16, 63, id="one word, full"),
        pytest.param(4, 15, 16, 64, id="a second word"),
        pytest.param(2, 15, 64, 128, id="three words"),
        pytest.param(3, 7, 1, 7, id="one rank: the chain"),
        pytest.param(3, 15, 8, 5, id="budget below the block"),
        pytest.param(3, 1, 8, 8, id="one level"),
        pytest.param(3, 3, 3, 1, id="budget 1"),
        pytest.param(2, 2, 2, 70, id="mostly padding"),
    ],
)
def test_equals_reachability_on_built_trees(
    batch: int, levels: int, ranks: int, budget: int
) -> None:
    random_ = seeded(f"{batch} {levels} {ranks} {budget}")
    outputs = ops.build_tree(*op_draft(random_, batch, levels, ranks), budget)
    prefixes = [random_.randrange(300) for _ in range(batch)]
    check(outputs[5], outputs[1].tolist(), prefixes, 50)


def test_one_rank_is_the_causal_mask() -> None:
    ancestors = ops.build_tree(torch.full((2, 6, 1), -0.5), torch.zeros(2, 6, 1).long(), 6)[5]
    assert unpack_ancestors(ancestors, 7).tolist() == [torch.ones(7, 7).tril().bool().tolist()] * 2


def test_the_addresses_that_attention_kernels_read() -> None:
    """As triton's extend kernel and FlashInfer's plan compute them from lengths alone."""
    random_ = seeded("addresses")
    trees = arbitrary_trees(random_)
    while len(trees.parents) < 3:
        trees = arbitrary_trees(random_)
    batch, width = len(trees.parents), trees.width
    prefixes = torch.tensor([random_.randrange(1, 40) for _ in range(batch)])
    ancestors = torch.tensor([packed(reachable(row)) for row in trees.parents])
    mask = full_mask(ancestors, prefixes, mask_numel(int(prefixes.sum()), batch, width))
    starts = [0, *(width * (prefixes + width)).cumsum(0).tolist()]
    assert starts[-1] == mask.numel()
    for request, parents in enumerate(trees.parents):
        prefix = int(prefixes[request])
        for node, row in enumerate(reachable(parents)):
            at = starts[request] + node * (prefix + width)
            assert mask[at : at + prefix].all()
            assert mask[at + prefix : at + prefix + width].tolist() == row


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_prefix_lengths_of_either_dtype(dtype: Any) -> None:
    ancestors = torch.tensor([[[1], [3]], [[1], [2]]])
    mask = full_mask(ancestors, torch.tensor([1, 0], dtype=dtype), 12)
    assert mask.int().tolist() == [1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1]


@PROPERTY
@given(RANDOM, st.integers(1, 5))
def test_a_short_mask_is_an_error(random_: Any, missing: int) -> None:
    """Never a mask that a backend would have to pad: what it padded would be visible."""
    trees = arbitrary_trees(random_)
    ancestors = torch.tensor([packed(reachable(row)) for row in trees.parents])
    prefixes = torch.tensor([random_.randrange(9) for _ in trees.parents])
    numel = mask_numel(int(prefixes.sum()), len(trees.parents), trees.width)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        full_mask(ancestors, prefixes, max(numel - missing, 0))


def test_empty_batch() -> None:
    ancestors = torch.empty(0, 9, 1, dtype=torch.int64)
    lengths = torch.empty(0, dtype=torch.int64)
    assert unpack_ancestors(ancestors, 9).shape == (0, 9, 9)
    assert mask_numel(0, 0, 9) == 0
    assert full_mask(ancestors, lengths, 0).shape == (0,)
    assert full_mask(ancestors, lengths, 7).tolist() == [True] * 7


@pytest.mark.parametrize(
    ("ancestors", "lengths", "text"),
    [
        (torch.zeros(2, 3, 1, dtype=torch.int32), 2, r"ancestors is torch.int32 \[2, 3, 1\]"),
        (torch.zeros(2, 3, 2, dtype=torch.int64), 2, r"needs int64 \[batch, 3, 1\]"),
        (torch.zeros(2, 65, 1, dtype=torch.int64), 2, r"needs int64 \[batch, 65, 2\]"),
        (torch.zeros(2, 3, dtype=torch.int64), 2, r"ancestors is torch.int64 \[2, 3\]"),
        (torch.zeros(2, 3, 1, dtype=torch.int64), 1, r"prefix_lens is \[1\] for a batch of 2"),
    ],
)
def test_what_does_not_fit_is_refused(ancestors: Any, lengths: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        full_mask(ancestors, torch.zeros(lengths, dtype=torch.int64), 1000)


def test_no_host_sync() -> None:
    """Fake tensors have no data: what needs a value raises. No GPU is needed."""
    with FakeTensorMode():
        ancestors = torch.empty(3, 9, 1, dtype=torch.int64, device=DEVICE)
        lengths = torch.empty(3, dtype=torch.int64, device=DEVICE)
        mask = full_mask(ancestors, lengths, 5000)
        assert (mask.device.type, tuple(mask.shape)) == (DEVICE, (5000,))
        with pytest.raises(DataDependentOutputException):
            full_mask(ancestors, lengths, mask_numel(int(lengths.sum()), 3, 9))
