// What ops.cpp registers: one function an op, which checks its arguments and then runs on the
// device of its tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace ddtree {

// tokens, parents, depths, first_child, next_sibling, ancestors, counts, scores, exact
using BuildTreeResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
               at::Tensor, at::Tensor>;
// logprobs, token_ids
using Ranked = std::tuple<at::Tensor, at::Tensor>;
// path, accepted, emitted, bonus
using WalkResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// rank_tokens.cpp
Ranked rank_tokens(const at::Tensor& logits, std::int64_t k, std::int64_t id_offset);
at::Tensor rank_shard(const at::Tensor& logits, std::int64_t k, std::int64_t id_offset);
Ranked merge_shards(const at::Tensor& candidates, std::int64_t k);

// build_tree.cpp
BuildTreeResult build_tree(const at::Tensor& logprobs, const at::Tensor& token_ids,
                           std::int64_t budget, const std::optional<at::Tensor>& budgets,
                           const std::optional<at::Tensor>& roots);
void build_tree_out(const at::Tensor& logprobs, const at::Tensor& token_ids,
                    const std::optional<at::Tensor>& budgets,
                    const std::optional<at::Tensor>& roots, at::Tensor& tokens,
                    at::Tensor& parents, at::Tensor& depths, at::Tensor& first_child,
                    at::Tensor& next_sibling, at::Tensor& ancestors, at::Tensor& counts,
                    at::Tensor& scores, at::Tensor& exact);

// place_tree.cpp
void place_tree(const at::Tensor& ancestors, const at::Tensor& depths,
                const at::Tensor& prefix_lens, at::Tensor& mask, at::Tensor& positions);

// walk_tree.cpp
WalkResult walk_tree(const at::Tensor& tokens, const at::Tensor& parents,
                     const at::Tensor& target_ids, std::int64_t columns);
WalkResult walk_greedy(const at::Tensor& tokens, const at::Tensor& parents,
                       const at::Tensor& logits, std::int64_t columns);

// count_round.cpp
void count_round(const at::Tensor& parents, const at::Tensor& first_child,
                 const at::Tensor& counts, const at::Tensor& exact, const at::Tensor& path,
                 const at::Tensor& accepted, at::Tensor& sums);

// compact_kv.cpp
void compact_kv(at::TensorList buffers, const at::Tensor& slots, const at::Tensor& path,
                const at::Tensor& accepted);
at::Tensor gather_path(const at::Tensor& rows, const at::Tensor& path);

// loaded_kernels.cpp
void use_kernels(std::int64_t device, at::ArrayRef<std::string> files);
void load_kernels(std::int64_t device);

}  // namespace ddtree
