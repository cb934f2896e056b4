// ddtree::place_tree: argument checks, the CPU's mask row by row, the launch.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "checks.h"
#include "launch.h"
#include "ops.h"
#include "place_core.h"
#include "tree_types.h"

namespace ddtree {
namespace {

constexpr const char* kPlace = "place_tree";
constexpr i64 kMaxMask = std::numeric_limits<std::int32_t>::max();  // its readers index with int32

void check(const at::Tensor& ancestors, const at::Tensor& depths, const at::Tensor& prefix_lens,
           const at::Tensor& mask, const at::Tensor& positions) {
  const Named named_ancestors{"ancestors", ancestors};
  const Named named_depths{"depths", depths};
  const Named named_prefix_lens{"prefix_lens", prefix_lens};
  const Named named_mask{"mask", mask};
  const Named named_positions{"positions", positions};
  check_dtype(kPlace, named_ancestors, at::kLong);
  check_dtype(kPlace, named_depths, at::kLong);
  TORCH_CHECK(prefix_lens.scalar_type() == at::kInt || prefix_lens.scalar_type() == at::kLong,
              "ddtree::place_tree: prefix_lens must be Int or Long, got ",
              prefix_lens.scalar_type());
  check_dtype(kPlace, named_mask, at::kBool);
  check_dtype(kPlace, named_positions, at::kLong);
  check_device(kPlace, {named_ancestors, named_depths, named_prefix_lens, named_mask,
                        named_positions});
  check_dim(kPlace, named_ancestors, 3, "[batch, width, words]");
  const i64 batch = ancestors.size(0);
  const i64 width = ancestors.size(1);
  check_range(kPlace, "batch (dimension 0 of ancestors)", batch, 0, kMaxPlaceBatch);
  check_range(kPlace, "width (dimension 1 of ancestors)", width, 1, kMaxBudget + 1);
  check_sizes(kPlace, named_ancestors,
              {batch, width, ancestor_words(static_cast<int>(width - 1))});
  check_sizes(kPlace, named_depths, {batch, width});
  check_sizes(kPlace, named_prefix_lens, {batch});
  check_dim(kPlace, named_mask, 1, "[numel]");
  check_range(kPlace, "elements of mask", mask.numel(), 0, kMaxMask);
  check_contiguous(kPlace, named_mask);
  check_sizes(kPlace, named_positions, {batch, width});
  check_contiguous(kPlace, named_positions);
}

// Every length is checked before anything is written.
void check_prefix_lens(const PlaceTreeArgs& args) {
  i64 size = 0;
  for (int request = 0; request < args.batch; ++request) {
    const i64 prefix = args.prefix_len(request);
    TORCH_CHECK_VALUE(prefix >= 0 && prefix <= kMaxMask, "ddtree::place_tree: prefix_lens[",
                      request, "] must be 0..", kMaxMask, ", got ", prefix);
    size += (prefix + args.width) * args.width;
  }
  TORCH_CHECK_VALUE(size <= args.numel, "ddtree::place_tree: mask must have at least ", size,
                    " elements for these prefix_lens and width ", args.width, ", got ",
                    args.numel);
}

void place_on_cpu(const PlaceTreeArgs& args) {
  check_prefix_lens(args);
  unsigned char* at = args.mask;
  i64* position = args.positions;
  for (int request = 0; request < args.batch; ++request) {
    const i64 prefix = args.prefix_len(request);
    for (int row = 0; row < args.width; ++row) {
      std::memset(at, 1, static_cast<std::size_t>(prefix));
      at += prefix;
      for (int node = 0; node < args.width; ++node) *at++ = args.sees(request, row, node) ? 1 : 0;
      *position++ = args.position(request, row, prefix);
    }
  }
  std::memset(at, 1, static_cast<std::size_t>(args.mask + args.numel - at));
}

}  // namespace

void place_tree(const at::Tensor& ancestors, const at::Tensor& depths,
                const at::Tensor& prefix_lens, at::Tensor& mask, at::Tensor& positions) {
  check(ancestors, depths, prefix_lens, mask, positions);
  PlaceTreeArgs args{};
  args.ancestors = ancestors.const_data_ptr<std::int64_t>();
  for (int dim = 0; dim < 3; ++dim) args.ancestors_stride[dim] = ancestors.stride(dim);
  args.depths = depths.const_data_ptr<std::int64_t>();
  for (int dim = 0; dim < 2; ++dim) args.depths_stride[dim] = depths.stride(dim);
  args.prefix_lens = prefix_lens.const_data_ptr();
  args.prefix_lens_stride = prefix_lens.stride(0);
  args.prefix_lens_bytes = prefix_lens.scalar_type() == at::kInt ? 4 : 8;
  args.mask = reinterpret_cast<unsigned char*>(mask.mutable_data_ptr<bool>());
  args.positions = positions.mutable_data_ptr<std::int64_t>();
  args.numel = mask.numel();
  args.batch = static_cast<int>(ancestors.size(0));
  args.width = static_cast<int>(ancestors.size(1));
  if (mask.is_cpu()) {
    place_on_cpu(args);
    return;
  }
  launch_kernel(kPlace, "ddtree_place_tree", mask.device(),
                {place_blocks(args.numel, args.batch), static_cast<unsigned>(args.batch) + 1,
                 kPlaceThreads, 0},
                &args);
}

}  // namespace ddtree
