"""The checks, made of what both servers answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddtree_overlay.selftest.client import Answer, Client
from ddtree_overlay.selftest.compare import (
    GREEDY,
    Answers,
    Comparison,
    Difference,
    Tolerance,
    accept_length,
    against_recorded,
    compare,
)
from ddtree_overlay.selftest.model_files import Models

TREES = "sglang:ddtree_trees_total"
NODES = "sglang:ddtree_nodes_verified_total"
OFF_SPINE = "sglang:ddtree_off_spine_tokens_total"
FALLBACKS = "sglang:ddtree_fallbacks_total"
ACCEPT = "sglang:spec_accept_length"
METRICS = (TREES, NODES, OFF_SPINE, FALLBACKS, ACCEPT)


@dataclass(frozen=True)
class Check:
    """One line of the receipt. `what` holds the numbers; `title` says what they must show."""

    name: str
    title: str
    passed: bool
    what: str
    wrong: tuple[Difference, ...] = field(default=())
    ties: tuple[Difference, ...] = field(default=())

    def document(self) -> dict[str, Any]:
        """For the receipt."""
        found: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "passed": self.passed,
            "what": self.what,
        }
        for key, differences in (("wrong", self.wrong), ("ties", self.ties)):
            if differences:
                found[key] = [one.line() for one in differences]
        return found


TITLES = {
    "alone": "DDTREE's tokens are those without it, one request at a time",
    "streamed": "the same, streamed",
    "together": "the same, eight requests at a time",
    "chat": "the same, over /v1/chat/completions",
    "grammar": "the same, under a JSON schema and a regular expression",
    "sampled": "the same at a temperature, seeds given",
}


def judge(
    models: Models,
    plain: Answers,
    tree: Answers,
    metrics: Mapping[str, float],
    *,
    client: Client,
    tolerance: Tolerance,
    seeds: bool,
) -> list[Check]:
    """Every check. `client`: to the plain server, which is asked about ties (on a GPU)."""
    checks = [
        _comparison(
            "recorded",
            "without speculation: the tokens that Transformers gave when the models were made",
            against_recorded(plain["alone"], models.answers, client, tolerance),
            tolerance,
        )
    ]
    for group in (*GREEDY, *(("sampled",) if seeds else ())):
        found = compare((group,), plain, tree, client, tolerance)
        checks.append(_comparison(group, TITLES[group], found, tolerance))
    checks += [_stream(plain, tree), _constrained(tree["grammar"])]
    checks += _trees(models, tree["alone"], metrics, tolerance)
    return checks


def _comparison(name: str, title: str, found: Comparison, tolerance: Tolerance) -> Check:
    parted = len(found.ties)
    # One answer may always be a tie, where ties may be at all: of two answers half is one.
    allowed = max(1, int(found.answers * tolerance.share)) if tolerance.share else 0
    what = f"{found.answers - len(found.wrong) - parted} of {found.answers} equal"
    if parted:
        what += f", {parted} part at a tie ({allowed} may)"
    passed = found.answers > 0 and not found.wrong and parted <= allowed
    return Check(name, title, passed, what, found.wrong, found.ties)


def _stream(plain: Answers, tree: Answers) -> Check:
    """A stream that comes in one piece is none."""
    pieces = [one.chunks for answers in (plain, tree) for one in answers["streamed"].values()]
    return Check(
        "stream",
        "a streamed answer comes in pieces",
        bool(pieces) and min(pieces) > 1,
        f"{min(pieces, default=0)} to {max(pieces, default=0)} pieces",
    )


def _constrained(grammar: Mapping[str, Answer]) -> Check:
    """Where both servers ignored a grammar, their answers would be the same as well."""
    pairs = [
        (one, grammar["free-" + name.split("-", 1)[1]])
        for name, one in grammar.items()
        if not name.startswith("free-")
    ]
    changed = sum(one.ids != free.ids for one, free in pairs)
    return Check(
        "constrained",
        "a grammar changes the answer",
        bool(pairs) and changed == len(pairs),
        f"{changed} of {len(pairs)} changed",
    )


def _trees(
    models: Models,
    alone: Mapping[str, Answer],
    metrics: Mapping[str, float],
    tolerance: Tolerance,
) -> list[Check]:
    """That it was trees that gave these tokens, and as many a round as they should."""
    trees, nodes, off_spine, fallbacks, accept = (metrics.get(name, 0.0) for name in METRICS)
    least = models.accept_length * tolerance.accept
    length = accept_length(alone)
    number: Callable[[float], str] = "{:.0f}".format
    return [
        Check(
            "trees",
            "trees are verified, and none is given up",
            trees > 0 and nodes > trees and fallbacks == 0,
            f"{number(trees)} trees, {number(nodes)} nodes, {number(fallbacks)} fall-backs",
        ),
        Check(
            "off-spine",
            "accepted tokens that a chain of first choices does not hold",
            off_spine > 0,
            number(off_spine),
        ),
        Check(
            "accept length",
            "tokens per round, against those when the models were made",
            length >= least > 1,
            f"{length:.3f}, at least {least:.3f} (recorded: {models.accept_length:.3f})",
        ),
        Check(
            "metrics", "/metrics tells the accept length", accept > 0, f"{ACCEPT} is {accept:.3f}"
        ),
    ]
