"""From logits to the accepted path: greedy, and sampled with one draw a visited node. Runs inside the
image (needs SGLang and the op)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here; the image has it", allow_module_level=True)
_SPEC = importlib.util.find_spec("ddtree_overlay")
if _SPEC is None or not Path(_SPEC.origin or "").with_name("_build_info.json").is_file():
    pytest.skip("the ddtree-overlay wheel is not installed here", allow_module_level=True)

import torch  # noqa: E402

from ddtree_overlay.sglang import acceptance  # noqa: E402
from ddtree_overlay.sglang.rounds import build_draft_tree  # noqa: E402
from ddtree_overlay.tree.walk import walk_greedy  # noqa: E402

BATCH, LEVELS, TOPK, BUDGET, VOCABULARY = 5, 6, 4, 20, 7
WIDTH, COLUMNS = BUDGET + 1, LEVELS + 1
FIELDS = ("path", "accepted", "tokens", "bonus")


def drafted(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(BATCH, LEVELS, VOCABULARY, generator=generator)
    top = torch.log_softmax(logits, -1).topk(TOPK, -1)
    return build_draft_tree(top.values, top.indices, BUDGET, torch.arange(BATCH))


def target_logits(seed: int) -> Any:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(BATCH, WIDTH, VOCABULARY, generator=generator)


def sampling(greedy: bool) -> Any:
    return SimpleNamespace(
        is_all_greedy=greedy,
        temperatures=torch.linspace(0.5, 1.5, BATCH).view(-1, 1),
        top_ps=torch.ones(BATCH),
        top_ks=torch.full((BATCH,), VOCABULARY),
        min_ps=torch.zeros(BATCH),
        sampling_seed=torch.arange(BATCH) * 77,
    )


class SeededSampler:
    """As upstream's seeded draw a function of seed, position and distribution; in place, as its."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(
        self, output: Any, info: Any, _logprob: bool, _top: Any, _ids: Any, positions: Any
    ) -> Any:
        logits = output.next_token_logits
        self.calls.append(len(logits))
        logits.div_(info.temperatures)
        logits[:] = torch.softmax(logits, dim=-1)
        noise = torch.sin(info.sampling_seed * 12.9898 + positions * 78.233) * 43758.5453
        uniform = (noise - noise.floor()).clamp(max=0.999).to(logits.dtype)
        return (logits.cumsum(-1) <= uniform[:, None]).sum(-1).to(torch.int32)


def walk(seed: int, info: Any, sampler: Any) -> Any:
    tree = drafted(seed)
    positions = (10 * torch.arange(BATCH))[:, None] + tree.depths
    return acceptance.walk_tree(target_logits(seed), tree, positions, info, sampler, COLUMNS, None)


@pytest.mark.parametrize("info", [None, sampling(greedy=True)])
def test_greedy_follows_the_argmax_and_asks_no_sampler(info: Any) -> None:
    accepted = 0
    for seed in range(20):
        tree = drafted(seed)
        found = walk(seed, info, None)
        expected = walk_greedy(tree.tokens, tree.parents, target_logits(seed).argmax(-1), COLUMNS)
        for field in FIELDS:
            assert torch.equal(getattr(found, field), getattr(expected, field)), field
        accepted += int(expected.accepted.sum())
    assert accepted > 20


def test_one_call_and_many_draw_the_same_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded draw depends on the request, the position and the distribution alone, so both orders
    of drawing must emit the same, which is also what plain decoding emits."""
    accepted = 0
    for seed in range(30):
        monkeypatch.setattr(acceptance, "CALL_ROWS", 10**6)
        at_once = SeededSampler()
        one = walk(seed, sampling(greedy=False), at_once)
        assert at_once.calls == [BATCH * WIDTH]
        monkeypatch.setattr(acceptance, "CALL_ROWS", 0)
        stepwise = SeededSampler()
        many = walk(seed, sampling(greedy=False), stepwise)
        assert stepwise.calls == [BATCH] * COLUMNS
        for field in FIELDS:
            assert torch.equal(getattr(one, field), getattr(many, field)), field
        accepted += int(one.accepted.sum())
    assert accepted > 30


@pytest.mark.parametrize(
    ("batch", "width", "columns", "at_once"),
    [
        (1, 17, 16, True),
        (1, 65, 16, True),
        (32, 65, 16, True),
        (64, 65, 16, False),
        (256, 17, 16, True),
        (8, 257, 16, False),
        (1, 1, 1, True),
    ],
)
def test_which_order_costs_less(batch: int, width: int, columns: int, at_once: bool) -> None:
    assert acceptance.draws_at_once(batch, width, columns) is at_once
    rows_at_once, rows_stepwise = batch * width, batch * columns
    cost = (
        rows_at_once + acceptance.CALL_ROWS,
        rows_stepwise + columns * acceptance.CALL_ROWS,
    )
    assert (cost[0] <= cost[1]) is at_once


def test_parameters_are_repeated_request_by_request_and_the_batch_left_alone() -> None:
    info = sampling(greedy=False)
    info.sampling_seed = None
    many = acceptance.repeated(info, 3)
    assert many.temperatures.shape == (3 * BATCH, 1)
    assert many.top_ps.shape == many.top_ks.shape == many.min_ps.shape == (3 * BATCH,)
    assert torch.equal(many.temperatures.view(BATCH, 3), info.temperatures.expand(-1, 3))
    assert many.sampling_seed is None
    assert info.temperatures.shape == (BATCH, 1)
