// ddtree::build_tree and build_tree_out: argument checks, readable faults on the CPU, the launch.
//
// Serial on the CPU on purpose: at::parallel_for only forks when compiled with OpenMP, and a second
// libgomp beside torch's own costs more than the microseconds that a request takes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

#include "checks.h"
#include "launch.h"
#include "ops.h"
#include "single_lane.h"

namespace ddtree {
namespace {

constexpr const char* kBuild = "build_tree";
constexpr const char* kBuildOut = "build_tree_out";

struct Inputs {
  const at::Tensor& logprobs;
  const at::Tensor& token_ids;
  const std::optional<at::Tensor>& budgets;
  const std::optional<at::Tensor>& roots;
  i64 budget;
};

struct Outputs {
  at::Tensor& tokens;
  at::Tensor& parents;
  at::Tensor& depths;
  at::Tensor& first_child;
  at::Tensor& next_sibling;
  at::Tensor& ancestors;
  at::Tensor& counts;
  at::Tensor& scores;
  at::Tensor& exact;
};

void check_per_request(const char* op, Named argument, Named like, i64 batch) {
  check_dtype(op, argument, at::kLong);
  check_device(op, {like, argument});
  check_sizes(op, argument, {batch});
}

void check_inputs(const char* op, const Inputs& in) {
  const Named logprobs{"logprobs", in.logprobs};
  const Named token_ids{"token_ids", in.token_ids};
  check_dtype(op, logprobs, at::kFloat);
  check_dtype(op, token_ids, at::kLong);
  check_dim(op, logprobs, 3, "[batch, levels, ranks]");
  check_dim(op, token_ids, 3, "[batch, levels, ranks]");
  check_device(op, {logprobs, token_ids});
  check_sizes(op, token_ids, in.logprobs.sizes());
  check_range(op, "batch (dimension 0 of logprobs)", in.logprobs.size(0), 0, kMaxInt);
  check_range(op, "levels (dimension 1 of logprobs)", in.logprobs.size(1), 1, kMaxLevels);
  check_range(op, "ranks (dimension 2 of logprobs)", in.logprobs.size(2), 1, kMaxInt);
  check_range(op, "budget", in.budget, 1, kMaxBudget);
  const i64 batch = in.logprobs.size(0);
  if (in.budgets) check_per_request(op, {"budgets", *in.budgets}, logprobs, batch);
  if (in.roots) check_per_request(op, {"roots", *in.roots}, logprobs, batch);
  if (!in.logprobs.is_cuda()) return;
  const i64 bytes = Workspace::bytes(static_cast<int>(in.logprobs.size(1)),
                                     static_cast<int>(in.logprobs.size(2)),
                                     static_cast<int>(in.budget));
  TORCH_CHECK(bytes <= kMaxShared, "ddtree::", op, ": levels ", in.logprobs.size(1), ", ranks ",
              in.logprobs.size(2), " and budget ", in.budget, " need ", bytes,
              " bytes of shared memory, at most ", kMaxShared,
              " are there on a GPU; lower the budget or the ranks");
}

void check_output(Named argument, Named like, at::ScalarType dtype, at::IntArrayRef sizes) {
  check_dtype(kBuildOut, argument, dtype);
  check_device(kBuildOut, {like, argument});
  check_sizes(kBuildOut, argument, sizes);
  check_contiguous(kBuildOut, argument);
}

void check_outputs(const Inputs& in, const Outputs& out) {
  const Named like{"logprobs", in.logprobs};
  const i64 batch = in.logprobs.size(0);
  const i64 width = in.budget + 1;
  check_output({"tokens", out.tokens}, like, at::kLong, {batch, width});
  check_output({"parents", out.parents}, like, at::kLong, {batch, width});
  check_output({"depths", out.depths}, like, at::kLong, {batch, width});
  check_output({"first_child", out.first_child}, like, at::kLong, {batch, width});
  check_output({"next_sibling", out.next_sibling}, like, at::kLong, {batch, width});
  check_output({"ancestors", out.ancestors}, like, at::kLong,
               {batch, width, ancestor_words(static_cast<int>(in.budget))});
  check_output({"counts", out.counts}, like, at::kLong, {batch});
  check_output({"scores", out.scores}, like, at::kFloat, {batch, width});
  check_output({"exact", out.exact}, like, at::kBool, {batch});
}

BuildTreeArgs arguments(const Inputs& in, const Outputs& out) {
  BuildTreeArgs args{};
  args.logprobs = in.logprobs.const_data_ptr<float>();
  args.token_ids = in.token_ids.const_data_ptr<std::int64_t>();
  for (int dim = 0; dim < 3; ++dim) {
    args.logprobs_stride[dim] = in.logprobs.stride(dim);
    args.token_ids_stride[dim] = in.token_ids.stride(dim);
  }
  if (in.budgets) {
    args.budgets = in.budgets->const_data_ptr<std::int64_t>();
    args.budgets_stride = in.budgets->stride(0);
  }
  if (in.roots) {
    args.roots = in.roots->const_data_ptr<std::int64_t>();
    args.roots_stride = in.roots->stride(0);
  }
  args.tokens = out.tokens.mutable_data_ptr<std::int64_t>();
  args.parents = out.parents.mutable_data_ptr<std::int64_t>();
  args.depths = out.depths.mutable_data_ptr<std::int64_t>();
  args.first_child = out.first_child.mutable_data_ptr<std::int64_t>();
  args.next_sibling = out.next_sibling.mutable_data_ptr<std::int64_t>();
  args.ancestors = out.ancestors.mutable_data_ptr<std::int64_t>();
  args.counts = out.counts.mutable_data_ptr<std::int64_t>();
  args.scores = out.scores.mutable_data_ptr<float>();
  args.exact = out.exact.mutable_data_ptr<bool>();
  args.batch = static_cast<int>(in.logprobs.size(0));
  args.levels = static_cast<int>(in.logprobs.size(1));
  args.ranks = static_cast<int>(in.logprobs.size(2));
  args.budget = static_cast<int>(in.budget);
  return args;
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

[[noreturn]] void refuse(const char* op, const at::Tensor& logprobs, i64 request, i64 fault) {
  const i64 ranks = logprobs.size(2);
  const i64 level = fault / 4 / ranks;
  const i64 rank = fault / 4 % ranks;
  const float value =
      logprobs.const_data_ptr<float>()[request * logprobs.stride(0) + level * logprobs.stride(1) +
                                       rank * logprobs.stride(2)];
  TORCH_CHECK_VALUE(false, "ddtree::", op, ": logprobs[", request, ", ", level, ", ", rank,
                    "] = ", value, " ", fault_text(static_cast<int>(fault % 4)));
  __builtin_unreachable();
}

void run(const char* op, const Inputs& in, const Outputs& out) {
  const BuildTreeArgs args = arguments(in, out);
  const i64 bytes = Workspace::bytes(args.levels, args.ranks, args.budget);
  if (in.logprobs.is_cuda()) {
    launch_kernel(op, "ddtree_build_tree", in.logprobs.device(),
                  {static_cast<unsigned>(args.batch), 1, 32, static_cast<unsigned>(bytes)}, &args);
    return;
  }
  std::vector<i64> block(static_cast<std::size_t>((bytes + 7) / 8));
  for (int request = 0; request < args.batch; ++request) {
    const i64 fault = build_tree(SingleLane{}, args, request, block.data());
    if (fault != kNoFault) refuse(op, in.logprobs, request, fault);
  }
}

}  // namespace

BuildTreeResult build_tree(const at::Tensor& logprobs, const at::Tensor& token_ids,
                           std::int64_t budget, const std::optional<at::Tensor>& budgets,
                           const std::optional<at::Tensor>& roots) {
  const Inputs in{logprobs, token_ids, budgets, roots, budget};
  check_inputs(kBuild, in);
  const i64 batch = logprobs.size(0);
  const i64 width = budget + 1;
  const auto indices = token_ids.options();
  at::Tensor tokens = at::empty({batch, width}, indices);
  at::Tensor parents = at::empty({batch, width}, indices);
  at::Tensor depths = at::empty({batch, width}, indices);
  at::Tensor first_child = at::empty({batch, width}, indices);
  at::Tensor next_sibling = at::empty({batch, width}, indices);
  at::Tensor ancestors =
      at::empty({batch, width, ancestor_words(static_cast<int>(budget))}, indices);
  at::Tensor counts = at::empty({batch}, indices);
  at::Tensor scores = at::empty({batch, width}, logprobs.options());
  at::Tensor exact = at::empty({batch}, indices.dtype(at::kBool));
  run(kBuild, in,
      {tokens, parents, depths, first_child, next_sibling, ancestors, counts, scores, exact});
  return {tokens,    parents, depths, first_child, next_sibling,
          ancestors, counts,  scores, exact};
}

void build_tree_out(const at::Tensor& logprobs, const at::Tensor& token_ids,
                    const std::optional<at::Tensor>& budgets,
                    const std::optional<at::Tensor>& roots, at::Tensor& tokens,
                    at::Tensor& parents, at::Tensor& depths, at::Tensor& first_child,
                    at::Tensor& next_sibling, at::Tensor& ancestors, at::Tensor& counts,
                    at::Tensor& scores, at::Tensor& exact) {
  check_dim(kBuildOut, {"tokens", tokens}, 2, "[batch, budget + 1]");
  const Inputs in{logprobs, token_ids, budgets, roots, tokens.size(1) - 1};
  const Outputs out{tokens,    parents, depths, first_child, next_sibling,
                    ancestors, counts,  scores, exact};
  check_inputs(kBuildOut, in);
  check_outputs(in, out);
  run(kBuildOut, in, out);
}

}  // namespace ddtree
