// A C interface to walk_tree.cu: its kernels over the grids and with the shared memory that they
// are launched with.
#include "cuda_on_host.h"
#include "reduce_on_host.h"

#include "walk_tree.cu"

namespace {
constexpr std::size_t kSharedWords = 1 << 12;
}  // namespace

// What `extern __shared__` in the kernels names.
ddtree::i64 ddtree_shared[kSharedWords];

namespace {

template <class Kernel>
int launch(int grid_x, int grid_y, int threads, std::size_t bytes, unsigned seed,
           const Kernel& kernel) {
  return emulator::launch(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y), threads,
                          ddtree_shared, sizeof(ddtree_shared), bytes, seed, kernel);
}

}  // namespace

extern "C" {

std::size_t shim_walk_args_size() { return sizeof(ddtree::WalkArgs); }
std::size_t shim_argmax_args_size() { return sizeof(ddtree::ArgmaxArgs); }
std::size_t shim_count_args_size() { return sizeof(ddtree::CountArgs); }

bool shim_walks_eagerly(long batch, long width, long multiprocessors) {
  return ddtree::walks_eagerly(batch, width, multiprocessors);
}

int shim_walk_tree(const ddtree::WalkArgs* args, unsigned seed) {
  const auto bytes =
      static_cast<std::size_t>(ddtree::WalkArgs::bytes(args->width, args->columns));
  return launch(args->batch, 1, ddtree::kStepThreads, bytes, seed,
                [&] { ddtree_walk_tree(*args); });
}

int shim_walk_greedy(const ddtree::WalkArgs* args, unsigned seed) {
  return launch(args->batch, 1, ddtree::kWalkThreads, ddtree::kWalkShared, seed,
                [&] { ddtree_walk_greedy(*args); });
}

int shim_argmax_rows(const ddtree::ArgmaxArgs* args, int batch, unsigned seed) {
  return launch(args->width, batch, ddtree::kRowThreads, ddtree::kRowShared, seed,
                [&] { ddtree_argmax_rows(*args); });
}

int shim_count_round(const ddtree::CountArgs* args, unsigned seed) {
  return launch(args->batch, 1, 32, 0, seed, [&] { ddtree_count_round(*args); });
}

}  // extern "C"
