// What the search of tree_core.h is given and works in: limits, arguments, scratch.
#pragma once

#include "device.h"

namespace ddtree {

constexpr int kMaxLevels = 63;    // 63 * 2^17 * 2^40 < 2^63: a path score cannot overflow
constexpr int kMaxBudget = 1024;  // nodes besides the root
constexpr int kWordBits = 64;
constexpr float kUnitsPerNat = 1099511627776.0f;  // 2^40
constexpr float kNatsPerUnit = 1.0f / kUnitsPerNat;
constexpr float kAbsentLogprob = -131072.0f;      // -2^17
constexpr i64 kAbsentScore = -0x7fffffffffffffffL - 1;

// What is wrong with a log-probability. A fault is 4 * (level * K + rank) + code, K being the ranks
// given, so that the least fault is the first one, whichever lane finds it.
constexpr i64 kNoFault = 0x7fffffffffffffffL;
constexpr int kFaultNan = 1;
constexpr int kFaultPositive = 2;
constexpr int kFaultUnsorted = 3;

// Arguments of one launch. Strides count elements. Outputs are contiguous: [batch, budget + 1] in
// node order (root first, then as selected), ancestors [batch, budget + 1, words], counts and exact
// [batch].
struct BuildTreeArgs {
  const float* logprobs;
  i64 logprobs_stride[3];
  const i64* token_ids;
  i64 token_ids_stride[3];
  const i64* budgets;  // [batch] or null: each request's own budget, clamped to 0..budget
  i64 budgets_stride;
  const i64* roots;  // [batch] or null: the token of node 0, otherwise kNone
  i64 roots_stride;
  i64* tokens;
  i64* parents;
  i64* depths;
  i64* first_child;
  i64* next_sibling;
  i64* ancestors;
  i64* counts;
  float* scores;
  bool* exact;
  int batch;
  int levels;
  int ranks;
  int budget;
};

DDTREE_FN constexpr int ancestor_words(int budget) { return (budget + kWordBits) / kWordBits; }

// Rank r needs r better siblings in the tree, so ranks from `budget` on cannot matter.
DDTREE_FN constexpr int ranks_used(int ranks, int budget) {
  return ranks < budget ? ranks : budget;
}

// Scratch of one request, carved from one 8-byte aligned block that all lanes see.
struct Workspace {
  i64* units;          // [levels * ranks_used] log-probabilities in fixed point
  i64* entry_score;    // [budget] frontier, in slots; slot i is for lane i % kWidth alone
  i64* node_score;     // [budget + 1]
  int* entry_key;
  int* entry_link;     // packed: node that put the entry there (parent or previous sibling), rank
  int* entry_place;    // packed: parent, depth
  int* node_parent;
  int* node_depth;
  int* node_rank;
  int* node_child;
  int* node_sibling;

  DDTREE_FN static constexpr i64 bytes(int levels, int ranks, int budget) {
    const i64 table = static_cast<i64>(levels) * ranks_used(ranks, budget);
    const i64 nodes = budget + 1;
    return 8 * (table + budget + nodes) + 4 * (3 * static_cast<i64>(budget) + 5 * nodes);
  }

  DDTREE_FN Workspace(void* block, int levels, int ranks, int budget) {
    units = static_cast<i64*>(block);
    entry_score = units + static_cast<i64>(levels) * ranks_used(ranks, budget);
    node_score = entry_score + budget;
    entry_key = reinterpret_cast<int*>(node_score + budget + 1);
    entry_link = entry_key + budget;
    entry_place = entry_link + budget;
    node_parent = entry_place + budget;
    node_depth = node_parent + budget + 1;
    node_rank = node_depth + budget + 1;
    node_child = node_rank + budget + 1;
    node_sibling = node_child + budget + 1;
  }
};

}  // namespace ddtree
