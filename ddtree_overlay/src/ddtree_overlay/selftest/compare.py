"""Where answers with speculation part from those without it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from ddtree_overlay.selftest.client import Answer, Client

Answers = Mapping[str, Mapping[str, Answer]]
# Groups whose answers do not depend on speculation whatever the device's arithmetic.
GREEDY = ("alone", "streamed", "together", "chat", "grammar")


@dataclass(frozen=True)
class Tolerance:
    """How the tokens of one device are compared.

    gap:    two tokens no further apart (in log-probability, as the server without speculation has
            them) count as tied: where answers part at such a place, either is right. 0: no
            difference is allowed.
    share:  the largest share of answers that may part at ties
    accept: the least share of the recorded accept length that must be reached
    """

    gap: float
    share: float
    accept: float


# float32 on a CPU: the attention of the proof path sums each row in one order, whatever the batch
# and the width, so that there is nothing to allow.
# On a GPU a verify forward runs other kernels than a decode forward (other tile shapes, split
# sums), and so does a batch of another size: logits in bfloat16 differ in the last places, and
# greedy decoding turns a near-tie into another token, with speculation or without. That holds at
# batch 1 too: a tree is 17 rows wide, a decode step one. 0.2 is what bfloat16's 8 bits leave of
# logits of about 20; tests/gpu allows the same. A fault in tree, mask or KV parts at places that
# are no ties, or in more answers than this. (Under --enable-deterministic-inference there would be
# less to allow, but that is not how the appliance serves.) Never tried on a GPU.
CPU = Tolerance(gap=0.0, share=0.0, accept=0.95)
GPU = Tolerance(gap=0.2, share=0.5, accept=0.85)


@dataclass(frozen=True)
class Difference:
    """`name` of `group` parts at token number `at`; an id of None: the answer ends there.

    gap: see Tolerance; None where it was not asked for.
    """

    group: str
    name: str
    at: int
    expected: int | None
    found: int | None
    gap: float | None = None

    def line(self) -> str:
        """One line for people."""
        one, other = ("the end" if t is None else f"token {t}" for t in (self.expected, self.found))
        gap = "" if self.gap is None or math.isinf(self.gap) else f", {self.gap:.3g} apart"
        return f"{self.group}/{self.name}, position {self.at}: {other} instead of {one}{gap}"


@dataclass(frozen=True)
class Comparison:
    """Of `answers` answers, `ties` part at near-ties and `wrong` at no tie."""

    answers: int
    wrong: tuple[Difference, ...]
    ties: tuple[Difference, ...]


def compare(
    groups: tuple[str, ...], expected: Answers, found: Answers, client: Client, tolerance: Tolerance
) -> Comparison:
    """Token ids and finish reasons of the named groups. `client`: to the server of `expected`."""
    wrong: list[Difference] = []
    ties: list[Difference] = []
    answers = 0
    for group in groups:
        if set(expected[group]) != set(found[group]):
            raise ValueError(f"{group}: the servers were not asked the same")
        for name, one in expected[group].items():
            answers += 1
            place = first_difference(one, found[group][name])
            if place is None:
                continue
            at, own, other = place
            gap = None
            if tolerance.gap > 0 and own is not None and other is not None:
                gap = client.gap(one, at, other)
            tied = gap is not None and gap <= tolerance.gap
            (ties if tied else wrong).append(Difference(group, name, at, own, other, gap))
    return Comparison(answers, tuple(wrong), tuple(ties))


def first_difference(one: Answer, other: Answer) -> tuple[int, int | None, int | None] | None:
    """(position, token of `one`, token of `other`), or None where tokens and endings are the same.

    The same tokens with another finish reason differ at the end.
    """
    for at, (left, right) in enumerate(zip(one.ids, other.ids, strict=False)):
        if left != right:
            return at, left, right
    shorter = min(len(one.ids), len(other.ids))
    if len(one.ids) == len(other.ids) and one.end == other.end:
        return None
    left_id = one.ids[shorter] if len(one.ids) > shorter else None
    right_id = other.ids[shorter] if len(other.ids) > shorter else None
    return shorter, left_id, right_id


def against_recorded(
    alone: Mapping[str, Answer],
    recorded: Mapping[str, list[int]],
    client: Client,
    tolerance: Tolerance,
) -> Comparison:
    """The server without speculation against what Transformers said when the models were made.

    Two servers that are wrong alike would pass any comparison with each other.
    """
    known = {name: Answer("", ids, alone[name].end) for name, ids in recorded.items()}
    wrong: list[Difference] = []
    ties: list[Difference] = []
    for name, one in known.items():
        place = first_difference(one, alone[name])
        if place is None:
            continue
        at, own, other = place
        gap = None
        if tolerance.gap > 0 and own is not None and other is not None:
            gap = client.gap(alone[name], at, own)
        difference = Difference("recorded", name, at, own, other, gap)
        (ties if gap is not None and gap <= tolerance.gap else wrong).append(difference)
    return Comparison(len(known), tuple(wrong), tuple(ties))


def accept_length(alone: Mapping[str, Answer]) -> float:
    """Tokens per verify round at batch 1, the bonus token included; 0 where there were no rounds.

    The first token of an answer is the prefill's.
    """
    rounds = sum(answer.rounds for answer in alone.values())
    tokens = sum(len(answer.ids) - 1 for answer in alone.values())
    return tokens / rounds if rounds else 0.0


def digest(answers: Answers) -> str:
    """sha256 over the greedy groups' token ids, names included."""
    ids = {group: {name: one.ids for name, one in answers[group].items()} for group in GREEDY}
    return hashlib.sha256(json.dumps(ids, sort_keys=True).encode()).hexdigest()
