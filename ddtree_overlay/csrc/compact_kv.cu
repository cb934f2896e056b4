// ddtree::compact_kv and ddtree::gather_path on the device.
//
// Compiled ahead of time by NVRTC, so nothing of a host header may be included. No shared memory.
// Launches: CompactArgs and GatherArgs.
#include "compact_core.h"

extern "C" __global__ void __launch_bounds__(ddtree::kMoveThreads)
    ddtree_compact_kv(ddtree::CompactArgs args) {
  ddtree::compact_kv(args, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                     static_cast<int>(threadIdx.x));
}

extern "C" __global__ void __launch_bounds__(ddtree::kGatherThreads)
    ddtree_gather_path(ddtree::GatherArgs args) {
  ddtree::gather_path(args, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}
