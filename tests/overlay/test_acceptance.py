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


@pytest.mark.parametrize("many", [BATCH, 2, 1])
def test_one_call_and_many_draw_the_same_for_a_seed(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """A seeded draw depends on the request, the position and the distribution alone, so both orders
    of drawing must emit the same, which is also what plain decoding emits."""
    accepted = 0
    for seed in range(30):
        monkeypatch.setattr(acceptance, "requests_at_once", lambda *_: many)
        at_once = SeededSampler()
        one = walk(seed, sampling(greedy=False), at_once)
        assert at_once.calls == [
            WIDTH * min(many, BATCH - first) for first in range(0, BATCH, many)
        ]
        monkeypatch.setattr(acceptance, "requests_at_once", lambda *_: 0)
        by_step = SeededSampler()
        other = walk(seed, sampling(greedy=False), by_step)
        assert by_step.calls == [BATCH] * COLUMNS
        for field in FIELDS:
            assert torch.equal(getattr(one, field), getattr(other, field)), field
        accepted += int(one.accepted.sum())
    assert accepted > 30


class Group:
    """A tensor-parallel group whose first rank has drawn `token` for every row."""

    def __init__(self, token: int) -> None:
        self.token, self.rows = token, 0

    def broadcast(self, drawn: Any, src: int) -> None:
        assert src == 0
        self.rows += len(drawn)
        drawn.fill_(self.token)


@pytest.mark.parametrize("many", [2, 0])
def test_every_rank_walks_by_the_first_ranks_draws(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(acceptance, "requests_at_once", lambda *_: many)
    tree, group = drafted(0), Group(3)
    found = acceptance.walk_tree(
        *(target_logits(0), tree, tree.depths, sampling(greedy=False)),
        *(SeededSampler(), COLUMNS, group),
    )
    ids = torch.full((BATCH, WIDTH), 3)
    expected = walk_greedy(tree.tokens, tree.parents, ids, COLUMNS)
    assert torch.equal(found.path, expected.path) and found.bonus.tolist() == [3] * BATCH
    assert group.rows == (BATCH * WIDTH if many else BATCH * COLUMNS)


@pytest.mark.parametrize(
    ("batch", "width", "columns", "vocabulary", "many"),
    [
        # A vocabulary of 152k: 220 rows fit.
        (1, 17, 16, 152_000, 1),
        (12, 17, 16, 152_000, 12),
        (48, 17, 16, 152_000, 12),
        (1, 65, 16, 152_000, 1),
        (16, 65, 16, 152_000, 3),
        (64, 65, 16, 152_000, 0),
        (1, 257, 16, 152_000, 0),
        # A small one: all fit, and the rows decide.
        (32, 65, 16, 512, 32),
        (64, 65, 16, 512, 0),
        (8, 257, 16, 512, 0),
        (1, 1, 1, 512, 1),
    ],
)
def test_how_many_requests_are_drawn_for_at_once(
    batch: int, width: int, columns: int, vocabulary: int, many: int
) -> None:
    assert acceptance.requests_at_once(batch, width, columns, vocabulary) == many
    taken = many * width * vocabulary * 4 * acceptance.SAMPLER_COPIES
    assert taken <= acceptance.SAMPLER_BYTES


def test_parameters_are_repeated_request_by_request_and_the_batch_left_alone() -> None:
    info = sampling(greedy=False)
    info.sampling_seed = None
    many = acceptance.repeated(info, 1, 4, 3)
    assert many.temperatures.shape == (9, 1)
    assert many.top_ps.shape == many.top_ks.shape == many.min_ps.shape == (9,)
    assert torch.equal(many.temperatures.view(3, 3), info.temperatures[1:4].expand(-1, 3))
    assert many.sampling_seed is None
    assert info.temperatures.shape == (BATCH, 1)
