// ddtree::build_tree on the CPU: argument checks, one request after another, readable faults.
//
// Serial on purpose: at::parallel_for only forks when compiled with OpenMP, and a second libgomp
// beside torch's own costs more than the microseconds that a request takes.
#include "build_tree_cpu.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "ops.h"

namespace ddtree {
namespace {

static_assert(std::is_same_v<i64, std::int64_t>, "tensors hand out std::int64_t pointers");

void check_input(const at::Tensor& tensor, const char* name, at::ScalarType dtype) {
  TORCH_CHECK(tensor.scalar_type() == dtype, "ddtree::build_tree: ", name, " must be ", dtype,
              ", got ", tensor.scalar_type());
  TORCH_CHECK(tensor.dim() == 3, "ddtree::build_tree: ", name,
              " must have shape [batch, levels, ranks], got ", tensor.sizes());
}

void check_arguments(const at::Tensor& logprobs, const at::Tensor& token_ids, i64 budget) {
  check_input(logprobs, "logprobs", at::kFloat);
  check_input(token_ids, "token_ids", at::kLong);
  TORCH_CHECK(logprobs.device() == token_ids.device(),
              "ddtree::build_tree: logprobs and token_ids must be on one device, got ",
              logprobs.device(), " and ", token_ids.device());
  TORCH_CHECK(logprobs.sizes() == token_ids.sizes(),
              "ddtree::build_tree: logprobs and token_ids must have one shape, got ",
              logprobs.sizes(), " and ", token_ids.sizes());
  TORCH_CHECK(logprobs.size(1) >= 1 && logprobs.size(1) <= kMaxLevels,
              "ddtree::build_tree: levels (dimension 1) must be 1..", kMaxLevels, ", got ",
              logprobs.size(1));
  TORCH_CHECK(logprobs.size(2) >= 1 && logprobs.size(2) <= std::numeric_limits<int>::max(),
              "ddtree::build_tree: ranks (dimension 2) must be at least 1, got ",
              logprobs.size(2));
  TORCH_CHECK(logprobs.size(0) <= std::numeric_limits<int>::max(),
              "ddtree::build_tree: batch (dimension 0) is out of range, got ", logprobs.size(0));
  TORCH_CHECK(budget >= 1 && budget <= kMaxBudget, "ddtree::build_tree: budget must be 1..",
              kMaxBudget, ", got ", budget);
}

const char* fault_text(int code) {
  switch (code) {
    case kFaultNan:
      return "is NaN";
    case kFaultPositive:
      return "is positive, not a log-probability";
    default:
      return "is greater than that of the rank before it (ranks must be in descending order)";
  }
}

[[noreturn]] void refuse(const at::Tensor& logprobs, i64 request, int ranks, i64 fault) {
  const i64 level = fault / 4 / ranks;
  const i64 rank = fault / 4 % ranks;
  const float value =
      logprobs.const_data_ptr<float>()[request * logprobs.stride(0) + level * logprobs.stride(1) +
                                       rank * logprobs.stride(2)];
  TORCH_CHECK_VALUE(false, "ddtree::build_tree: logprobs[", request, ", ", level, ", ", rank,
                    "] = ", value, " ", fault_text(static_cast<int>(fault % 4)));
  __builtin_unreachable();
}

}  // namespace

BuildTreeResult build_tree_cpu(const at::Tensor& logprobs, const at::Tensor& token_ids,
                               std::int64_t budget) {
  check_arguments(logprobs, token_ids, budget);
  const i64 batch = logprobs.size(0);
  const auto levels = static_cast<int>(logprobs.size(1));
  const auto ranks = static_cast<int>(logprobs.size(2));
  const auto nodes = static_cast<int>(budget);
  const i64 width = budget + 1;

  const auto indices = token_ids.options();
  at::Tensor tokens = at::empty({batch, width}, indices);
  at::Tensor parents = at::empty({batch, width}, indices);
  at::Tensor depths = at::empty({batch, width}, indices);
  at::Tensor first_child = at::empty({batch, width}, indices);
  at::Tensor next_sibling = at::empty({batch, width}, indices);
  at::Tensor ancestors = at::empty({batch, width, ancestor_words(nodes)}, indices);
  at::Tensor counts = at::empty({batch}, indices);
  at::Tensor scores = at::empty({batch, width}, logprobs.options());
  at::Tensor exact = at::empty({batch}, indices.dtype(at::kBool));

  BuildTreeArgs args{};
  args.logprobs = logprobs.const_data_ptr<float>();
  args.token_ids = token_ids.const_data_ptr<std::int64_t>();
  for (int dim = 0; dim < 3; ++dim) {
    args.logprobs_stride[dim] = logprobs.stride(dim);
    args.token_ids_stride[dim] = token_ids.stride(dim);
  }
  args.tokens = tokens.data_ptr<std::int64_t>();
  args.parents = parents.data_ptr<std::int64_t>();
  args.depths = depths.data_ptr<std::int64_t>();
  args.first_child = first_child.data_ptr<std::int64_t>();
  args.next_sibling = next_sibling.data_ptr<std::int64_t>();
  args.ancestors = ancestors.data_ptr<std::int64_t>();
  args.counts = counts.data_ptr<std::int64_t>();
  args.scores = scores.data_ptr<float>();
  args.exact = exact.data_ptr<bool>();
  args.batch = static_cast<int>(batch);
  args.levels = levels;
  args.ranks = ranks;
  args.budget = nodes;

  const i64 words = (Workspace::bytes(levels, ranks, nodes) + 7) / 8;
  std::vector<i64> block(static_cast<std::size_t>(words));
  for (i64 request = 0; request < batch; ++request) {
    const i64 fault = build_tree(SingleLane{}, args, static_cast<int>(request), block.data());
    if (fault != kNoFault) refuse(logprobs, request, ranks_used(ranks, nodes), fault);
  }
  return {tokens,    parents, depths, first_child, next_sibling,
          ancestors, counts,  scores, exact};
}

}  // namespace ddtree
