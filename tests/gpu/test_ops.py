"""Every op on a GPU against the same op on the CPU: identical integers, in a CUDA graph too."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay.tree.mask import mask_numel
from tests.gpu.conftest import on_gpu
from tests.gpu.graphs import no_synchronisation, recorded
from tests.gpu.op_cases import CASES, OPS, Case, candidates, tree
from tests.overlay.torch_moves import Pool, indices, like, pool
from tests.overlay.trees import seeded

DEVICES = [pytest.param("cpu", id="cpu"), on_gpu("cuda", id="cuda")]
every_case = pytest.mark.parametrize("name", CASES)
on_each_device = pytest.mark.parametrize("device", DEVICES)


def copy_of(given: Any, device: str) -> Any:
    """A copy on `device` with the strides of `given`."""
    size = sum((n - 1) * s for n, s in zip(given.shape, given.stride(), strict=True)) + 1
    room = torch.zeros(max(size, 1), dtype=given.dtype, device=device)
    view = room.as_strided(given.shape, given.stride())
    return view.copy_(given) if given.numel() else view


def spread(given: Any, device: str) -> Any:
    """A copy in which no dimension is dense; what lies between reads as nonsense."""
    room = torch.full([2 * n for n in given.shape], 77, device=device).to(given.dtype)
    view = room[tuple(slice(1, None, 2) for _ in given.shape)]
    return view.copy_(given)


def shifted(given: Any, device: str) -> Any:
    """A contiguous copy that starts one element into its storage."""
    room = torch.zeros(given.numel() + 1, dtype=given.dtype, device=device)
    return room[1:].view(given.shape).copy_(given)


def answer(case: Case, seed: int, batch: int) -> Sequence[Any]:
    """The CPU op's outputs."""
    return [t.clone() for t in case.call(*case.inputs(seed, batch))]


def as_bytes(given: Any) -> Any:
    return given.cpu().contiguous().view(-1).view(torch.uint8)


def compare(case: Case, found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), i
        if i in case.close:
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(as_bytes(mine), as_bytes(theirs)), i


def poison(device: str) -> None:
    """Leaves nonsense in what the allocator hands out next."""
    for size in (1 << 6, 1 << 10, 1 << 14, 1 << 18, 1 << 22):
        kept = [torch.full((size,), 0x5A, dtype=torch.uint8, device=device) for _ in range(8)]
        del kept


@on_each_device
@every_case
def test_equals_the_cpu(name: str, device: str) -> None:
    case = CASES[name]
    for seed in range(4):
        given = [copy_of(t, device) for t in case.inputs(seed, case.batch)]
        poison(device)
        compare(case, case.call(*given), answer(case, seed, case.batch))


@on_each_device
@every_case
def test_any_strides_and_alignment(name: str, device: str) -> None:
    case = CASES[name]
    for seed in range(2):
        given = case.inputs(seed, case.batch)
        moved = [
            spread(t, device) if i in case.strided else copy_of(t, device)
            for i, t in enumerate(given)
        ]
        compare(case, case.call(*moved), answer(case, seed, case.batch))
        given = [
            shifted(t, device) if t.is_contiguous() else copy_of(t, device)
            for t in case.inputs(seed, case.batch)
        ]
        compare(case, case.call(*given), answer(case, seed, case.batch))


@on_each_device
@every_case
def test_a_batch_of_nothing_and_of_one(name: str, device: str) -> None:
    case = CASES[name]
    for batch in (0, 1):
        given = [copy_of(t, device) for t in case.inputs(2, batch)]
        compare(case, case.call(*given), answer(case, 2, batch))


@on_each_device
@every_case
def test_in_a_graph(name: str, device: str) -> None:
    """Replays with other inputs copied in; outputs are spoilt before each."""
    case = CASES[name]
    given = [copy_of(t, device) for t in case.inputs(0, case.batch)]
    replay = recorded(device, lambda: case.call(*given))
    outputs: Sequence[Any] = ()
    for seed in (1, 2, 3):
        for output in outputs:
            output.view(torch.uint8).fill_(0x5A) if output.is_contiguous() else None
        for tensor, value in zip(given, case.inputs(seed, case.batch), strict=True):
            tensor.copy_(value)
        outputs = replay()
        compare(case, outputs, answer(case, seed, case.batch))


@on_each_device
@every_case
def test_waits_for_nothing(name: str, device: str) -> None:
    case = CASES[name]
    given = [copy_of(t, device) for t in case.inputs(1, case.batch)]
    case.call(*given)  # loads what is loaded once
    with no_synchronisation(device):
        case.call(*given)


@on_each_device
def test_a_faulty_request_is_a_root_alone(device: str) -> None:
    """A device cannot raise: counts = -fault, and the neighbours are unharmed."""
    logprobs, ids = candidates(0, 3, 5, 8)
    good = OPS.build_tree(logprobs, ids, 20)
    for value, code in ((float("nan"), 1), (0.5, 2), (-1e-6, 3)):
        bad = logprobs.clone()
        bad[1, 2, 4] = value
        if device == "cpu":
            with pytest.raises(ValueError, match=r"logprobs\[1, 2, 4\]"):
                OPS.build_tree(bad, ids, 20)
            continue
        built = [t.cpu() for t in OPS.build_tree(bad.to(device), ids.to(device), 20)]
        for mine, theirs in zip(built, good, strict=True):
            assert torch.equal(mine[::2], theirs[::2])
        assert built[6][1] == -(4 * (2 * 8 + 4) + code)
        assert built[0][1].tolist() == [-1] + [0] * 20
        assert not built[8][1]


@on_each_device
def test_unusable_rows_have_no_candidates(device: str) -> None:
    given = torch.randn(5, 900, generator=torch.Generator().manual_seed(3))
    given[0, 7], given[1, 7], given[2] = float("nan"), float("inf"), float("-inf")
    given[3, 5:] = float("-inf")
    logprobs, ids = (t.cpu() for t in OPS.rank_tokens(given.to(device), 8, 0))
    assert torch.equal(logprobs[:3], torch.full((3, 8), float("-inf")))
    assert torch.equal(ids[:3], torch.zeros(3, 8, dtype=torch.int64))
    assert torch.isfinite(logprobs[3]).tolist() == [True] * 5 + [False] * 3
    assert torch.isfinite(logprobs[4]).all()


@on_each_device
def test_a_nan_is_the_largest_logit_of_a_node(device: str) -> None:
    """As in torch.argmax, which the verify of the plain chain uses."""
    built = tree(0, 2, 8)
    scores = torch.zeros(2, 9, 400)
    scores[:, :, int(built[0][0, 1])] = float("nan")
    found = OPS.walk_greedy(built[0].to(device), built[1].to(device), scores.to(device), 8)
    wanted = OPS.walk_tree(built[0], built[1], scores.argmax(-1), 8)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine.cpu(), theirs)
    assert found[1][0] >= 1


@on_each_device
def test_a_mask_that_is_too_small(device: str) -> None:
    """The CPU refuses it; a device, which cannot, writes nothing beyond it."""
    built = tree(0, 2, 8)
    prefixes = torch.tensor([30, 70])
    exact = mask_numel(100, 2, 9)
    room = torch.full((exact + 64,), False, device=device)
    positions = torch.zeros(2, 9, dtype=torch.int64, device=device)
    given = [t.to(device) for t in (built[5], built[2], prefixes)]
    for short in (1, 5, 200, exact):
        room.fill_(False)
        mask = room[: exact - short]
        if device == "cpu":
            with pytest.raises((RuntimeError, ValueError), match="mask"):
                OPS.place_tree(*given, mask, positions)
        else:
            OPS.place_tree(*given, mask, positions)
        assert not room[exact - short :].any()


@on_each_device
def test_moves_that_do_not_exist(device: str) -> None:
    """The CPU refuses them; a device, which cannot, moves nothing."""
    slots, path = torch.arange(12).view(2, 6), torch.tensor([[0, 2, 3], [0, 3, 5]])
    accepted = torch.tensor([2, 2])
    buffer = torch.arange(44.0, device=device).view(11, 4)
    bad = {
        "slots": (torch.full_like(slots, 1 << 40), path, accepted),
        "path": (slots, torch.tensor([[0, 1 << 40, -1], [0, 9, 0]]), accepted),
        "accepted": (slots, path, torch.tensor([-(1 << 32) + 3, -1])),
    }
    before = buffer.clone()
    for name, given in bad.items():
        arguments = [t.to(device) for t in given]
        if device == "cpu":
            with pytest.raises(ValueError, match=name):
                OPS.compact_kv([buffer], *arguments)
        else:
            OPS.compact_kv([buffer], *arguments)
        assert torch.equal(buffer, before), name


@on_each_device
def test_nothing_around_the_rows_is_touched(device: str) -> None:
    given = indices(seeded(5), 3, 17, 9)
    pools = [
        pool(given.pool_slots, n, 5, device) for n in ("fp16 in padded rows", "fp8 misaligned")
    ]
    on_cpu = [like(Pool(p.storage.cpu(), p.rows)) for p in pools]
    OPS.compact_kv([p.rows for p in on_cpu], given.slots, given.path, given.accepted)
    there = given.to(device)
    OPS.compact_kv([p.rows for p in pools], there.slots, there.path, there.accepted)
    for mine, theirs in zip(pools, on_cpu, strict=True):
        assert torch.equal(mine.storage.cpu(), theirs.storage)


@on_each_device
def test_bad_arguments_are_refused_alike(device: str) -> None:
    """Before any launch, with one text on every device."""
    logprobs, ids = (t.to(device) for t in candidates(0, 2, 3, 4))
    path = torch.tensor([[0, 1]] * 2, device=device)
    refused = [
        (OPS.rank_tokens, (logprobs[0].double(), 2), "logits"),
        (OPS.rank_tokens, (logprobs[0], 65), r"k must be 1\.\.64, got 65"),
        (OPS.build_tree, (logprobs.half(), ids, 4), "logprobs must be Float, got Half"),
        (OPS.build_tree, (logprobs, ids, 1025), r"budget must be 1\.\.1024, got 1025"),
        (OPS.walk_tree, (ids[0], ids[0], ids[0], 9), "columns"),
        (OPS.gather_path, (logprobs[0].repeat(7, 1), path), r"multiple of 2"),
        (OPS.compact_kv, ([logprobs], path.int(), path, path[:, 0]), "slots must be Long, got Int"),
    ]
    for op, arguments, text in refused:
        with pytest.raises(RuntimeError, match=text):
            op(*arguments)


@on_each_device
def test_every_half_is_read_as_its_value(device: str) -> None:
    """The conversion on the device is an instruction, elsewhere code: as rows of one token."""
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.float16)
    keys = OPS.rank_shard(halves.view(-1, 1).to(device), 1, 0)[:, 0].cpu()
    same = OPS.rank_shard(halves.view(-1, 1).float(), 1, 0)[:, 0]
    assert torch.equal(keys, same)
    absent = torch.isnan(halves) | (halves == float("-inf"))
    assert torch.equal(keys == 0, absent)
