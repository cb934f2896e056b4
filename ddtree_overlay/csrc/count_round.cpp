// ddtree::count_round: argument checks, the CPU's sums, the launch.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "checks.h"
#include "launch.h"
#include "ops.h"
#include "walk_core.h"
#include "walk_tensors.h"

namespace ddtree {
namespace {

constexpr const char* kCount = "count_round";

void check_index(const char* name, int request, int at, i64 value, i64 least, i64 most) {
  TORCH_CHECK_VALUE(value >= least && value <= most, "ddtree::count_round: ", name, "[", request,
                    ", ", at, "] must be ", least, "..", most, ", got ", value);
}

// Accepted nodes from the first on that is not its parent's first child.
i64 off_spine(const CountArgs& args, int request, i64 accepted) {
  for (int step = 1; step <= accepted; ++step) {
    const i64 node = args.path.at(request, step);
    check_index("path", request, step, node, 0, args.width - 1);
    const i64 parent = args.parents.at(request, static_cast<int>(node));
    check_index("parents", request, static_cast<int>(node), parent, kNone, args.width - 1);
    const int from = parent < 0 ? 0 : static_cast<int>(parent);
    if (args.first_child.at(request, from) != node) return accepted - step + 1;
  }
  return 0;
}

void count_on_cpu(const CountArgs& args) {
  i64 sums[kSums] = {};
  for (int request = 0; request < args.batch; ++request) {
    const i64 accepted = args.accepted.at(request);
    TORCH_CHECK_VALUE(accepted >= 0 && accepted < args.columns, "ddtree::count_round: accepted[",
                      request, "] must be 0..", args.columns - 1, ", got ", accepted);
    const i64 count = args.counts.at(request);
    sums[kTrees] += 1;
    sums[kNodes] += count > 0 ? count : 0;
    sums[kAccepted] += accepted;
    sums[kOffSpine] += off_spine(args, request, accepted);
    sums[kTruncated] += args.exact[request * args.exact_stride] ? 0 : 1;
    sums[kFallbacks] += count > 0 ? 0 : 1;
  }
  for (int i = 0; i < kSums; ++i) args.sums[i] += sums[i];
}

}  // namespace

void count_round(const at::Tensor& parents, const at::Tensor& first_child,
                 const at::Tensor& counts, const at::Tensor& exact, const at::Tensor& path,
                 const at::Tensor& accepted, at::Tensor& sums) {
  const Named named_parents{"parents", parents};
  const Named named_first{"first_child", first_child};
  const Named named_counts{"counts", counts};
  const Named named_exact{"exact", exact};
  const Named named_path{"path", path};
  const Named named_accepted{"accepted", accepted};
  const Named named_sums{"sums", sums};
  for (const Named& argument :
       {named_parents, named_first, named_counts, named_path, named_accepted, named_sums}) {
    check_dtype(kCount, argument, at::kLong);
  }
  check_dtype(kCount, named_exact, at::kBool);
  check_device(kCount, {named_parents, named_first, named_counts, named_exact, named_path,
                        named_accepted, named_sums});
  check_dim(kCount, named_parents, 2, "[batch, width]");
  check_dim(kCount, named_path, 2, "[batch, columns]");
  const i64 batch = parents.size(0);
  check_range(kCount, "batch (dimension 0 of parents)", batch, 0, kMaxInt);
  check_range(kCount, "width (dimension 1 of parents)", parents.size(1), 1, kMaxWalkWidth);
  check_range(kCount, "columns (dimension 1 of path)", path.size(1), 1, parents.size(1));
  check_sizes(kCount, named_first, parents.sizes());
  check_sizes(kCount, named_counts, {batch});
  check_sizes(kCount, named_exact, {batch});
  check_sizes(kCount, named_path, {batch, path.size(1)});
  check_sizes(kCount, named_accepted, {batch});
  check_sizes(kCount, named_sums, {kSums});
  check_contiguous(kCount, named_sums);

  CountArgs args{};
  args.parents = integers(parents);
  args.first_child = integers(first_child);
  args.counts = integers(counts);
  args.exact = exact.const_data_ptr<bool>();
  args.exact_stride = exact.stride(0);
  args.path = integers(path);
  args.accepted = integers(accepted);
  args.sums = sums.mutable_data_ptr<std::int64_t>();
  args.batch = static_cast<int>(batch);
  args.width = static_cast<int>(parents.size(1));
  args.columns = static_cast<int>(path.size(1));
  if (parents.is_cpu()) {
    count_on_cpu(args);
    return;
  }
  launch_kernel(kCount, "ddtree_count_round", parents.device(),
                {static_cast<unsigned>(batch), 1, 32, 0}, &args);
}

}  // namespace ddtree
