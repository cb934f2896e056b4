"""What the ops must at least cost: bytes, operations, and the floors that follow from them.

Standard library only. `tables()` is the arithmetic part of kernels.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BATCHES = (1, 8, 16, 32)
BUDGETS = (16, 64, 256)
LEVELS = 15  # draft positions of a block of 16
COLUMNS = LEVELS + 1
VOCABULARY = 151_936
TOPK = 64
DRAFT_LOGIT = 2  # bf16, as the head gives it
TARGET_LOGIT = 4  # fp32, as SGLang keeps the logits that it verifies
PREFIX = 8_192  # tokens of a request in the KV cache, which the mask covers
LAYERS, KV_HEADS, HEAD_SIZE = 36, 8, 128
HIDDEN, TAPS = 4_096, 5
ACCEPTED = 7

MULTIPROCESSORS = {"RTX PRO 6000": 188, "H200": 132}
MEMORY = {"RTX PRO 6000": 1.79e12, "H200": 4.8e12}  # bytes a second
LAUNCH = 2.0e-6  # seconds from one kernel to the next that needs it, in a CUDA graph; assumed
POP = 0.1e-6  # seconds to select one node: a warp's argmax and two writes; assumed
BLOCK_MEMORY = 64 * 1.7e9  # bytes a second into one multiprocessor: 64 a clock; assumed

KV_ROW = 2 * LAYERS * KV_HEADS * HEAD_SIZE * 2  # bytes of a token, K and V of all layers
FEATURE_ROW = HIDDEN * TAPS * 2


@dataclass(frozen=True)
class Cost:
    """Of one call: bytes read and written, operations on numbers, launches, and the seconds that
    steps take which must follow one another, whatever the width of the device."""

    read: int
    written: int
    operations: int
    launches: int
    serial: float = 0.0

    @property
    def moved(self) -> int:
        return self.read + self.written

    def floor(self, device: str) -> float:
        """Seconds."""
        return max(self.moved / MEMORY[device], self.serial) + self.launches * LAUNCH


def rank_tokens(batch: int) -> Cost:
    """Each logit once: a maximum, a difference, an exponential, a sum."""
    rows = batch * LEVELS
    logits = rows * VOCABULARY
    return Cost(logits * DRAFT_LOGIT, rows * TOPK * 12, 4 * logits, launches=2)


def build_tree(batch: int, budget: int) -> Cost:
    """`budget` pops, each an argmax over a frontier that grows to `budget` entries."""
    width, ranks = budget + 1, min(TOPK, budget)
    words = budget // 64 + 1
    read = batch * (LEVELS * ranks * 4 + budget * 8 + 16)
    written = batch * (width * (5 * 8 + 4 + 8 * words) + 9)
    compares = batch * budget * (budget + 1) // 2
    return Cost(read, written, compares, launches=1, serial=budget * POP)


def place_tree(batch: int, budget: int) -> Cost:
    width = budget + 1
    read = batch * (width * 8 * (budget // 64 + 2) + 8)
    written = batch * (width * (PREFIX + width) + width * 8)
    return Cost(read, written, 0, launches=1)


def walk_all_rows(batch: int, budget: int) -> Cost:
    """The argmax of every node, then the walk over integers."""
    width = budget + 1
    logits = batch * width * VOCABULARY
    read = logits * TARGET_LOGIT + batch * width * 24
    return Cost(read, _walked(batch), logits, launches=2, serial=_row_seconds())


def walk_visited_rows(batch: int, budget: int) -> Cost:
    """Only the rows on the path, one after another."""
    logits = batch * (ACCEPTED + 1) * VOCABULARY
    read = logits * TARGET_LOGIT + batch * (budget + 1) * 16
    serial = (ACCEPTED + 1) * _row_seconds()
    return Cost(read, _walked(batch), logits, launches=1, serial=serial)


def compact_kv(batch: int) -> Cost:
    """All accepted rows move: the tree's first nodes are seldom the accepted ones."""
    rows = batch * ACCEPTED * KV_ROW
    return Cost(rows + batch * 8 * (2 * ACCEPTED + 1), rows, 0, launches=1)


def gather_path(batch: int) -> Cost:
    rows = batch * COLUMNS * FEATURE_ROW
    return Cost(rows + batch * COLUMNS * 8, rows, 0, launches=1)


def count_round(batch: int, budget: int) -> Cost:
    return Cost(batch * (COLUMNS * 24 + 17), 48, batch * COLUMNS, launches=1)


def _row_seconds() -> float:
    """One block reads one row of logits."""
    return VOCABULARY * TARGET_LOGIT / BLOCK_MEMORY


def _walked(batch: int) -> int:
    return batch * (2 * COLUMNS + 2) * 8


def round_of(batch: int, budget: int, device: str) -> list[Cost]:
    """The ops of a round that the tree adds to a forward of drafter and target. Of the two walks
    the one that the op takes (csrc/walk_core.h, walks_eagerly)."""
    all_rows = batch * (budget + 1) <= MULTIPROCESSORS[device]
    walk = walk_all_rows if all_rows else walk_visited_rows
    return [
        *(rank_tokens(batch), build_tree(batch, budget), place_tree(batch, budget)),
        walk(batch, budget),
        *(count_round(batch, budget), compact_kv(batch), gather_path(batch)),
    ]


def _sums(costs: list[Cost], device: str) -> str:
    floor = sum(cost.floor(device) for cost in costs) * 1e6
    launches = sum(cost.launches for cost in costs)
    return f"{_amount(sum(cost.moved for cost in costs))} | {launches} | {floor:.1f}"


def _amount(value: int) -> str:
    """Three digits with a unit of thousands."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return str(value)


def _cells(cost: Cost) -> str:
    cells = [_amount(cost.moved), _amount(cost.operations)]
    cells += [f"{cost.moved / speed * 1e6:.2f}" for speed in MEMORY.values()]
    cells += [f"{cost.serial * 1e6:.1f}", str(cost.launches)]
    cells += [f"{cost.floor(device) * 1e6:.1f}" for device in MEMORY]
    return " | ".join(cells)


_HEAD = (
    f"bytes | operations | {' | '.join(f'us of memory, {d}' for d in MEMORY)} | us in sequence"
    f" | launches | {' | '.join(f'floor us, {d}' for d in MEMORY)} |"
)


def _table(title: str, keys: str, rows: list[tuple[str, Cost]]) -> Iterator[str]:
    columns = keys.count("|") + 1
    yield from (f"### {title}", "", f"| {keys} | {_HEAD}")
    yield "|" + "---|" * columns + "---:|" * (4 + 2 * len(MEMORY))
    yield from (f"| {key} | {_cells(cost)} |" for key, cost in rows)
    yield ""


def tables() -> str:
    """The arithmetic as Markdown."""
    grid = [(batch, budget) for batch in BATCHES for budget in BUDGETS]
    lines: list[str] = []
    for title, by_batch in (
        ("rank_tokens", rank_tokens),
        (f"compact_kv, {ACCEPTED} accepted tokens", compact_kv),
        ("gather_path", gather_path),
    ):
        lines += _table(title, "batch", [(str(batch), by_batch(batch)) for batch in BATCHES])
    for title, by_both in (
        ("build_tree", build_tree),
        (f"place_tree, prefix of {PREFIX:,} tokens", place_tree),
        ("walk_greedy, all rows", walk_all_rows),
        (f"walk_greedy, the {ACCEPTED + 1} visited rows", walk_visited_rows),
        ("count_round", count_round),
    ):
        lines += _table(
            title,
            "batch | budget",
            [(f"{batch} | {budget}", by_both(batch, budget)) for batch, budget in grid],
        )
    lines += [
        "### A round",
        "",
        "Sums of the above; of the two walks the one that the op takes.",
        "",
    ]
    each = " | ".join(f"bytes, {d} | launches, {d} | floor us, {d}" for d in MEMORY)
    lines += [f"| batch | budget | {each} |", "|---|---|" + "---:|" * 3 * len(MEMORY)]
    for batch, budget in grid:
        cells = [_sums(round_of(batch, budget, device), device) for device in MEMORY]
        lines.append(f"| {batch} | {budget} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
