// A C interface to compact_core.h: the kernels over their grids, and the shapes they are launched
// with.
#include "cuda_on_host.h"

#include "compact_kv.cu"

namespace {
constexpr std::size_t kSharedWords = 64;  // the kernels use none
ddtree::i64 no_shared[kSharedWords];
}  // namespace

extern "C" {

std::size_t shim_compact_args_size() { return sizeof(ddtree::CompactArgs); }

std::size_t shim_gather_args_size() { return sizeof(ddtree::GatherArgs); }

void shim_buffer(ddtree::CompactArgs* args, int index, void* rows, long stride, int row_bytes) {
  args->buffers[index] = ddtree::moved_buffer(rows, stride, row_bytes);
}

void shim_shape_compact(ddtree::CompactArgs* args, int count) {
  ddtree::shape_compact(*args, count);
}

void shim_shape_gather(ddtree::GatherArgs* args) { ddtree::shape_gather(*args); }

// emulator::Status
int shim_compact(const ddtree::CompactArgs* args, int count, int batch, unsigned seed) {
  return emulator::launch(static_cast<unsigned>(count * args->tiles),
                          static_cast<unsigned>(batch), args->threads, no_shared,
                          sizeof(no_shared), 0, seed, [&] { ddtree_compact_kv(*args); });
}

int shim_gather(const ddtree::GatherArgs* args, int batch, unsigned seed) {
  return emulator::launch(static_cast<unsigned>(batch * args->columns * args->tiles), 1,
                          ddtree::kGatherThreads, no_shared, sizeof(no_shared), 0, seed,
                          [&] { ddtree_gather_path(*args); });
}

}  // extern "C"
