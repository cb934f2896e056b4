// ddtree::build_tree on the device: one warp selects the tree of one request.
//
// Compiled ahead of time by NVRTC, so nothing of a host header may be included. Launch: grid
// (batch), block (32), dynamic shared memory Workspace::bytes(levels, ranks, budget).
#include "tree_core.h"

namespace {

using ddtree::i64;
using ddtree::u64;

struct WarpLanes {
  static constexpr int kWidth = 32;
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x); }

  __device__ __forceinline__ void sync() const { __syncwarp(kAll); }

  // The greatest score by its two halves, then the least key among those that have it: three
  // reductions in hardware, where shuffles would take five rounds of three.
  __device__ __forceinline__ ddtree::Candidate best(ddtree::Candidate mine) const {
    const u64 score = static_cast<u64>(mine.score) ^ kSign;
    const unsigned high = static_cast<unsigned>(score >> 32);
    const unsigned low = static_cast<unsigned>(score);
    const unsigned top_high = __reduce_max_sync(kAll, high);
    const unsigned top_low = __reduce_max_sync(kAll, high == top_high ? low : 0u);
    const bool wins = high == top_high && low == top_low;
    const unsigned key = static_cast<unsigned>(wins ? mine.key : ddtree::kNoKey);
    const u64 top = static_cast<u64>(top_high) << 32 | top_low;
    return {static_cast<i64>(top ^ kSign), static_cast<int>(__reduce_min_sync(kAll, key))};
  }

  __device__ __forceinline__ int from(int value, int lane) const {
    return __shfl_sync(kAll, value, lane);
  }

  __device__ __forceinline__ i64 least(i64 mine) const {
    for (int offset = kWidth / 2; offset > 0; offset /= 2) {
      const i64 other = __shfl_xor_sync(kAll, mine, offset);
      mine = other < mine ? other : mine;
    }
    return mine;
  }

 private:
  static constexpr u64 kSign = static_cast<u64>(1) << 63;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(32) ddtree_build_tree(ddtree::BuildTreeArgs args) {
  extern __shared__ ddtree::i64 ddtree_shared[];
  ddtree::build_tree(WarpLanes{}, args, static_cast<int>(blockIdx.x), ddtree_shared);
}
