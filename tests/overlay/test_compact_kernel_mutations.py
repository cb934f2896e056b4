"""Broken copies of csrc/compact_kv.cu, each of which the checks of test_compact_kernel.py must see."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.overlay.compact_cases import (
    absent_nodes,
    crowded,
    long_rows,
    random_gather,
    random_move,
    small,
    wide,
)
from tests.overlay.compiler import require_compiler
from tests.overlay.conftest import OVERLAY
from tests.overlay.native_compact import CHECKED, QUICK, NativeCompact
from tests.overlay.trees import seeded

# Each breaks the kernels in one place; `survives` must see it, or the tests prove nothing.
LOAD = """          held[i] = *reinterpret_cast<const Vector*>(column + source[i] * buffer.stride);
"""
STORE = """          *reinterpret_cast<Vector*>(column + target[i] * buffer.stride) = held[i];
"""
MUTATIONS = {
    "groups in descending order": (
        "for (int begin = 1; begin <= accepted; begin += kMoveGroup) {",
        "for (int begin = 1 + (accepted - 1) / kMoveGroup * kMoveGroup; begin >= 1;"
        " begin -= kMoveGroup) {",
    ),
    "stored before the next step is loaded, in descending order": (
        f"{LOAD}        }}\n      }}\n#pragma unroll\n      for (int i = 0; i < kMoveGroup; ++i) {{\n"
        "        if (target[i] >= 0) {\n",
        "        }\n      }\n      for (int i = kMoveGroup - 1; i >= 0; --i) {\n"
        f"        if (target[i] >= 0) {{\n{LOAD}",
    ),
    "the last step left out": ("(begin + i <= accepted) &", "(begin + i < accepted) &"),
    "steps beyond the accepted ones": (
        "given < args.columns ? given : args.columns - 1",
        "args.columns - 1",
    ),
    "the wrong way": (
        "column + source[i] * buffer.stride",
        "column + target[i] * buffer.stride",
    ),
    "nodes for slots": (
        "source[i] = slots[(moves ? node[i] : 0) * args.slots_stride[1]]",
        "source[i] = moves ? node[i] : 0",
    ),
    "steps for slots": ("target[i] = slots[step * args.slots_stride[1]];", "target[i] = step;"),
    "the last vector left out": (
        "at < vectors; at += args.tiles * args.threads",
        "at < vectors - 1; at += args.tiles * args.threads",
    ),
    "a vector too many": (
        "at < vectors; at += args.tiles * args.threads",
        "at <= vectors; at += args.tiles * args.threads",
    ),
    "threads share vectors": ("at += args.tiles * args.threads", "at += 1"),
    "tiles overlap": ("block % args.tiles * args.threads + thread;", "thread;"),
    "tiles skip": ("at += args.tiles * args.threads", "at += (args.tiles + 1) * args.threads"),
    "the buffer of another block": ("args.buffers[block / args.tiles]", "args.buffers[block]"),
    "paths of the first request": (
        "args.path + request * args.path_stride[0];\n  const i64 given",
        "args.path;\n  const i64 given",
    ),
    "slots of the first request": ("args.slots + request * args.slots_stride[0]", "args.slots"),
    "counts of the first request": (
        "args.accepted[request * args.accepted_stride]",
        "args.accepted[0]",
    ),
    "rows beyond the source": ("(source[i] < args.rows) &", "(source[i] < (1L << 40)) &"),
    "rows beyond the target": ("& (target[i] < args.rows);", ";"),
    "rows before the source": ("(source[i] >= 0) &", ""),
    "as many steps as accepted says": ("given < args.columns ? given : args.columns - 1", "given"),
    "a path that goes back": ("(node[i] > begin + i)", "(node[i] >= 0)"),
    "gathered without the request": ("request * args.width + node", "node"),
    "gathered at the node": (
        "args.gathered + output * args.row_bytes",
        "args.gathered + node * args.row_bytes",
    ),
    "gathered with the last row's end": (
        "known = node >= 0 && node < args.width",
        "known = node >= 0 && node <= args.width",
    ),
    "gathered before the first row": (
        "known = node >= 0 && node < args.width",
        "known = node < args.width",
    ),
    "gathered short": (
        "for (i64 at = first; at < vectors;",
        "for (i64 at = first; at + 1 < vectors;",
    ),
    "gathered rows skip": (
        "at += static_cast<i64>(args.tiles) * kGatherThreads",
        "at += static_cast<i64>(args.tiles + 1) * kGatherThreads",
    ),
}


def survives(native: NativeCompact) -> bool:
    """Whether a kernel passes a short form of the tests, without wild addresses: a broken
    one must not end this process."""
    random_ = seeded("mutations")
    moves = [random_move(random_) for _ in range(60)]
    moves += [crowded(random_, columns) for columns in (9, 17, 32)]
    if any(native.compact(move, seed=i) != move.expected() for i, move in enumerate(moves)):
        return False
    long = wide(random_)
    if any(native.compact(long, tiles=tiles) != long.expected() for tiles in (2, 9)):
        return False
    still = [
        small([0, 3, 5, 7], 0),
        small([0, 1, 0, 3], 3),
        small([0, 3, 5, 7], 3, slots=[0, 1, 2, 8, 4, -1, 6, 8]),
        small([0, 3, 5, 7], 3, slots=[0, 8, 8, 8, 4, 5, 6, 7]),
    ]
    if any(native.compact(move) != move.arena for move in still):
        return False
    clamped = small([0, 3, 5, 6], 3)
    if native.compact(small([0, 3, 5, 6], 5)) != clamped.expected():
        return False
    try:
        return (
            absent_nodes(native, 3)
            and long_rows(native)
            and all(random_gather(native, random_, seed) for seed in range(20))
        )
    except AssertionError:  # a guard zone was written
        return False


def test_the_kernel_itself_survives(tmp_path: Path) -> None:
    require_compiler()
    assert survives(NativeCompact.compile(OVERLAY / "csrc", tmp_path, CHECKED))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_seen(name: str, tmp_path: Path) -> None:
    require_compiler()
    csrc = tmp_path / "csrc"
    shutil.copytree(OVERLAY / "csrc", csrc)
    header = csrc / "compact_core.h"
    text = header.read_text()
    old, new = MUTATIONS[name]
    assert text.count(old) == 1
    header.write_text(text.replace(old, new))
    assert not survives(NativeCompact.compile(csrc, tmp_path, QUICK))
