// More of CUDA's names on the emulated lanes of cuda_on_host.h: reductions over a warp, atomicMin.
#pragma once

#include "cuda_on_host.h"

namespace emulator {

// Not one of cuda_on_host.h's, so that a lane in a reduction meets no lane in a shuffle.
enum ReduceOperation { kReduceMin = 1 << 20, kReduceMax };

inline unsigned reduce(unsigned mask, unsigned value, ReduceOperation kind) {
  require_full(mask);
  const std::uint64_t* slots = Block::active->exchange(value, kind);
  return static_cast<unsigned>(kind == kReduceMin ? *std::min_element(slots, slots + kLanes)
                                                  : *std::max_element(slots, slots + kLanes));
}

}  // namespace emulator

inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return emulator::reduce(mask, value, emulator::kReduceMin);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return emulator::reduce(mask, value, emulator::kReduceMax);
}

inline int atomicMin(int* at, int value) {
  return emulator::update(at, [&](int old) { return std::min(old, value); });
}
