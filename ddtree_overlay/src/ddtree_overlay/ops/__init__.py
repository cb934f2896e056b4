"""`torch.ops.ddtree.*`. Importing this module loads the extension, once, after checking its torch.

The schema is stated in csrc/ops.cpp and read back from there.

ddtree::build_tree(logprobs, token_ids, budget)
    logprobs   float32 [batch, L, K]: per draft position, log-probabilities in descending order,
               none positive or NaN; at or below -131072 (or -inf) means "no such token"
    token_ids  int64 [batch, L, K]: their token ids
    budget     nodes per request, the root not counted, 1..1024

Any strides are accepted. With width = budget + 1, the root at index 0, nodes in order of selection,
padding beyond the count:
    tokens        int64 [batch, width]         -1 for the root (the caller's own token), padding 0
    parents       int64 [batch, width]         -1 for the root and padding
    depths        int64 [batch, width]         position id = prefix length + depth
    first_child   int64 [batch, width]         -1 if none
    next_sibling  int64 [batch, width]         -1 if none
    ancestors     int64 [batch, width, words]  bit j % 64 of word j // 64: j is the node itself or
                                               an ancestor; words = budget // 64 + 1; padding sees
                                               itself
    counts        int64 [batch]                nodes selected, at most budget
    scores        float32 [batch, width]       path log-probability, padding -131072
    exact         bool [batch]                 truncation certificate: no rank beyond K could have
                                               belonged to the tree

The tree is that of `ddtree_overlay.tree.reference`, on every device bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ddtree_overlay._extension import (
    ExtensionLoadError,
    ExtensionMismatchError,
    check_build,
    find_extension,
    read_build_info,
)

__all__ = ["ExtensionLoadError", "ExtensionMismatchError", "build_tree"]


def _load() -> None:
    check_build(read_build_info(), str(torch.__version__), bool(torch.compiled_with_cxx11_abi()))
    library = find_extension()
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ExtensionLoadError(f"cannot load {library}: {error.__cause__ or error}") from error


_load()
build_tree = torch.ops.ddtree.build_tree


@torch.library.register_fake("ddtree::build_tree")  # type: ignore[untyped-decorator, unused-ignore]
def _build_tree_fake(logprobs: Any, token_ids: Any, budget: int) -> tuple[Any, ...]:
    batch = logprobs.shape[0]
    width = budget + 1
    per_node = [token_ids.new_empty((batch, width)) for _ in range(5)]
    return (
        *per_node,
        token_ids.new_empty((batch, width, budget // 64 + 1)),
        token_ids.new_empty((batch,)),
        logprobs.new_empty((batch, width)),
        token_ids.new_empty((batch,), dtype=torch.bool),
    )
