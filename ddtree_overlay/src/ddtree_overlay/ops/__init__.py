"""`torch.ops.ddtree.*`. Importing this module loads the extension, once, after checking its torch,
and chooses the kernels of every visible GPU.

The schemas are stated in csrc/ops.cpp and read back from there. Every op has one implementation in
C++ for the CPU and one for CUDA, which agree bit for bit on integers (but for rank_shard's last
word, which packs a sum); the CUDA one launches on
torch's current stream, reads nothing back and can be captured in a CUDA graph (`load_kernels`
first). All arguments of a call are on one device; what is written (`!`) shares no memory with the
others. An argument that does not fit is a RuntimeError
naming op, argument, value and bound, before anything is launched or written. Where values can be
wrong, the CPU refuses them (ValueError) and CUDA, which cannot read them, does what is said here.

Terms: budget = nodes a request besides the root, 1..1024; width = budget + 1; columns = tokens that
a round can commit = min(block size, width); words = budget // 64 + 1; node 0 is the root.

Rank: the drafter's logits to candidates
----------------------------------------
rank_tokens(logits, k, id_offset=0) -> logprobs, token_ids
    logits     float32, float16 or bfloat16 [rows, V], any strides, V <= 1048576
    k          candidates a row, 1..64
    id_offset  added to the column to give the token id; ids are below 2**31
    logprobs   float32 [rows, k]  descending log-softmax over all V, computed in fp32; of equal
                                  logits the lower id is first
    token_ids  int64 [rows, k]
    A candidate that does not exist (k > V, a logit of -inf or NaN) is -inf with id 0, behind all
    others; a row with a NaN, a +inf or nothing finite has no candidates.

rank_shard(logits, k, id_offset=0) -> candidates
    As above for one shard of the vocabulary, V = 0 included: int64 [rows, k + 1], opaque words for
    merge_shards, in one tensor so that tensor parallelism needs one all-gather.

merge_shards(candidates, k) -> logprobs, token_ids
    candidates  int64 [shards, rows, kk + 1], any strides, shards <= 64: rank_shard's of each
    k           1..min(64, shards * kk)
    Gives what rank_tokens would of the whole vocabulary; the shards' ids must be distinct. The
    candidates and their order are exact, on every device and however the vocabulary is cut; the
    log-probabilities' last bits may differ, since they come of sums in another order.

Build: candidates to a tree
---------------------------
build_tree(logprobs, token_ids, budget, budgets=None, roots=None) -> nine tensors
    logprobs   float32 [batch, L, K], any strides: per draft position, log-probabilities in
               descending order, none positive or NaN; at or below -131072 (or -inf) means "no such
               token". L is 1..63.
    token_ids  int64 [batch, L, K], any strides: their token ids
    budgets    int64 [batch] or None: a request's own budget, clamped to 0..budget; 0 is a root
               alone
    roots      int64 [batch] or None: the token to write at node 0

    With nodes in order of selection and padding beyond the count:
    tokens        int64 [batch, width]         -1 for the root without `roots`; padding 0
    parents       int64 [batch, width]         -1 for the root and padding
    depths        int64 [batch, width]         position id = prefix length + depth; padding 0
    first_child   int64 [batch, width]         -1 if none
    next_sibling  int64 [batch, width]         -1 if none
    ancestors     int64 [batch, width, words]  bit j % 64 of word j // 64: j is the node itself or
                                               an ancestor; padding sees itself
    counts        int64 [batch]                nodes selected, at most the request's budget
    scores        float32 [batch, width]       path log-probability, padding -131072
    exact         bool [batch]                 truncation certificate: no rank beyond K could have
                                               belonged to the tree

    The tree is that of `ddtree_overlay.tree.reference`, on every device bit for bit. Faulty
    log-probabilities: the CPU names index and value (ValueError); CUDA gives that request a root
    alone and counts = -(4 * (level * K + rank) + code) of the first one (csrc/tree_core.h). CUDA
    also refuses shapes that need more than 99 KiB of shared memory, naming the bytes.

build_tree_out(logprobs, token_ids, budgets, roots, tokens!, parents!, ..., exact!) -> ()
    The same into given contiguous tensors (buffers of a CUDA graph); budget = tokens.size(1) - 1.

place_tree(ancestors, depths, prefix_lens, mask!, positions!) -> ()
    ancestors    int64 [batch, width, words]; depths int64 [batch, width]: of build_tree
    prefix_lens  int32 or int64 [batch]: tokens in the KV cache before the root
    mask         bool [numel], numel < 2**31: all of it is written, in the layout of
                 `ddtree_overlay.tree.mask`; True beyond the exact size
    positions    int64 [batch, width]: prefix length + depth
    batch <= 4096; mask and positions are contiguous. A negative length, or a mask below the exact
    size: the CPU refuses it; CUDA writes what fits and nothing beyond, and the caller must see to
    it.

Walk: the target's verdict
--------------------------
walk_tree(tokens, parents, target_ids, columns) -> path, accepted, emitted, bonus
    tokens, parents  int64 [batch, width]: of build_tree; the root's token is not read
    target_ids       int64 [batch, width]: the target's token at each node
    columns          1..width
    path             int64 [batch, columns]  node at step r, the root first; r beyond the end
    accepted         int64 [batch]           accepted nodes, the root not counted
    emitted          int64 [batch, columns]  their tokens, then the bonus token, 0 beyond
    bonus            int64 [batch]           the target's token where the walk left the tree
    As `ddtree_overlay.tree.walk`: of siblings with one token the first in node order is followed.
    width <= 1025. A parent out of range: the CPU refuses it; on CUDA it has no such child.

walk_greedy(tokens, parents, logits, columns) -> the same
    logits  float32, float16 or bfloat16 [batch, width, V], V <= 1048576 with stride 1: the target's
            token is the argmax (the lowest index of equals, a NaN above all, as torch.argmax). Only
            the rows of visited nodes are read, unless all rows are so few that reading them at once
            is quicker.

count_round(parents, first_child, counts, exact, path, accepted, sums!) -> ()
    Adds to sums, int64 [6], what `ddtree_overlay.sglang.stats` counts of a round.

Move: accepted rows to the front
--------------------------------
compact_kv(buffers!, slots, path, accepted) -> ()
    buffers   tensors [slots, ...] of any dtype with contiguous rows: K, V and scales of all layers
    slots     int64 [batch, width]: KV slot of each node
    path, accepted: of the walk
    For r = 1..accepted, row slots[path[r]] of every buffer goes to row slots[r]. Sources and
    targets may overlap: the path ascends. batch <= 65535. The CPU refuses a path that does not
    ascend and indices out of range; CUDA moves nothing for a step with one.

gather_path(rows, path) -> rows
    rows [batch * width, F] of any dtype, last stride 1, to [batch * columns, F]: the rows of the
    path's nodes. An index out of range: the CPU refuses it; CUDA gives a row of zeros.
"""

from __future__ import annotations

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay._extension import (
    ExtensionLoadError,
    ExtensionMismatchError,
    check_build,
    find_extension,
    read_build_info,
)
from ddtree_overlay._kernels import KernelFileError, KernelMissingError

__all__ = [
    "ExtensionLoadError",
    "ExtensionMismatchError",
    "KernelFileError",
    "KernelMissingError",
    "build_tree",
    "build_tree_out",
    "compact_kv",
    "count_round",
    "describe",
    "gather_path",
    "load_kernels",
    "merge_shards",
    "place_tree",
    "rank_shard",
    "rank_tokens",
    "walk_greedy",
    "walk_tree",
]


def _load() -> None:
    check_build(read_build_info(), str(torch.__version__), bool(torch.compiled_with_cxx11_abi()))
    library = find_extension()
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ExtensionLoadError(f"cannot load {library}: {error.__cause__ or error}") from error


_load()

# After the extension: one registers fakes of its ops, the other hands it the kernel files.
from ddtree_overlay.ops import fakes as _fakes  # noqa: E402, F401
from ddtree_overlay.ops.kernels import (  # noqa: E402
    describe,
    load_kernels,
    use_kernels_of_visible_devices,
)

use_kernels_of_visible_devices()

build_tree = torch.ops.ddtree.build_tree
build_tree_out = torch.ops.ddtree.build_tree_out
compact_kv = torch.ops.ddtree.compact_kv
count_round = torch.ops.ddtree.count_round
gather_path = torch.ops.ddtree.gather_path
merge_shards = torch.ops.ddtree.merge_shards
place_tree = torch.ops.ddtree.place_tree
rank_shard = torch.ops.ddtree.rank_shard
rank_tokens = torch.ops.ddtree.rank_tokens
walk_greedy = torch.ops.ddtree.walk_greedy
walk_tree = torch.ops.ddtree.walk_tree
