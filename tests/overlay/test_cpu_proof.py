"""The attention backend `ddtree_cpu` against attention computed one row at a time, and its trace.

Runs where torch and SGLang are: inside the image. Needs nothing but pytest beside them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for _module in ("torch", "sglang"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed here; the image has it", allow_module_level=True)

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from sglang.srt.layers.radix_attention import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    AttentionType,
    RadixAttention,
)
from sglang.srt.mem_cache.memory_pool import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    MHATokenToKVPool,
)
from sglang.srt.model_executor.forward_batch_info import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    ForwardMode,
)

from ddtree_overlay.sglang.cpu_proof.attention import TreeMaskLengthError  # noqa: E402
from ddtree_overlay.sglang.cpu_proof.backend import CpuTreeAttnBackend  # noqa: E402
from ddtree_overlay.sglang.cpu_proof.trace import TRACE, VerifyTrace  # noqa: E402

DIM = 16
SLOTS = 1024
# Own keys, in position order: what row `i` of request `r` may see.
Sight = Callable[[int, int], list[int]]
GEOMETRIES = [
    pytest.param(torch.float32, 4, 2, id="fp32-gqa"),
    pytest.param(torch.float32, 3, 3, id="fp32-mha"),
    pytest.param(torch.bfloat16, 8, 1, id="bf16-mqa"),
]


class Scene:
    """A pool with random KV, requests with random slots in it, and a backend over both."""

    def __init__(
        self,
        prefixes: list[int],
        dtype: Any = torch.float32,
        heads: int = 4,
        kv_heads: int = 2,
        seed: int = 0,
        draft: bool = False,
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.prefixes, self.dtype, self.heads, self.kv_heads = prefixes, dtype, heads, kv_heads
        self.pool = MHATokenToKVPool(
            SLOTS, 1, dtype, kv_heads, DIM, 1, "cpu", enable_memory_saver=False
        )
        for buffer in (self.pool.k_buffer[0], self.pool.v_buffer[0]):
            buffer.copy_(torch.randn(buffer.shape, generator=self.random))
        self.free: list[int] = (torch.randperm(SLOTS, generator=self.random) + 1).tolist()
        # Rows in another order than the requests; stale slots wherever nothing is written.
        self.rows = list(range(len(prefixes)))[::-1]
        self.table = torch.randint(
            1, SLOTS, (len(prefixes), 256), generator=self.random, dtype=torch.int32
        )
        for row, prefix in zip(self.rows, prefixes, strict=True):
            self.table[row, :prefix] = torch.tensor(self.take(prefix), dtype=torch.int32)
        self.backend = CpuTreeAttnBackend(
            SimpleNamespace(
                req_to_token_pool=SimpleNamespace(req_to_token=self.table),
                token_to_kv_pool=self.pool,
                use_mla_backend=False,
                is_draft_worker=draft,
            )
        )

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def layer(self, window: int = -1, kind: Any = AttentionType.DECODER, **more: Any) -> Any:
        return RadixAttention(
            self.heads, DIM, DIM**-0.5, self.kv_heads, 0,
            sliding_window_size=window, attn_type=kind, **more,
        )  # fmt: skip

    def tokens(self, count: int) -> tuple[Any, Any, Any]:
        """Random q [count, heads * dim], k and v [count, kv_heads, dim]."""
        shapes = [(count, self.heads * DIM)] + 2 * [(count, self.kv_heads, DIM)]
        q, k, v = (torch.randn(s, generator=self.random).to(self.dtype) for s in shapes)
        return q, k, v

    def batch(self, mode: Any, news: list[int], **more: Any) -> Any:
        """A forward batch with `news` new tokens per request; the table knows their slots
        except in a verify, which must not read them there."""
        locations = []
        for row, prefix, new in zip(self.rows, self.prefixes, news, strict=True):
            slots = self.take(new)
            locations += slots
            if mode != ForwardMode.TARGET_VERIFY:
                self.table[row, prefix : prefix + new] = torch.tensor(slots, dtype=torch.int32)
        verify = mode == ForwardMode.TARGET_VERIFY
        totals = [p + (0 if verify else n) for p, n in zip(self.prefixes, news, strict=True)]
        batch = SimpleNamespace(
            forward_mode=mode,
            req_pool_indices=torch.tensor(self.rows),
            seq_lens=torch.tensor(totals),
            # Upper bounds in a verify under overlap scheduling: not to be used.
            seq_lens_cpu=torch.tensor(totals) + 50,
            extend_prefix_lens=torch.tensor(self.prefixes, dtype=torch.int32),
            extend_seq_lens=torch.tensor(news, dtype=torch.int32),
            out_cache_loc=torch.tensor(locations),
            **more,
        )
        self.backend.init_forward_metadata(batch)
        return batch

    def verify(self, width: int, mask: Any = None) -> Any:
        spec = SimpleNamespace(draft_token_num=width, custom_mask=mask)
        news = [width] * len(self.prefixes)
        return self.batch(ForwardMode.TARGET_VERIFY, news, spec_info=spec)

    def check(self, batch: Any, news: list[int], sight: Sight, layer: Any) -> Any:
        """Run the layer and compare every row with the reference; the output."""
        q, k, v = self.tokens(sum(news))
        output = self.backend.forward(q, k, v, layer, batch)
        assert output.dtype == self.dtype and output.shape == q.shape
        expected, first = [], 0
        for r, (row, prefix, new) in enumerate(zip(self.rows, self.prefixes, news, strict=True)):
            slots = self.table[row, :prefix].tolist()
            slots += batch.out_cache_loc[first : first + new].tolist()
            expected += [
                self.one_row(q[first + i], [slots[j] for j in sight(r, i)]) for i in range(new)
            ]
            first += new
        wanted = torch.stack(expected).to(self.dtype)
        torch.testing.assert_close(output, wanted, rtol=torch.finfo(self.dtype).eps, atol=1e-6)
        return output

    def one_row(self, query: Any, slots: list[int]) -> Any:
        """Attention of one query [heads * dim] over pool slots, head by head, in float64."""
        heads = []
        for head, q in enumerate(query.double().view(self.heads, DIM)):
            of = head * self.kv_heads // self.heads
            keys = torch.stack([self.pool.k_buffer[0][s, of].double() for s in slots])
            values = torch.stack([self.pool.v_buffer[0][s, of].double() for s in slots])
            scores = (keys * q).sum(1) / DIM**0.5
            weights = torch.exp(scores - scores.max())
            heads.append((weights[:, None] * values).sum(0) / weights.sum())
        return torch.cat(heads)


def random_parents(width: int, generator: Any) -> list[int]:
    """Parents of a random tree in topological order, the root's -1."""
    return [-1] + [int(torch.randint(0, i, (), generator=generator)) for i in range(1, width)]


def path(parents: list[int], node: int) -> list[int]:
    """The root, ..., the node."""
    found = [node]
    while parents[found[0]] >= 0:
        found.insert(0, parents[found[0]])
    return found


def flat_mask(prefixes: list[int], trees: list[list[int]]) -> Any:
    """The FULL_MASK layout of these trees."""
    rows = []
    for prefix, parents in zip(prefixes, trees, strict=True):
        for node in range(len(parents)):
            row = torch.zeros(prefix + len(parents), dtype=torch.bool)
            row[:prefix] = True
            row[[prefix + n for n in path(parents, node)]] = True
            rows.append(row)
    return torch.cat(rows)


def recent(keys: list[int], window: int | None) -> list[int]:
    return keys if window is None else keys[-window - 1 :]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("dtype", "heads", "kv_heads"), GEOMETRIES)
def test_prefill_after_a_cached_prefix(
    dtype: Any, heads: int, kv_heads: int, window: int | None
) -> None:
    prefixes, news = [0, 9, 30, 1], [7, 1, 12, 3]
    scene = Scene(prefixes, dtype, heads, kv_heads)
    batch = scene.batch(ForwardMode.EXTEND, news)
    layer = scene.layer(-1 if window is None else window)
    scene.check(batch, news, lambda r, i: recent(list(range(prefixes[r] + i + 1)), window), layer)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("dtype", "heads", "kv_heads"), GEOMETRIES)
def test_decode(dtype: Any, heads: int, kv_heads: int, window: int | None) -> None:
    prefixes = [0, 9, 30, 5, 6]
    scene = Scene(prefixes, dtype, heads, kv_heads)
    batch = scene.batch(ForwardMode.DECODE, [1] * 5)
    layer = scene.layer(-1 if window is None else window)
    scene.check(batch, [1] * 5, lambda r, i: recent(list(range(prefixes[r] + 1)), window), layer)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("dtype", "heads", "kv_heads"), GEOMETRIES)
def test_verify_of_a_chain(dtype: Any, heads: int, kv_heads: int, window: int | None) -> None:
    prefixes, width = [0, 9, 30], 8
    scene = Scene(prefixes, dtype, heads, kv_heads)
    batch = scene.verify(width)
    layer = scene.layer(-1 if window is None else window)
    scene.check(
        batch,
        [width] * 3,
        lambda r, i: recent(list(range(prefixes[r] + i + 1)), window),
        layer,
    )


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("surplus", [0, 77])
@pytest.mark.parametrize(("dtype", "heads", "kv_heads"), GEOMETRIES)
def test_verify_of_trees(
    dtype: Any, heads: int, kv_heads: int, surplus: int, window: int | None
) -> None:
    prefixes, width = [0, 9, 30, 2], 17
    scene = Scene(prefixes, dtype, heads, kv_heads)
    trees = [random_parents(width, scene.random) for _ in prefixes]
    mask = flat_mask(prefixes, trees)
    batch = scene.verify(width, torch.cat((mask, torch.ones(surplus, dtype=torch.bool))))
    layer = scene.layer(-1 if window is None else window)

    def sight(r: int, i: int) -> list[int]:
        # The window counts along the path: depth, not node order.
        ancestors = [prefixes[r] + node for node in path(trees[r], i)]
        return recent(list(range(prefixes[r])) + ancestors, window)

    scene.check(batch, [width] * 4, sight, layer)


def test_every_layer_of_a_forward_sees_the_same() -> None:
    scene = Scene([3, 5])
    trees = [[-1, 0, 0, 2], [-1, 0, 1, 0]]
    batch = scene.verify(4, flat_mask([3, 5], trees))
    for layer in (scene.layer(), scene.layer(window=2), scene.layer(), scene.layer(window=2)):
        window = layer.sliding_window_size if layer.sliding_window_size > 0 else None

        def sight(r: int, i: int, window: int | None = window) -> list[int]:
            prefix = scene.prefixes[r]
            return recent(list(range(prefix)) + [prefix + n for n in path(trees[r], i)], window)

        scene.check(batch, [4, 4], sight, layer)


@pytest.mark.parametrize(("dtype", "heads", "kv_heads"), GEOMETRIES)
def test_a_drafters_block_sees_itself_whole(dtype: Any, heads: int, kv_heads: int) -> None:
    prefixes, width = [0, 9, 30], 8
    scene = Scene(prefixes, dtype, heads, kv_heads, draft=True)
    batch = scene.verify(width)
    layer = scene.layer(kind=AttentionType.ENCODER_ONLY)
    scene.check(batch, [width] * 3, lambda r, i: list(range(prefixes[r] + width)), layer)
    # A drafter may mix such layers with causal ones in the same forward.
    sliding = scene.layer(window=4)
    scene.check(
        batch, [width] * 3, lambda r, i: recent(list(range(prefixes[r] + i + 1)), 4), sliding
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_keys_give_the_same_bits_in_every_mode(dtype: Any) -> None:
    """Plain decoding and a tree must not disagree on a near-tie because of their shapes."""
    width, different = 65, 0
    for seed in range(6):
        scene = Scene([100, 0, 37], dtype, seed=seed)
        trees = [random_parents(width, scene.random) for _ in scene.prefixes]
        q, k, v = scene.tokens(3 * width)
        batch = scene.verify(width, flat_mask(scene.prefixes, trees))
        tree = scene.backend.forward(q, k, v, scene.layer(), batch).view(3, width, -1)
        slots = batch.out_cache_loc.view(3, width)
        nodes = list(range(0, width, 3))
        for node in nodes:
            paths = [path(parents, node) for parents in trees]
            totals = []
            for r, (row, prefix) in enumerate(zip(scene.rows, scene.prefixes, strict=True)):
                end = prefix + len(paths[r])
                scene.table[row, prefix:end] = slots[r, paths[r]].int()
                totals.append(end)
            decode = SimpleNamespace(
                forward_mode=ForwardMode.DECODE,
                req_pool_indices=torch.tensor(scene.rows),
                seq_lens=torch.tensor(totals),
                out_cache_loc=slots[:, node],
            )
            scene.backend.init_forward_metadata(decode)
            rows = torch.arange(3) * width + node
            plain = scene.backend.forward(q[rows], k[rows], v[rows], scene.layer(), decode)
            different += int((plain != tree[:, node]).sum())
    assert different == 0


def test_new_kv_is_written_only_if_asked() -> None:
    scene = Scene([4])
    before = scene.pool.k_buffer[0].clone(), scene.pool.v_buffer[0].clone()
    batch = scene.batch(ForwardMode.DECODE, [1])
    q, k, v = scene.tokens(1)
    scene.backend.forward(q, k, v, scene.layer(), batch, save_kv_cache=False)
    assert torch.equal(scene.pool.k_buffer[0], before[0])
    scene.backend.forward(q, k, v, scene.layer(), batch)
    slot = batch.out_cache_loc
    assert torch.equal(scene.pool.k_buffer[0][slot], k)
    assert torch.equal(scene.pool.v_buffer[0][slot], v)
    untouched = torch.ones(SLOTS + 1, dtype=torch.bool)
    untouched[slot] = False
    assert torch.equal(scene.pool.v_buffer[0][untouched], before[1][untouched])


def test_a_mask_of_the_wrong_length_is_an_error() -> None:
    scene = Scene([3, 5])
    mask = flat_mask([3, 5], [[-1, 0, 0], [-1, 0, 1]])
    for wrong in (mask[:-1], mask[:0], mask.view(2, -1), mask.to(torch.uint8)):
        with pytest.raises(TreeMaskLengthError, match="width 3 with prefixes"):
            scene.verify(3, wrong)
    scene.verify(3, mask)


def test_a_row_that_sees_nothing_is_an_error() -> None:
    scene = Scene([0])
    batch = scene.verify(2, torch.tensor([True, False, False, False]))
    with pytest.raises(ValueError, match="sees no key"):
        scene.backend.forward(*scene.tokens(2), scene.layer(), batch)


def test_slots_or_queries_that_do_not_fit_the_batch_are_errors() -> None:
    scene = Scene([3, 5])
    batch = scene.verify(4)
    with pytest.raises(ValueError, match="9 queries came for 8 laid-out rows"):
        scene.backend.forward(*scene.tokens(9), scene.layer(), batch, save_kv_cache=False)
    batch.out_cache_loc = batch.out_cache_loc[:-1]
    with pytest.raises(ValueError, match="2 requests, 4 wide, came with 7 KV slots"):
        scene.backend.init_forward_metadata(batch)


def test_what_it_does_not_compute_is_refused() -> None:
    scene = Scene([3])
    with pytest.raises(NotImplementedError, match="DRAFT_EXTEND_V2"):
        scene.batch(ForwardMode.DRAFT_EXTEND_V2, [1])
    batch = scene.batch(ForwardMode.DECODE, [1])
    for layer in (
        scene.layer(logit_cap=30.0),
        scene.layer(is_cross_attention=True),
        scene.layer(kind=AttentionType.DECODER_BIDIRECTIONAL),
    ):
        with pytest.raises(NotImplementedError, match="ddtree_cpu"):
            scene.backend.forward(*scene.tokens(1), layer, batch)
    for wrong in ({"token_to_kv_pool": object()}, {"use_mla_backend": True}):
        runner = {
            "req_to_token_pool": None,
            "token_to_kv_pool": scene.pool,
            "use_mla_backend": False,
        } | wrong
        with pytest.raises(NotImplementedError, match="one plain KV pool"):
            CpuTreeAttnBackend(SimpleNamespace(**runner))


def test_the_trace_counts_branching_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "trace.jsonl"
    monkeypatch.setenv(TRACE, str(log))
    scene = Scene([3, 5])
    chain, branching = [-1, 0, 1, 2], [-1, 0, 0, 2]
    scene.verify(4)
    scene.verify(4, flat_mask([3, 5], [chain, chain]))
    scene.verify(4, flat_mask([3, 5], [chain, branching]))
    scene.batch(ForwardMode.DECODE, [1, 1])
    Scene([3], draft=True).verify(4)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [tuple(line.values()) for line in lines] == [
        (2, 4, False, 0, 0),
        (2, 4, True, 0, 0),
        (2, 4, True, 1, 2),
    ]
    assert list(lines[0]) == ["batch", "width", "masked", "branching_requests", "branching_rows"]


def test_the_trace_is_off_by_default_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TRACE, raising=False)
    assert not VerifyTrace.from_environment().on
    trace = VerifyTrace(tmp_path / "trace.jsonl", limit=300)
    for _ in range(100):
        trace.write(batch=1, width=4, masked=True, branching_rows=[2])
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert 2 <= len(lines) <= 5
    assert json.loads(lines[-1]) == {"truncated": True}
    assert not trace.on
