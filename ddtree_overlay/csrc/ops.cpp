// Schema, stated here and nowhere else, and registration of the ops. What each output means:
// ddtree_overlay/ops/__init__.py.
#include "ops.h"

#include <torch/library.h>

TORCH_LIBRARY(ddtree, m) {
  m.def(
      "build_tree(Tensor logprobs, Tensor token_ids, int budget) -> (Tensor tokens, "
      "Tensor parents, Tensor depths, Tensor first_child, Tensor next_sibling, Tensor ancestors, "
      "Tensor counts, Tensor scores, Tensor exact)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(ddtree, CPU, m) { m.impl("build_tree", &ddtree::build_tree_cpu); }
