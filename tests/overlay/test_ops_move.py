"""`ddtree::compact_kv` and `ddtree::gather_path` as an installed wheel gives them, on the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

import ddtree_overlay.ops  # noqa: E402, F401  (registers the ops)
from tests.overlay.torch_moves import LAYOUTS, indices, like, move, pool, walk_path  # noqa: E402
from tests.overlay.trees import seeded  # noqa: E402

OPS = torch.ops.ddtree


def moves_as_expected(layouts: list[str], seed: int, batch: int, width: int, columns: int) -> bool:
    """Whether every byte of every pool is as the plain move leaves it; also whether any moved."""
    random_ = seeded(seed)
    given = indices(random_, batch, width, columns)
    pools = [pool(given.pool_slots, name, seed + i) for i, name in enumerate(layouts)]
    before = [like(p) for p in pools]
    expected = move(pools, given)
    kept = [t.clone() for t in (given.slots, given.path, given.accepted)]
    OPS.compact_kv([p.rows for p in pools], given.slots, given.path, given.accepted)
    for name, found, wanted in zip(layouts, pools, expected, strict=True):
        assert torch.equal(found.storage, wanted.storage), name
    assert all(map(torch.equal, kept, (given.slots, given.path, given.accepted)))
    return any(not torch.equal(a.storage, b.storage) for a, b in zip(before, pools, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout(layout: str) -> None:
    moved = [moves_as_expected([layout], seed, 3, 17, 8) for seed in range(20)]
    assert any(moved)


def test_all_layouts_in_one_call() -> None:
    moved = [moves_as_expected(list(LAYOUTS), seed, 2, 33, 16) for seed in range(20)]
    assert any(moved)


@pytest.mark.parametrize("count", [159, 160, 161, 330])
def test_more_buffers_than_a_launch_takes(count: int) -> None:
    assert moves_as_expected(["bf16 heads", "uint8 scales"] * (count // 2 + 1), 4, 1, 9, 5)


@pytest.mark.parametrize(("width", "columns"), [(1, 1), (2, 1), (2, 2), (65, 32), (257, 16)])
def test_shapes(width: int, columns: int) -> None:
    moved = [moves_as_expected(["bf16 heads"], seed, 4, width, columns) for seed in range(5)]
    assert any(moved) == (width > 2 and columns > 1)


def test_strided_indices() -> None:
    given = indices(seeded(1), 3, 9, 5)
    pools = [pool(given.pool_slots, "fp16 misaligned", 1)]
    expected = move(pools, given)
    OPS.compact_kv(
        [pools[0].rows],
        given.slots.T.contiguous().T,
        torch.stack([given.path, given.path], -1)[..., 0],
        torch.stack([given.accepted, given.accepted], 1)[:, 1],
    )
    assert torch.equal(pools[0].storage, expected[0].storage)


def test_nothing_to_move() -> None:
    slots, path = torch.arange(6).view(1, 6), torch.tensor([[0, 4, 5]])
    none, two = torch.tensor([0]), torch.tensor([2])
    buffer = torch.arange(6.0)
    OPS.compact_kv([], slots, path, two)
    OPS.compact_kv([buffer], slots, path, none)
    OPS.compact_kv([buffer], slots[:0], path[:0], two[:0])
    OPS.compact_kv([buffer], torch.zeros_like(slots), path, two)  # a padded request of a graph
    OPS.compact_kv([torch.empty(2, 0)], slots, path, two)
    assert torch.equal(buffer, torch.arange(6.0))
    OPS.compact_kv([buffer, torch.empty(2, 0)], slots, path, two)
    assert torch.equal(buffer, torch.tensor([0.0, 4.0, 5.0, 3.0, 4.0, 5.0]))


def test_columns_beyond_the_accepted_are_not_read() -> None:
    buffer = torch.arange(6.0)
    path = torch.tensor([[0, 3, -7, 99]])
    OPS.compact_kv([buffer], torch.arange(6).view(1, 6), path, torch.tensor([1]))
    assert torch.equal(buffer, torch.tensor([0.0, 3.0, 2.0, 3.0, 4.0, 5.0]))


def _bad_moves() -> dict[str, tuple[dict[str, Any], Any, str]]:
    slots, path = torch.arange(12).view(2, 6), torch.tensor([[0, 2, 3]] * 2)
    far = slots.clone()
    far[1, 3] = 12
    negative = slots.clone()
    negative[0, 1] = -4
    buffer = torch.zeros(12, 4)
    return {
        "int32 slots": ({"slots": slots.int()}, RuntimeError, "slots must be Long, got Int"),
        "int32 path": ({"path": path.int()}, RuntimeError, "path must be Long, got Int"),
        "bool counts": (
            {"accepted": torch.tensor([True, True])},
            RuntimeError,
            "accepted must be Long, got Bool",
        ),
        "flat slots": (
            {"slots": slots.view(-1)},
            RuntimeError,
            r"slots must have shape \[batch, width\], got \[12\]",
        ),
        "flat path": (
            {"path": path.view(-1)},
            RuntimeError,
            r"path must have shape \[batch, columns\], got \[6\]",
        ),
        "another batch": (
            {"path": path[:1]},
            RuntimeError,
            r"path must have shape \[2, 3\], got \[1, 3\]",
        ),
        "another count": (
            {"accepted": torch.tensor([2])},
            RuntimeError,
            r"accepted must have shape \[2\], got \[1\]",
        ),
        "no columns": ({"path": path[:, :0]}, RuntimeError, "columns .* must be 1..6, got 0"),
        "wide path": (
            {"path": torch.arange(7).expand(2, 7)},
            RuntimeError,
            "columns .* must be 1..6, got 7",
        ),
        "no nodes": ({"slots": slots[:, :0]}, RuntimeError, "width .* must be 1.*got 0"),
        "a batch beyond a grid": (
            {
                "slots": torch.zeros(1, 1, dtype=torch.int64).expand(65536, 1),
                "path": torch.zeros(1, 1, dtype=torch.int64).expand(65536, 1),
                "accepted": torch.zeros(1, dtype=torch.int64).expand(65536),
            },
            RuntimeError,
            "batch .* must be 0..65535, got 65536",
        ),
        "a scalar": (
            {"buffers": [buffer, torch.tensor(1.0)]},
            RuntimeError,
            r"buffers\[1\] must have shape \[slots, \.\.\.\]",
        ),
        "transposed rows": (
            {"buffers": [buffer, buffer, torch.zeros(12, 3, 4).transpose(1, 2)]},
            RuntimeError,
            r"buffers\[2\] must have contiguous rows .* got strides \[12, 1, 4\]",
        ),
        "every other element": (
            {"buffers": [torch.zeros(12, 8)[:, ::2]]},
            RuntimeError,
            r"buffers\[0\] must have contiguous rows",
        ),
        "rows on each other": (
            {"buffers": [torch.zeros(15).as_strided((12, 4), (1, 1))]},
            RuntimeError,
            r"buffers\[0\] must have contiguous rows that do not overlap",
        ),
        "one row for all": (
            {"buffers": [torch.zeros(1, 4).expand(12, 4)]},
            RuntimeError,
            r"buffers\[0\] must have contiguous rows that do not overlap",
        ),
        "too many accepted": (
            {"accepted": torch.tensor([2, 3])},
            ValueError,
            r"accepted\[1\] = 3 must be 0..2",
        ),
        "a faulty count": (
            {"accepted": torch.tensor([-1, 2])},
            ValueError,
            r"accepted\[0\] = -1 must be 0..2",
        ),
        "a path that turns back": (
            {"path": torch.tensor([[0, 2, 3], [0, 3, 2]])},
            ValueError,
            r"path\[1, 2\] = 2 must be 4..5: a path ascends",
        ),
        "a path that stays": (
            {"path": torch.tensor([[0, 2, 2], [0, 3, 4]])},
            ValueError,
            r"path\[0, 2\] = 2 must be 3..5",
        ),
        "a path out of the tree": (
            {"path": torch.tensor([[0, 2, 3], [0, 3, 6]])},
            ValueError,
            r"path\[1, 2\] = 6 must be 4..5",
        ),
        "a path from elsewhere": (
            {"path": torch.tensor([[1, 2, 3], [0, 3, 4]])},
            ValueError,
            r"path\[0, 0\] = 1 must be 0, the root",
        ),
        "a slot beyond the pool": (
            {"slots": far},
            ValueError,
            r"slots\[1, 3\] = 12 must be 0..11, the rows of buffers\[0\]",
        ),
        "a slot beyond the smallest pool": (
            {"buffers": [buffer, torch.zeros(0, 0), torch.zeros(9, 2), torch.zeros(10)]},
            ValueError,
            r"slots\[1, 3\] = 9 must be 0..8, the rows of buffers\[2\]",
        ),
        "a negative slot": (
            {"slots": negative},
            ValueError,
            r"slots\[0, 1\] = -4 must be 0..11",
        ),
    }


_DEFAULTS: dict[str, Any] = {
    "buffers": lambda: [torch.arange(48.0).view(12, 4)],
    "slots": lambda: torch.arange(12).view(2, 6),
    "path": lambda: torch.tensor([[0, 2, 3]] * 2),
    "accepted": lambda: torch.tensor([2, 2]),
}


@pytest.mark.parametrize("case", _bad_moves())
def test_bad_moves_are_refused_before_anything_moves(case: str) -> None:
    changed, error, text = _bad_moves()[case]
    arguments = {name: default() for name, default in _DEFAULTS.items()} | changed
    before = [b.clone() for b in arguments["buffers"]]
    with pytest.raises(error, match=text):
        OPS.compact_kv(**arguments)
    for buffer, kept in zip(arguments["buffers"], before, strict=True):
        assert torch.equal(buffer, kept)


def test_the_defaults_of_the_table_above_are_good() -> None:
    arguments = {name: default() for name, default in _DEFAULTS.items()}
    (before,) = (b.clone() for b in arguments["buffers"])
    OPS.compact_kv(**arguments)
    assert not torch.equal(arguments["buffers"][0], before)


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if len(LAYOUTS[n][1]) == 1])
@pytest.mark.parametrize("features", [1, 7, 640])
def test_gathers(layout: str, features: int) -> None:
    dtype, _, gap, before = LAYOUTS[layout]
    random_ = seeded(features)
    batch, width, columns = 3, 11, 6
    numel = before + batch * width * (features + gap)
    item = torch.empty((), dtype=dtype).element_size()
    storage = torch.randint(0, 256, (numel * item,), dtype=torch.uint8)
    rows = storage.view(dtype).as_strided((batch * width, features), (features + gap, 1), before)
    path = torch.tensor([walk_path(random_, width, columns)[0] for _ in range(batch)])
    for given in (path, path.T.contiguous().T):
        found = OPS.gather_path(rows, given)
        assert found.dtype == dtype
        assert found.is_contiguous()
        assert found.data_ptr() != rows.data_ptr()
        flat = (path + torch.arange(batch)[:, None] * width).view(-1).tolist()
        wanted = torch.cat([rows[i : i + 1].contiguous().view(torch.uint8) for i in flat])
        assert torch.equal(found.view(torch.uint8), wanted)


def test_empty_gathers() -> None:
    path = torch.tensor([[0, 1], [0, 2]])
    assert OPS.gather_path(torch.empty(6, 0), path).shape == (4, 0)
    assert OPS.gather_path(torch.empty(0, 5), path[:0]).shape == (0, 5)
    assert OPS.gather_path(torch.empty(6, 5), path[:, :0]).shape == (0, 5)


@pytest.mark.parametrize(
    ("rows", "path", "error", "text"),
    [
        (torch.zeros(6), [[0, 1]], RuntimeError, r"rows must have shape \[batch \* width, feat"),
        (torch.zeros(6, 8)[:, ::2], [[0, 1]], RuntimeError, r"last dimension, got strides \[8, 2"),
        (torch.zeros(6, 4), [0, 1], RuntimeError, r"path must have shape \[batch, columns\]"),
        (torch.zeros(6, 4), [[0.0]], RuntimeError, "path must be Long, got Float"),
        (torch.zeros(7, 4), [[0, 1]] * 2, RuntimeError, "multiple of 2, .* got 7"),
        (torch.zeros(0, 4), [[0, 1]] * 2, RuntimeError, "multiple of 2, .* got 0"),
        (torch.zeros(6, 4), torch.zeros(0, 2).long(), RuntimeError, "multiple of 0, .* got 6"),
        (torch.zeros(6, 4), [[0, 1], [0, 3]], ValueError, r"path\[1, 1\] = 3 must be 0..2"),
        (torch.zeros(6, 4), [[-1, 1], [0, 2]], ValueError, r"path\[0, 0\] = -1 must be 0..2"),
        (torch.zeros(6, 0), [[0, 1], [0, 9]], ValueError, r"path\[1, 1\] = 9 must be 0..2"),
    ],
)
def test_bad_gathers_are_refused(rows: Any, path: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        OPS.gather_path(rows, torch.as_tensor(path))


@pytest.mark.parametrize("batch", [0, 2])
def test_opcheck(batch: int) -> None:
    """Schema, fake, and the dispatch of functional transforms, as PyTorch's own checker sees it."""
    given = indices(seeded(2), batch, 7, 4)
    buffers = [pool(given.pool_slots, n, 1).rows for n in ("bf16 heads", "fp16 in padded rows")]
    torch.library.opcheck(
        OPS.compact_kv.default, (buffers, given.slots, given.path, given.accepted)
    )
    torch.library.opcheck(OPS.gather_path.default, (torch.randn(batch * 7, 6), given.path))


def test_fake_agrees_with_the_op() -> None:
    from torch._subclasses.fake_tensor import (  # type: ignore[import-not-found, unused-ignore]
        FakeTensorMode,
    )

    rows, path = torch.zeros(14, 12, dtype=torch.float8_e4m3fn)[:, 2:7], torch.tensor([[0, 2]] * 2)
    real = OPS.gather_path(rows, path)
    with FakeTensorMode() as mode:
        fake = OPS.gather_path(mode.from_tensor(rows), mode.from_tensor(path))
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
