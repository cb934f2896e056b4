// ddtree::build_tree on the device: one warp selects the tree of one request.
//
// Compiled ahead of time by NVRTC, so nothing of a host header may be included. Launch: grid
// (batch), block (32), dynamic shared memory Workspace::bytes(levels, ranks, budget).
#include "tree_core.h"

namespace {

struct WarpLanes {
  static constexpr int kWidth = 32;
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x); }

  __device__ __forceinline__ void sync() const { __syncwarp(kAll); }

  __device__ __forceinline__ ddtree::Candidate best(ddtree::Candidate mine) const {
    for (int offset = kWidth / 2; offset > 0; offset /= 2) {
      mine = ddtree::better(mine, {__shfl_xor_sync(kAll, mine.score, offset),
                                   __shfl_xor_sync(kAll, mine.index, offset)});
    }
    return mine;
  }

  __device__ __forceinline__ ddtree::i64 least(ddtree::i64 mine) const {
    for (int offset = kWidth / 2; offset > 0; offset /= 2) {
      const ddtree::i64 other = __shfl_xor_sync(kAll, mine, offset);
      mine = other < mine ? other : mine;
    }
    return mine;
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(32) ddtree_build_tree(ddtree::BuildTreeArgs args) {
  extern __shared__ ddtree::i64 ddtree_shared[];
  ddtree::build_tree(WarpLanes{}, args, static_cast<int>(blockIdx.x), ddtree_shared);
}
