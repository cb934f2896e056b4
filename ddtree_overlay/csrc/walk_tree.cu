// ddtree::walk_tree, walk_greedy and count_round on the device.
//
// Compiled ahead of time by NVRTC, so nothing of a host header may be included. Launches:
//   ddtree_walk_tree    grid (batch), block (kStepThreads), dynamic shared memory WalkArgs::bytes
//   ddtree_walk_greedy  grid (batch), block (kWalkThreads), kWalkShared
//   ddtree_argmax_rows  grid (width, batch), block (kRowThreads), kRowShared
//   ddtree_count_round  grid (batch), block (32), no shared memory
#include "walk_core.h"

namespace {

using ddtree::i64;
using ddtree::Integers;
using ddtree::Largest;
using ddtree::Logits;
using ddtree::u32;
using ddtree::u64;
using ddtree::Vector;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }

template <class Type>
__device__ __forceinline__ void offer_vector(const Vector& vector, int first, Largest& largest) {
#pragma unroll
  for (int i = 0; i < Type::kLanes; ++i) {
    largest.offer(ddtree::element<Type>(vector, i), first + i);
  }
}

// The largest of this thread's part of a row, in ascending order of indices: elements before the
// first whole vector, vectors, elements after the last one.
template <class Type>
__device__ __forceinline__ Largest scan_row(const void* data, i64 offset, int vocabulary,
                                            int threads) {
  typedef typename Type::Bits Bits;
  constexpr int kElement = static_cast<int>(sizeof(Bits));
  constexpr int kLanes = Type::kLanes;
  const Bits* row = static_cast<const Bits*>(data) + offset;
  const int misaligned = static_cast<int>(reinterpret_cast<u64>(row) % ddtree::kVectorBytes);
  int head = misaligned == 0 ? 0 : (ddtree::kVectorBytes - misaligned) / kElement;
  if (head > vocabulary) head = vocabulary;
  const int vectors = (vocabulary - head) / kLanes;
  const Vector* body = reinterpret_cast<const Vector*>(row + head);

  Largest largest = Largest::none();
  const int thread = thread_index();
  if (thread < head) largest.offer(Type::value(row[thread], 0), thread);
  int at = thread;
  for (; at + (ddtree::kLoadsInFlight - 1) * threads < vectors;
       at += ddtree::kLoadsInFlight * threads) {
    Vector loaded[ddtree::kLoadsInFlight];
#pragma unroll
    for (int i = 0; i < ddtree::kLoadsInFlight; ++i) loaded[i] = body[at + i * threads];
#pragma unroll
    for (int i = 0; i < ddtree::kLoadsInFlight; ++i) {
      offer_vector<Type>(loaded[i], head + (at + i * threads) * kLanes, largest);
    }
  }
  for (; at < vectors; at += threads) {
    const Vector last = body[at];  // whole, and not word by word
    offer_vector<Type>(last, head + at * kLanes, largest);
  }
  const int tail = head + vectors * kLanes + thread;
  if (tail < vocabulary) largest.offer(Type::value(row[tail], 0), tail);
  return largest;
}

__device__ __forceinline__ u64 largest_of_warp(u64 key) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const u64 other = __shfl_xor_sync(kAllLanes, key, offset);
    key = other > key ? other : key;
  }
  return key;
}

// The argmax of one row, on every thread. `keys` has room for one key a warp and must not be the
// one of the call before: another warp may still be reading that.
template <int kThreads>
__device__ __forceinline__ int argmax(const Logits& logits, int request, int node, u64* keys) {
  const i64 offset = request * logits.request_stride + node * logits.node_stride;
  Largest mine = Largest::none();
  if (logits.type == ddtree::kBf16) {
    mine = scan_row<ddtree::Bf16>(logits.data, offset, logits.vocabulary, kThreads);
  } else if (logits.type == ddtree::kFp16) {
    mine = scan_row<ddtree::Fp16>(logits.data, offset, logits.vocabulary, kThreads);
  } else {
    mine = scan_row<ddtree::Fp32>(logits.data, offset, logits.vocabulary, kThreads);
  }
  const u64 key = largest_of_warp(mine.key());
  const int lane = thread_index() % kWarp;
  if (lane == 0) keys[thread_index() / kWarp] = key;
  __syncthreads();
  return Largest::index_of(largest_of_warp(lane < kThreads / kWarp ? keys[lane] : 0));
}

// The first child of `node` that carries `token`, or `width`. On every lane of the warp.
__device__ __forceinline__ int find_child(const ddtree::WalkArgs& args, int request, int node,
                                          i64 token) {
  u32 found = static_cast<u32>(args.width);
#pragma unroll 2
  for (int i = thread_index() % kWarp; i < args.width; i += kWarp) {
    // Both loads at once, not the second for a match of the first.
    const i64 parent = args.parents.at(request, i);
    const i64 carried = args.tokens.at(request, i);
    const bool follows = (parent == node) & (carried == token);
    found = follows && static_cast<u32>(i) < found ? static_cast<u32>(i) : found;
  }
  return static_cast<int>(__reduce_min_sync(kAllLanes, found));
}

__device__ __forceinline__ bool within(i64 index, int width) { return index >= 0 && index < width; }

}  // namespace

// Each node's successor is found for all nodes at once, so that a step of the walk is one read of
// shared memory. A tree of 256 nodes has about as many as the block threads, so few loads wait.
extern "C" __global__ void __launch_bounds__(256) ddtree_walk_tree(ddtree::WalkArgs args) {
  static_assert(ddtree::kStepThreads == 256, "as the launch bound says");
  extern __shared__ ddtree::i64 ddtree_shared[];
  int* successor = reinterpret_cast<int*>(ddtree_shared);
  int* visited = successor + args.width;
  const int request = static_cast<int>(blockIdx.x);
  const int thread = thread_index();
  for (int i = thread; i < args.width; i += ddtree::kStepThreads) successor[i] = args.width;
  __syncthreads();
  for (int i = thread; i < args.width; i += ddtree::kStepThreads) {
    const i64 parent = args.parents.at(request, i);
    if (!within(parent, args.width)) continue;
    const int node = static_cast<int>(parent);
    if (args.tokens.at(request, i) == args.target_ids.at(request, node)) {
      atomicMin(&successor[node], i);
    }
  }
  __syncthreads();

  int node = 0;
  int accepted = 0;
  if (thread == 0) visited[0] = 0;
  for (int step = 1; step < args.columns; ++step) {
    const int next = successor[node];
    if (next == args.width) break;
    node = next;
    accepted = step;
    if (thread == 0) visited[step] = node;
  }
  __syncthreads();
  const i64 row = static_cast<i64>(request) * args.columns;
  for (int step = thread; step < args.columns; step += ddtree::kStepThreads) {
    const bool on_path = step <= accepted;
    const int at = on_path ? visited[step] : step;
    args.path[row + step] = at;
    args.emitted[row + step] = on_path ? args.target_ids.at(request, at) : 0;
  }
  if (thread == 0) {
    args.accepted[request] = accepted;
    args.bonus[request] = args.target_ids.at(request, node);
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1) ddtree_walk_greedy(ddtree::WalkArgs args) {
  static_assert(ddtree::kWalkThreads == 1024, "as the launch bound says");
  extern __shared__ ddtree::i64 ddtree_shared[];
  u64* keys = reinterpret_cast<u64*>(ddtree_shared);
  const int request = static_cast<int>(blockIdx.x);
  const int thread = thread_index();
  const i64 row = static_cast<i64>(request) * args.columns;
  int node = 0;
  int step = 0;
  i64 token = 0;
  while (true) {
    token = argmax<ddtree::kWalkThreads>(args.logits, request, node, keys + step % 2 * kWarp);
    if (thread == 0) {
      args.path[row + step] = node;
      args.emitted[row + step] = token;
    }
    if (step + 1 == args.columns) break;
    const int next = find_child(args, request, node, token);
    if (next == args.width) break;
    node = next;
    ++step;
  }
  for (int i = step + 1 + thread; i < args.columns; i += ddtree::kWalkThreads) {
    args.path[row + i] = i;
    args.emitted[row + i] = 0;
  }
  if (thread == 0) {
    args.accepted[request] = step;
    args.bonus[request] = token;
  }
}

extern "C" __global__ void __launch_bounds__(512, 2) ddtree_argmax_rows(ddtree::ArgmaxArgs args) {
  static_assert(ddtree::kRowThreads == 512, "as the launch bound says");
  extern __shared__ ddtree::i64 ddtree_shared[];
  const int node = static_cast<int>(blockIdx.x);
  const int request = static_cast<int>(blockIdx.y);
  u64* keys = reinterpret_cast<u64*>(ddtree_shared);
  const int id = argmax<ddtree::kRowThreads>(args.logits, request, node, keys);
  if (thread_index() == 0) args.ids[static_cast<i64>(request) * args.width + node] = id;
}

// One warp a request, one lane an accepted node: the path leaves the spine at the first node that
// is not its parent's first child.
extern "C" __global__ void __launch_bounds__(32) ddtree_count_round(ddtree::CountArgs args) {
  const int request = static_cast<int>(blockIdx.x);
  const i64 given = args.accepted.at(request);
  const int accepted = given < 0 ? 0 : given < args.columns ? static_cast<int>(given)
                                                            : args.columns - 1;
  u32 leaves = static_cast<u32>(accepted) + 1;
  for (int step = 1 + thread_index(); step <= accepted; step += kWarp) {
    const i64 node = args.path.at(request, step);
    bool on_spine = false;
    if (within(node, args.width)) {
      const i64 parent = args.parents.at(request, static_cast<int>(node));
      const int from = within(parent, args.width) ? static_cast<int>(parent) : 0;
      on_spine = args.first_child.at(request, from) == node;
    }
    if (!on_spine && static_cast<u32>(step) < leaves) leaves = static_cast<u32>(step);
  }
  leaves = __reduce_min_sync(kAllLanes, leaves);
  if (thread_index() != 0) return;
  const i64 count = args.counts.at(request);
  const i64 mine[ddtree::kSums] = {1,
                                   count > 0 ? count : 0,
                                   given,
                                   accepted + 1 - static_cast<i64>(leaves),
                                   args.exact[request * args.exact_stride] ? 0 : 1,
                                   count > 0 ? 0 : 1};
#pragma unroll
  for (int i = 0; i < ddtree::kSums; ++i) {
    if (mine[i] != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(args.sums) + i,
                static_cast<unsigned long long>(mine[i]));
    }
  }
}
