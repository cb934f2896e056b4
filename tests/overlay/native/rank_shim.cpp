// A C interface to the ranking kernels on emulated blocks, and to what they share with the CPU op.
#include "cuda_on_host.h"

#include "rank_tokens.cu"

// What `extern __shared__` in the kernels names.
alignas(16) ddtree::i64 ddtree_shared[8192];

extern "C" {

std::size_t shim_rank_args_size() { return sizeof(ddtree::RankArgs); }
std::size_t shim_merge_args_size() { return sizeof(ddtree::MergeArgs); }
std::size_t shim_rank_shared() { return sizeof(ddtree::RankShared); }
std::size_t shim_merge_shared() { return sizeof(ddtree::MergeShared); }

void shim_segments(long rows, long vocabulary, int type, int multiprocessors, int* out) {
  const auto segments = ddtree::Segments::of(rows, vocabulary, type, multiprocessors);
  out[0] = segments.count;
  out[1] = segments.vectors;
}

unsigned shim_value_bits(int type, unsigned bits) {
  using namespace ddtree;
  return float_bits(type == kBf16 ? bf16_value(bits) : fp16_value(bits));
}

unsigned shim_orderable(unsigned bits) { return ddtree::orderable(ddtree::float_of(bits)); }

unsigned shim_from_orderable(unsigned order) {
  return ddtree::float_bits(ddtree::from_orderable(order));
}

// An emulator::Status.
int shim_rank(const ddtree::RankArgs* args, int segments, unsigned seed) {
  return emulator::launch(static_cast<unsigned>(args->rows), static_cast<unsigned>(segments),
                          ddtree::kRankThreads, ddtree_shared, sizeof(ddtree_shared),
                          sizeof(ddtree::RankShared), seed, [&] { ddtree_rank_shard(*args); });
}

int shim_merge(const ddtree::MergeArgs* args, unsigned seed) {
  return emulator::launch(static_cast<unsigned>(args->rows), 1, ddtree::kRankThreads,
                          ddtree_shared, sizeof(ddtree_shared), sizeof(ddtree::MergeShared), seed,
                          [&] { ddtree_merge_shards(*args); });
}

}  // extern "C"
