"""Runs csrc/place_tree.cu on emulated blocks, and says in plain Python what it must write."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ddtree_overlay.tree.reference import pack_words
from tests.overlay.native_tree import HERE, SENTINEL, compile_shim

GUARD = 0x5A
GUARD_BYTES = 64


class _Args(ctypes.Structure):
    _fields_ = (
        ("ancestors", ctypes.c_void_p),
        ("ancestors_stride", ctypes.c_int64 * 3),
        ("depths", ctypes.c_void_p),
        ("depths_stride", ctypes.c_int64 * 2),
        ("prefix_lens", ctypes.c_void_p),
        ("prefix_lens_stride", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("numel", ctypes.c_int64),
        ("prefix_lens_bytes", ctypes.c_int),
        ("batch", ctypes.c_int),
        ("width", ctypes.c_int),
    )


@dataclass(frozen=True)
class Case:
    """A batch of trees, as parents (of which -1 is a root or padding), and where they go.

    alignment: address of the mask modulo 16; extra: elements beyond the exact size (negative: the
    mask is too short); stride: elements from one to the next in every input.
    """

    parents: list[list[int]]
    prefixes: list[int]
    alignment: int = 0
    extra: int = 0
    wide: bool = True
    stride: int = 1
    width: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", len(self.parents[0]) if self.parents else 1)

    @property
    def numel(self) -> int:
        return sum(self.width * (prefix + self.width) for prefix in self.prefixes) + self.extra

    def depth(self, request: int, node: int) -> int:
        return len(self.seen(request, node)) - 1

    def seen(self, request: int, node: int) -> set[int]:
        """The node and its ancestors."""
        found = {node}
        while (node := self.parents[request][node]) >= 0:
            found.add(node)
        return found

    def mask(self) -> list[int]:
        """By reachability, cell after cell."""
        cells: list[int] = []
        for request, prefix in enumerate(self.prefixes):
            for row in range(self.width):
                seen = self.seen(request, row)
                cells += [1] * prefix
                cells += [int(node in seen) for node in range(self.width)]
        return cells + [1] * self.extra if self.extra >= 0 else cells[: self.extra]

    def positions(self) -> list[int]:
        return [
            prefix + self.depth(request, node)
            for request, prefix in enumerate(self.prefixes)
            for node in range(self.width)
        ]


def random_case(random_: Random, *, widths: Sequence[int] = (1, 2, 3, 5, 8, 17, 31)) -> Case:
    width, batch = random_.choice(widths), random_.randrange(1, 5)
    parents = []
    for _ in range(batch):
        count = random_.randrange(width)
        row = [-1, *(random_.randrange(node) for node in range(1, count + 1))]
        parents.append(row + [-1] * (width - 1 - count))
    lengths = (0, 1, 7, 14, 15, 16, 17, 33, random_.randrange(300))
    return Case(
        parents=parents,
        prefixes=[random_.choice(lengths) for _ in range(batch)],
        alignment=random_.randrange(16),
        extra=random_.choice((0, 0, 1, 15, 16, 40)),
        wide=random_.random() < 0.5,
        stride=random_.choice((1, 2)),
    )


class NativePlace:
    """The compiled library."""

    def __init__(self, csrc: Path, target: Path) -> None:
        self.library = compile_shim(csrc, target, HERE / "native" / "place_shim.cpp")
        self.library.shim_place_args_size.restype = ctypes.c_size_t
        self.library.shim_place_blocks.restype = ctypes.c_uint
        assert self.library.shim_place_args_size() == ctypes.sizeof(_Args)

    def blocks(self, numel: int, batch: int) -> int:
        return int(self.library.shim_place_blocks(ctypes.c_long(numel), batch))

    def run(
        self,
        case: Case,
        *,
        blocks: int | None = None,
        seed: int = 0,
        lengths: list[int] | None = None,
    ) -> tuple[list[int], list[int]]:
        """The mask and the positions. Fails if anything around them was written. `lengths` are
        given to the kernel in place of the case's own."""
        batch, width, step = len(case.parents), case.width, case.stride
        words = (width + 63) // 64
        ancestors = _spread(
            [
                word
                for request in range(batch)
                for node in range(width)
                for word in pack_words(sum(1 << i for i in case.seen(request, node)), width - 1)
            ],
            step,
        )
        depths = _spread(
            [case.depth(request, node) for request in range(batch) for node in range(width)], step
        )
        prefixes = _spread(case.prefixes if lengths is None else lengths, step, wide=case.wide)
        memory = (ctypes.c_uint8 * (case.numel + 2 * GUARD_BYTES + 16))()
        ctypes.memset(memory, GUARD, len(memory))
        begin = GUARD_BYTES + (case.alignment - ctypes.addressof(memory) - GUARD_BYTES) % 16
        positions = (ctypes.c_int64 * (batch * width + 1))()
        positions[batch * width] = SENTINEL
        args = _Args(
            ancestors=ctypes.addressof(ancestors),
            ancestors_stride=(ctypes.c_int64 * 3)(step * width * words, step * words, step),
            depths=ctypes.addressof(depths),
            depths_stride=(ctypes.c_int64 * 2)(step * width, step),
            prefix_lens=ctypes.addressof(prefixes),
            prefix_lens_stride=step,
            mask=ctypes.addressof(memory) + begin,
            positions=ctypes.addressof(positions),
            numel=case.numel,
            prefix_lens_bytes=8 if case.wide else 4,
            batch=batch,
            width=width,
        )
        grid = self.blocks(case.numel, batch) if blocks is None else blocks
        status = self.library.shim_place(ctypes.byref(args), grid, ctypes.c_uint(seed))
        assert status == 0, "the lanes diverged"
        written = bytes(memory)
        end = begin + case.numel
        assert set(written[:begin] + written[end:]) == {GUARD}, "wrote outside the mask"
        assert positions[batch * width] == SENTINEL, "wrote behind the positions"
        return list(written[begin:end]), list(positions)[:-1]


def _spread(values: Sequence[int], step: int, *, wide: bool = True) -> ctypes.Array[ctypes.c_int64]:
    """Every `step`-th element is a value; between them is what no kernel may take for one."""
    kind = ctypes.c_int64 if wide else ctypes.c_int32
    array = (kind * (step * len(values) + 1))(*[0x5A5A5A5A] * (step * len(values) + 1))
    array[: step * len(values) : step] = list(values)
    return array  # type: ignore[return-value]
