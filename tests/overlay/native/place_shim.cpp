// A C interface to place_tree.cu: the kernel over its grid.
#include "cuda_on_host.h"

#include "place_tree.cu"

namespace {
constexpr std::size_t kSharedWords = 64;  // the kernel uses none
ddtree::i64 no_shared[kSharedWords];
}  // namespace

extern "C" {

std::size_t shim_place_args_size() { return sizeof(ddtree::PlaceTreeArgs); }

unsigned shim_place_blocks(long numel, int batch) { return ddtree::place_blocks(numel, batch); }

// An emulator::Status. `blocks` for each request.
int shim_place(const ddtree::PlaceTreeArgs* args, unsigned blocks, unsigned seed) {
  return emulator::launch(blocks, static_cast<unsigned>(args->batch) + 1, ddtree::kPlaceThreads,
                          no_shared, sizeof(no_shared), 0, seed,
                          [&] { ddtree_place_tree(*args); });
}

}  // extern "C"
