"""A small Markov target, a drafter that disagrees with it, DDTree rounds over many samples at once
with any walk, right or broken, and the chi-square test of what they emit. Needs torch and the wheel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay import ops
from ddtree_overlay.tree.walk import walk_sampled

VOCABULARY = 6
START = 3
LENGTH = 4  # tokens of a sequence that is counted
SAMPLES = 60_000


class Markov:
    """p(next | last), float64 [6, 6], the same for every seed, and a stream of draws from it."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.table = torch.softmax(1.2 * logits, -1)

    def draw(self, last: Any) -> Any:
        """One next token for each last token, of any shape."""
        return (self.uniform(last.shape).unsqueeze(-1) >= self.limits[last]).sum(-1)

    @property
    def limits(self) -> Any:
        return self.table.cumsum(-1)[:, :-1]

    def uniform(self, shape: Any) -> Any:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def law(self) -> Any:
        """Probabilities of all 6**LENGTH sequences after START, the last token running fastest."""
        law = self.table[START]
        for _ in range(LENGTH - 1):
            law = law.unsqueeze(-1) * self.table
        return law.flatten()


def drafter(levels: int, ranks: int) -> tuple[Any, Any]:
    """A mismatched drafter: (log-probabilities, token ids) [6, levels, ranks] by the root's token.
    Part of it is the target, so that walks go deep; ranks beyond the vocabulary are absent."""
    table = Markov(0).table.float()
    reach = torch.stack([torch.matrix_power(table, level + 1) for level in range(levels)], 1)
    noise = torch.randn(reach.shape, generator=torch.Generator().manual_seed(2))
    kept = min(ranks, VOCABULARY)
    top = torch.log_softmax(reach.log() + 0.7 * noise, -1).topk(kept, -1)
    absent = torch.full((VOCABULARY, levels, ranks - kept), float("-inf"))
    return (
        torch.cat([top.values, absent], -1),
        torch.cat([top.indices, torch.zeros_like(absent, dtype=torch.int64)], -1),
    )


@dataclass(frozen=True)
class Round:
    """What a walk is given: the trees with the committed token in the root's slot."""

    tokens: Any  # int64 [samples, width]
    parents: Any  # int64 [samples, width]
    drafted: Any  # float64 [samples, width], the drafter's probability of a node given its parent
    columns: int
    target: Markov

    def token_at(self, nodes: Any) -> Any:
        return self.tokens.gather(1, nodes.unsqueeze(1)).squeeze(1)

    def draw(self, nodes: Any) -> Any:
        return self.target.draw(self.token_at(nodes))


Emitted = tuple[Any, Any]  # tokens int64 [samples, columns], how many of them [samples]


def shipped(round_: Round) -> Emitted:
    walk = walk_sampled(
        round_.tokens, round_.parents, lambda nodes, step: round_.draw(nodes), round_.columns
    )
    return walk.tokens, walk.accepted + 1


def shipped_at_once(round_: Round) -> Emitted:
    """One draw for every node, whether it is visited or not."""
    drawn = round_.target.draw(round_.tokens)
    _, accepted, tokens, _ = ops.walk_tree(round_.tokens, round_.parents, drawn, round_.columns)
    return tokens, accepted + 1


def plain(round_: Round) -> Emitted:
    """No tree at all: one token a round, from the target."""
    root = torch.zeros(len(round_.tokens), dtype=torch.int64)
    return round_.draw(root).unsqueeze(1).expand(-1, round_.columns), root + 1


# A rule decides a step for all samples, from the round, the nodes and [samples, width] children:
# (the child followed, `width` if none; the token emitted).
Rule = Callable[[Round, Any, Any], tuple[Any, Any]]


def first(chosen: Any) -> Any:
    """The first chosen node of each sample, `width` if there is none."""
    nodes = torch.arange(chosen.shape[1])
    return torch.where(chosen, nodes, chosen.shape[1]).amin(1)


def by(rule: Rule) -> Callable[[Round], Emitted]:
    """A walk whose steps a rule decides."""

    def walk(round_: Round) -> Emitted:
        samples, width = round_.tokens.shape
        node = torch.zeros(samples, dtype=torch.int64)
        emitted, counts = [], torch.zeros(samples, dtype=torch.int64)
        for _ in range(round_.columns):
            counts += node < width
            children = round_.parents == node.unsqueeze(1)
            node, token = rule(round_, node % width, children)
            emitted.append(token)
        return torch.stack(emitted, 1), counts

    return walk


def followed_or(round_: Round, child: Any, otherwise: Any) -> tuple[Any, Any]:
    width = round_.tokens.shape[1]
    return child, torch.where(child < width, round_.token_at(child % width), otherwise)


def one_draw(round_: Round, node: Any, children: Any) -> tuple[Any, Any]:
    """Right: the control for the rules below."""
    drawn = round_.draw(node)
    return first(children & (round_.tokens == drawn.unsqueeze(1))), drawn


def draw_per_child(round_: Round, node: Any, children: Any) -> tuple[Any, Any]:
    fresh = round_.target.draw(round_.token_at(node).unsqueeze(1).expand_as(children))
    child = first(children & (round_.tokens == fresh))
    return followed_or(round_, child, round_.draw(node))


def bonus_drawn_again(round_: Round, node: Any, children: Any) -> tuple[Any, Any]:
    child, _ = one_draw(round_, node, children)
    return followed_or(round_, child, round_.draw(node))


def bonus_from_the_root(round_: Round, node: Any, children: Any) -> tuple[Any, Any]:
    child, _ = one_draw(round_, node, children)
    return followed_or(round_, child, round_.draw(torch.zeros_like(node)))


def draw_from_the_parent(round_: Round, node: Any, children: Any) -> tuple[Any, Any]:
    """Off by one row: the target's distribution one step up the path."""
    parent = round_.parents.gather(1, node.unsqueeze(1)).squeeze(1).clamp(min=0)
    return one_draw(round_, parent, children)


def first_child(round_: Round, node: Any, children: Any) -> tuple[Any, Any]:
    return followed_or(round_, first(children), round_.draw(node))


def rejection(round_: Round, node: Any, children: Any) -> tuple[Any, Any]:
    """min(1, p/q) child by child, as if the children had been drawn from the drafter."""
    last = round_.token_at(node)
    p = round_.target.table[last].gather(1, round_.tokens)
    accept = round_.target.uniform(children.shape) < p / round_.drafted
    return followed_or(round_, first(children & accept), round_.draw(node))


def sequences(walk: Callable[[Round], Emitted], seed: int, shape: tuple[int, int, int]) -> Any:
    """int64 [SAMPLES, LENGTH]: draft, build, walk, again and again, until all are long enough."""
    levels, ranks, budget = shape
    target, (logprobs, ids) = Markov(seed), drafter(levels, ranks)
    rows, columns = torch.arange(SAMPLES), min(levels, budget) + 1
    last, lengths = torch.full((SAMPLES,), START), torch.zeros(SAMPLES, dtype=torch.int64)
    written = torch.zeros(SAMPLES, LENGTH + 1, dtype=torch.int64)  # the last column is waste
    while (lengths < LENGTH).any():
        tokens, parents, *_, scores, _ = ops.build_tree(logprobs[last], ids[last], budget)
        tokens[:, 0] = last
        drafted = (scores - scores.gather(1, parents.clamp(min=0))).double().exp()
        emitted, counts = walk(Round(tokens, parents, drafted, columns, target))
        step = torch.arange(columns)
        at = torch.where(step < counts.unsqueeze(1), lengths.unsqueeze(1) + step, LENGTH)
        written.scatter_(1, at.clamp(max=LENGTH), emitted)
        last = emitted[rows, counts - 1]
        lengths += counts
    return written[:, :LENGTH]


def p_value(found: Any, law: Any) -> float:
    """Pearson's chi-square of sequences against their probabilities; cells that expect fewer than
    five are pooled."""
    codes = (found * VOCABULARY ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
    counts = torch.bincount(codes, minlength=VOCABULARY**LENGTH).double()
    expected = law * len(found)
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum().view(1)])
    expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
    statistic = ((counts - expected) ** 2 / expected).sum()
    return survival(float(statistic), len(counts) - 1)


def survival(statistic: float, freedom: int) -> float:
    """Of chi-square: the regularised upper incomplete gamma function Q(k/2, x/2)."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
