// A C interface to both users of tree_core.h: the CPU op's single lane and the kernel's warp.
#include "cuda_on_host.h"
#include "reduce_on_host.h"

#include "build_tree.cu"
#include "single_lane.h"

#include <cstring>
#include <vector>

namespace {
constexpr std::size_t kSharedWords = 1 << 20;
constexpr unsigned char kPoison = 0xa5;
}  // namespace

// What `extern __shared__` in the kernel names.
ddtree::i64 ddtree_shared[kSharedWords];

extern "C" {

std::size_t shim_args_size() { return sizeof(ddtree::BuildTreeArgs); }

long shim_workspace_bytes(int levels, int ranks, int budget) {
  return ddtree::Workspace::bytes(levels, ranks, budget);
}

// 0: fine; 1: wrote beyond the workspace.
int shim_run_single(const ddtree::BuildTreeArgs* args) {
  const auto bytes = static_cast<std::size_t>(
      ddtree::Workspace::bytes(args->levels, args->ranks, args->budget));
  std::vector<ddtree::i64> block((bytes + 7) / 8 + 8);
  auto* raw = reinterpret_cast<unsigned char*>(block.data());
  const std::size_t size = block.size() * 8;
  for (int request = 0; request < args->batch; ++request) {
    std::memset(raw, kPoison, size);
    ddtree::build_tree(ddtree::SingleLane{}, *args, request, raw);
    for (std::size_t i = bytes; i < size; ++i) {
      if (raw[i] != kPoison) return 1;
    }
  }
  return 0;
}

// An emulator::Status.
int shim_run_warp(const ddtree::BuildTreeArgs* args, unsigned seed) {
  const auto bytes = static_cast<std::size_t>(
      ddtree::Workspace::bytes(args->levels, args->ranks, args->budget));
  return emulator::launch(static_cast<unsigned>(args->batch), 1, 32, ddtree_shared,
                          sizeof(ddtree_shared), bytes, seed, [&] { ddtree_build_tree(*args); });
}

}  // extern "C"
