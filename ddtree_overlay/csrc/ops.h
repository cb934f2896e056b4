// What ops.cpp registers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace ddtree {

// tokens, parents, depths, first_child, next_sibling, ancestors, counts, scores, exact
using BuildTreeResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
               at::Tensor, at::Tensor>;

BuildTreeResult build_tree_cpu(const at::Tensor& logprobs, const at::Tensor& token_ids,
                               std::int64_t budget);

}  // namespace ddtree
