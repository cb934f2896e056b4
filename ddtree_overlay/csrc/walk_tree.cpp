// ddtree::walk_tree and walk_greedy: argument checks, the CPU's walk node by node, the launches.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <optional>

#include "checks.h"
#include "launch.h"
#include "ops.h"
#include "walk_core.h"
#include "walk_tensors.h"

namespace ddtree {
namespace {

constexpr const char* kWalk = "walk_tree";
constexpr const char* kGreedy = "walk_greedy";
constexpr i64 kMaxGridY = 65535;

void check_tree(const char* op, Named tokens, Named parents, i64 columns) {
  check_dtype(op, tokens, at::kLong);
  check_dtype(op, parents, at::kLong);
  check_dim(op, tokens, 2, "[batch, width]");
  check_device(op, {tokens, parents});
  check_sizes(op, parents, tokens.tensor.sizes());
  check_range(op, "batch (dimension 0 of tokens)", tokens.tensor.size(0), 0, kMaxInt);
  check_range(op, "width (dimension 1 of tokens)", tokens.tensor.size(1), 1, kMaxWalkWidth);
  check_range(op, "columns", columns, 1, tokens.tensor.size(1));
}

LogitType check_logits(const at::Tensor& logits, const at::Tensor& tokens) {
  const Named named{"logits", logits};
  const LogitType type = check_logit_type(kGreedy, named);
  check_dim(kGreedy, named, 3, "[batch, width, vocabulary]");
  check_device(kGreedy, {{"tokens", tokens}, named});
  check_range(kGreedy, "vocabulary (dimension 2 of logits)", logits.size(2), 1, kMaxVocabulary);
  check_sizes(kGreedy, named, {tokens.size(0), tokens.size(1), logits.size(2)});
  TORCH_CHECK(logits.size(2) == 1 || logits.stride(2) == 1,
              "ddtree::walk_greedy: logits must be contiguous in the vocabulary (stride 1), got ",
              "strides ", logits.strides());
  return type;
}

void check_parents(const char* op, const Integers& parents, int batch, int width) {
  for (int request = 0; request < batch; ++request) {
    for (int node = 0; node < width; ++node) {
      const i64 parent = parents.at(request, node);
      TORCH_CHECK_VALUE(parent >= kNone && parent < width, "ddtree::", op, ": parents[", request,
                        ", ", node, "] must be -1..", width - 1, ", got ", parent);
    }
  }
}

template <class Type>
i64 argmax(const Logits& logits, int request, int node) {
  const auto* row = static_cast<const typename Type::Bits*>(logits.data) +
                    request * logits.request_stride + node * logits.node_stride;
  Largest largest = Largest::none();
  for (int i = 0; i < logits.vocabulary; ++i) largest.offer(Type::value(row[i], 0), i);
  return Largest::index_of(largest.key());
}

i64 target_at(const WalkArgs& args, int request, int node) {
  if (args.target_ids.data != nullptr) return args.target_ids.at(request, node);
  switch (args.logits.type) {
    case kBf16:
      return argmax<Bf16>(args.logits, request, node);
    case kFp16:
      return argmax<Fp16>(args.logits, request, node);
    default:
      return argmax<Fp32>(args.logits, request, node);
  }
}

std::optional<int> find_child(const WalkArgs& args, int request, int node, i64 token) {
  for (int i = 0; i < args.width; ++i) {
    if (args.parents.at(request, i) == node && args.tokens.at(request, i) == token) return i;
  }
  return std::nullopt;
}

void walk_on_cpu(const char* op, const WalkArgs& args) {
  check_parents(op, args.parents, args.batch, args.width);
  for (int request = 0; request < args.batch; ++request) {
    i64* path = args.path + static_cast<i64>(request) * args.columns;
    i64* emitted = args.emitted + static_cast<i64>(request) * args.columns;
    std::optional<int> node = 0;
    int step = 0;
    for (; node && step < args.columns; ++step) {
      const i64 token = target_at(args, request, *node);
      path[step] = *node;
      emitted[step] = token;
      args.bonus[request] = token;
      args.accepted[request] = step;
      node = find_child(args, request, *node, token);
    }
    for (; step < args.columns; ++step) {
      path[step] = step;
      emitted[step] = 0;
    }
  }
}

struct Walked {
  WalkResult tensors;
  WalkArgs args;
};

Walked prepare(const at::Tensor& tokens, const at::Tensor& parents, i64 columns) {
  const i64 batch = tokens.size(0);
  const auto options = tokens.options();
  at::Tensor path = at::empty({batch, columns}, options);
  at::Tensor accepted = at::empty({batch}, options);
  at::Tensor emitted = at::empty({batch, columns}, options);
  at::Tensor bonus = at::empty({batch}, options);
  WalkArgs args{};
  args.tokens = integers(tokens);
  args.parents = integers(parents);
  args.path = path.mutable_data_ptr<std::int64_t>();
  args.accepted = accepted.mutable_data_ptr<std::int64_t>();
  args.emitted = emitted.mutable_data_ptr<std::int64_t>();
  args.bonus = bonus.mutable_data_ptr<std::int64_t>();
  args.batch = static_cast<int>(batch);
  args.width = static_cast<int>(tokens.size(1));
  args.columns = static_cast<int>(columns);
  return {{path, accepted, emitted, bonus}, args};
}

void launch_walk_tree(const char* op, c10::Device device, const WalkArgs& args) {
  launch_kernel(op, "ddtree_walk_tree", device,
                {static_cast<unsigned>(args.batch), 1, kStepThreads,
                 static_cast<unsigned>(WalkArgs::bytes(args.width, args.columns))},
                &args);
}

}  // namespace

WalkResult walk_tree(const at::Tensor& tokens, const at::Tensor& parents,
                     const at::Tensor& target_ids, std::int64_t columns) {
  const Named named_tokens{"tokens", tokens};
  const Named named_ids{"target_ids", target_ids};
  check_tree(kWalk, named_tokens, {"parents", parents}, columns);
  check_dtype(kWalk, named_ids, at::kLong);
  check_device(kWalk, {named_tokens, named_ids});
  check_sizes(kWalk, named_ids, tokens.sizes());
  Walked walked = prepare(tokens, parents, columns);
  walked.args.target_ids = integers(target_ids);
  if (tokens.is_cpu()) {
    walk_on_cpu(kWalk, walked.args);
  } else {
    launch_walk_tree(kWalk, tokens.device(), walked.args);
  }
  return walked.tensors;
}

WalkResult walk_greedy(const at::Tensor& tokens, const at::Tensor& parents,
                       const at::Tensor& logits, std::int64_t columns) {
  check_tree(kGreedy, {"tokens", tokens}, {"parents", parents}, columns);
  const LogitType type = check_logits(logits, tokens);
  Walked walked = prepare(tokens, parents, columns);
  WalkArgs& args = walked.args;
  args.logits = {logits.const_data_ptr(), logits.stride(0), logits.stride(1), type,
                 static_cast<int>(logits.size(2))};
  if (tokens.is_cpu()) {
    walk_on_cpu(kGreedy, args);
    return walked.tensors;
  }
  const c10::Device device = tokens.device();
  if (!walks_eagerly(args.batch, args.width, multiprocessors(device)) || args.batch > kMaxGridY) {
    launch_kernel(kGreedy, "ddtree_walk_greedy", device,
                  {static_cast<unsigned>(args.batch), 1, kWalkThreads, kWalkShared}, &args);
    return walked.tensors;
  }
  at::Tensor ids = at::empty({args.batch, args.width}, tokens.options());
  const ArgmaxArgs rows{args.logits, ids.mutable_data_ptr<std::int64_t>(), args.width};
  launch_kernel(kGreedy, "ddtree_argmax_rows", device,
                {static_cast<unsigned>(args.width), static_cast<unsigned>(args.batch), kRowThreads,
                 kRowShared},
                &rows);
  args.target_ids = integers(ids);
  launch_walk_tree(kGreedy, device, args);
  return walked.tensors;
}

}  // namespace ddtree
