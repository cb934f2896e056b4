// What a block of the ranking kernels does together. Device code: only rank_tokens.cu includes it.
//
// Every function is called by all threads of a block unless it says otherwise.
#pragma once

#include "rank_core.h"

namespace ddtree {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarpLanes = 32;

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }

// Puts the best k of `keys`, in order, into best[0, k), and 0 where there are fewer. Keys are
// unique but for 0, which is none. All threads call it; its first barrier also orders what they
// wrote before.
DDTREE_FN void sort_best(const u64* keys, int count, int k, u64* best) {
  if (thread_index() < k) best[thread_index()] = 0;
  __syncthreads();
  for (int i = thread_index(); i < count; i += kRankThreads) {
    const u64 key = keys[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += keys[j] > key ? 1 : 0;
    if (key != 0 && rank < k) best[rank] = key;
  }
  __syncthreads();
}

DDTREE_FN u64 floor_of(const RankShared& shared) {
  const u64 by_value = static_cast<u64>(shared.floor_value) << 32;
  return by_value > shared.floor_key ? by_value : shared.floor_key;
}

// Raises the floor to the k-th best of the groups' maxima. `max` is what this thread has seen.
DDTREE_FN void raise_floor(RankShared& shared, float max, int k) {
  const int thread = thread_index();
  u32 value = max == negative_infinity() ? 0 : orderable(max);
  const u32 other = __shfl_xor_sync(kAllLanes, value, 1);
  value = other > value ? other : value;
  const u32 above = __shfl_down_sync(kAllLanes, value, 2u);
  if (thread % 4 == 0) shared.groups[thread / 4] = static_cast<u64>(above) << 32 | value;
  __syncthreads();
  // Each thread of a pair compares with one half of the groups.
  constexpr int kHalf = kGroups / 4;
  const u64* groups = shared.groups + (thread % 2) * kHalf;
  int reached = 0;
  DDTREE_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const u64 pair = groups[i];
    reached += (static_cast<u32>(pair) >= value ? 1 : 0) + (pair >> 32 >= value ? 1 : 0);
  }
  reached += __shfl_xor_sync(kAllLanes, reached, 1);
  if (thread % 2 == 0 && reached >= k) atomicMax(&shared.floor_value, value);
  // An old floor is as right as the new one, but lets more keys pass.
  __syncthreads();
}

// Cuts the buffer to its best k, sorted in shared.best and in shared.keys, and raises the floor:
// not by the maxima if `fresh`, that is, if it is theirs already. A barrier comes before.
DDTREE_FN void cut_buffer(RankShared& shared, float max, int k, bool fresh) {
  if (!fresh) raise_floor(shared, max, k);
  // Most keys are below the new floor: fewer are left to compare.
  const int thread = thread_index();
  const u64 floor = floor_of(shared);
  const int count = shared.count < kCandidates ? shared.count : kCandidates;
  const u64 first = thread < count ? shared.keys[thread] : 0;
  const u64 second = thread + kRankThreads < count ? shared.keys[thread + kRankThreads] : 0;
  static_assert(kCandidates == 2 * kRankThreads, "a thread holds two keys");
  __syncthreads();
  if (thread == 0) shared.count = 0;
  __syncthreads();
  if (first >= floor) shared.keys[atomicAdd(&shared.count, 1)] = first;
  if (second >= floor) shared.keys[atomicAdd(&shared.count, 1)] = second;
  __syncthreads();
  const int kept = shared.count;
  sort_best(shared.keys, kept, k, shared.best);
  if (thread < k) shared.keys[thread] = shared.best[thread];
  if (thread == 0) {
    shared.count = kept < k ? kept : k;
    if (kept >= k) shared.floor_key = shared.best[k - 1];
  }
  __syncthreads();
}

DDTREE_FN Normaliser join_warp(Normaliser mine) {
  DDTREE_ROLLED
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
    mine = mine.joined({__shfl_xor_sync(kAllLanes, mine.max, offset),
                        __shfl_xor_sync(kAllLanes, mine.sum, offset)});
  }
  return mine;
}

}  // namespace
}  // namespace ddtree
