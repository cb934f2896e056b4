// A C interface to both users of tree_core.h: the CPU op's single lane and the kernel's warp.
#include "cuda_on_host.h"

#include "build_tree.cu"
#include "build_tree_cpu.h"

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

// 0: fine; 1: wrote beyond the shared memory it would be launched with; 2: the lanes diverged.
int shim_run_warp(const ddtree::BuildTreeArgs* args, unsigned seed) {
  const auto bytes = static_cast<std::size_t>(
      ddtree::Workspace::bytes(args->levels, args->ranks, args->budget));
  auto* raw = reinterpret_cast<unsigned char*>(ddtree_shared);
  if (bytes + 64 > sizeof(ddtree_shared)) return 1;
  emulator::Warp warp(seed);
  for (int request = 0; request < args->batch; ++request) {
    std::memset(raw, kPoison, bytes + 64);
    blockIdx.x = static_cast<unsigned>(request);
    if (!warp.run([&] { ddtree_build_tree(*args); })) return 2;
    for (std::size_t i = bytes; i < bytes + 64; ++i) {
      if (raw[i] != kPoison) return 1;
    }
  }
  return 0;
}

}  // extern "C"
