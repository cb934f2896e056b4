// The walk down a verified tree: what ddtree::walk_tree's, walk_greedy's and count_round's CPU ops
// and kernels share. What a walk is: ddtree_overlay/tree/walk.py.
#pragma once

#include "logits.h"

namespace ddtree {

constexpr int kMaxWalkWidth = 1025;  // nodes of the largest tree, the root included
constexpr int kLoadsInFlight = 4;    // of one thread
constexpr int kStepThreads = 256;    // of a block that walks by given ids
constexpr int kRowThreads = 512;     // of a block that takes the argmax of one row
constexpr int kWalkThreads = 1024;   // of a block that walks, and has a multiprocessor to itself
// Dynamic shared memory of those two: a key a warp, and for a walk two sets of them.
constexpr int kRowShared = kRowThreads / 32 * 8;
constexpr int kWalkShared = kWalkThreads / 32 * 8 * 2;

enum Sum { kTrees, kNodes, kAccepted, kOffSpine, kTruncated, kFallbacks, kSums };

// int64 [rows, columns] or [rows]; strides count elements.
struct Integers {
  const i64* data;
  i64 row_stride;
  i64 stride;

  DDTREE_FN i64 at(int row, int column = 0) const {
    return data[row * row_stride + column * stride];
  }
};

// Logits [batch, width, vocabulary], of which the last dimension is contiguous.
struct Logits {
  const void* data;
  i64 request_stride;
  i64 node_stride;
  int type;
  int vocabulary;
};

// Outputs are contiguous: path and emitted [batch, columns], accepted and bonus [batch]. Of
// target_ids and logits only that which the kernel reads is given.
struct WalkArgs {
  Integers tokens;      // [batch, width]
  Integers parents;     // [batch, width]
  Integers target_ids;  // [batch, width]
  Logits logits;
  i64* path;
  i64* accepted;
  i64* emitted;
  i64* bonus;
  int batch;
  int width;
  int columns;

  // Bytes of shared memory for the walk by given ids: a node's successor, the node of a step.
  DDTREE_FN static constexpr i64 bytes(int width, int columns) {
    return 4 * (static_cast<i64>(width) + columns);
  }
};

struct ArgmaxArgs {
  Logits logits;
  i64* ids;  // [batch, width]
  int width;
};

struct CountArgs {
  Integers parents;      // [batch, width]
  Integers first_child;  // [batch, width]
  Integers counts;       // [batch]
  const bool* exact;     // [batch]
  i64 exact_stride;
  Integers path;      // [batch, columns]
  Integers accepted;  // [batch]
  i64* sums;          // [kSums]
  int batch;
  int width;
  int columns;
};

// The largest value of those offered in ascending order of their indices, and the first index that
// has it. A NaN is larger than all others, as in torch.argmax.
struct Largest {
  float value;
  int index;

  DDTREE_FN static Largest none() { return {negative_infinity(), 0x7fffffff}; }

  DDTREE_FN void offer(float other, int at) {
    if (!(other <= value) && value == value) {
      value = other;
      index = at;
    }
  }

  // Keys compare as what they stand for does, whatever the order of the indices.
  DDTREE_FN u64 key() const {
    const u32 order = value == value ? orderable(value) : 0xffffffffu;
    return static_cast<u64>(order) << 32 | (0xffffffffu - static_cast<u32>(index));
  }

  // Nothing but -inf leaves no index: the first one has it.
  DDTREE_FN static int index_of(u64 key) {
    const u32 index = 0xffffffffu - static_cast<u32>(key);
    return index == 0x7fffffffu ? 0 : static_cast<int>(index);
  }
};

// Whether to take the argmax of all rows before the walk instead of only those that it visits.
//
// By visited rows, a block a request reads one row after another, at what one multiprocessor takes
// in: some 64 bytes a clock of fp32 logits, 45 of bf16 (six instructions an element). All rows at
// once go at the memory's bandwidth, which gives each of M multiprocessors a share: 20 bytes a
// clock on an H200 (4.8 TB/s, 132, 1.8 GHz), 4 on an RTX PRO 6000 (1.79 TB/s, 188, 2.4 GHz). For R
// rows, and v visited by each walk, R / (M share) and v / 64 are equal at R = M v share / 64. With
// v = 8 (7 accepted tokens) that is 2.5 M on an H200 and 0.5 M on an RTX PRO 6000. M lies between:
// near it the other way would be up to some 25 us quicker (see benchmarks/kernels.md), and on
// neither is a batch of one (65 rows for 64 nodes) read row by row.
DDTREE_FN constexpr bool walks_eagerly(i64 batch, i64 width, i64 multiprocessors) {
  return batch * width <= multiprocessors;
}

}  // namespace ddtree
