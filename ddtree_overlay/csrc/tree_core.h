// Best-first draft tree, the one source of the algorithm for the CPU op and the CUDA kernel.
//
// A request gives, for each of L draft positions ("levels"), K log-probabilities in descending
// order. A node at depth d is a rank tuple (r1..rd) and scores sum(logprob[i][ri]). Nodes are
// chosen in the total order "score descending, then rank tuple lexicographically ascending, a
// prefix before its extensions", of which the first `budget` are always prefix-closed.
//
// Method: `budget` times, take the argmax over the frontier, then put the node's first child and
// next sibling in its place. In that order they sit between the same neighbours as the node did,
// so the frontier's lexicographic order is known without ever comparing tuples: every entry carries
// its place in it, which goes up by one when an entry is put in before it. Among equal scores the
// earlier place wins, and that is the whole tie rule.
//
// Scores are fixed-point, 2^-40 in an int64. Addition is then exact and associative, so every
// device and every tensor-parallel rank compares the same integers. A log-probability in
// (-131072, 0] scales exactly in fp32 and is truncated towards zero, which changes nothing at or
// below -2^-17 (24-bit mantissa) and less than 2^-40 above it. kMaxLevels bounds the sum. There is
// no other floating-point arithmetic whose contraction or order could differ.
//
// A log-probability at or below -131072, -inf included, means "no such token" (probability zero in
// every float format): it never becomes a node, and neither does what follows it.
//
// The caller supplies `Lanes`, the threads that cooperate on one request (a warp, or a single CPU
// thread):
//   static constexpr int kWidth;        number of lanes, at most 32
//   int lane() const;                   this lane, 0 <= lane < kWidth
//   void sync() const;                  barrier; orders the lanes' memory accesses
//   Candidate best(Candidate) const;    the best of all lanes' candidates, on every lane
//   int from(int value, int lane) const;  that lane's value, on every lane
//   i64 least(i64) const;               the minimum over all lanes, on every lane
// Every lane calls them in the same order.
#pragma once

#include "tree_types.h"

namespace ddtree {

// A frontier entry: `key` is its place in the lexicographic order (times kSlots) plus its slot.
struct Candidate {
  i64 score;
  int key;
};

constexpr int kSlots = kMaxBudget;  // places stay below kMaxBudget too: one more with each pop
constexpr int kNoKey = 0x7fffffff;
static_assert((kSlots & (kSlots - 1)) == 0, "a key's slot is its low bits");

DDTREE_FN Candidate better(Candidate a, Candidate b) {
  const bool b_wins = b.score > a.score || (b.score == a.score && b.key < a.key);
  return b_wins ? b : a;
}

// A request's own budget. All that is said of a budget (ranks used, faults found, the certificate)
// holds for it; the launch's budget only sets the width of the outputs.
DDTREE_FN int request_budget(const BuildTreeArgs& args, int request) {
  if (args.budgets == nullptr) return args.budget;
  const i64 own = args.budgets[request * args.budgets_stride];
  return own < 0 ? 0 : own < args.budget ? static_cast<int>(own) : args.budget;
}

// Two fields below 2^16 in an int.
DDTREE_FN constexpr int pack(int low, int high) { return low | high << 16; }
DDTREE_FN constexpr int low_of(int packed) { return packed & 0xffff; }
DDTREE_FN constexpr int high_of(int packed) { return packed >> 16; }

DDTREE_FN i64 extend(i64 score, i64 units) {
  return units == kAbsentScore ? kAbsentScore : score + units;
}

DDTREE_FN i64 to_units(float logprob) {
  const bool present = logprob > kAbsentLogprob && logprob <= 0.0f;
  return present ? static_cast<i64>(logprob * kUnitsPerNat) : kAbsentScore;
}

// What is wrong with a log-probability that is not at most the one `before` it, which for the first
// of a level is 0.
DDTREE_FN int fault_code(float logprob) {
  return logprob != logprob ? kFaultNan : logprob > 0.0f ? kFaultPositive : kFaultUnsorted;
}

// Reads one request's log-probabilities into fixed point; returns the first fault or kNoFault. A
// lane issues several loads at a time: one after the other they would take longer than the search.
template <class Lanes>
DDTREE_FN i64 load_units(const Lanes& lanes, const BuildTreeArgs& args, int request, int ranks,
                         const Workspace& work) {
  if (ranks == 0) return kNoFault;
  constexpr int kBatch = 8;
  const float* row = args.logprobs + request * args.logprobs_stride[0];
  const i64 level_stride = args.logprobs_stride[1];
  const i64 rank_stride = args.logprobs_stride[2];
  const int total = args.levels * ranks;
  // Level and rank advance with the index: a division for each would cost more than all the rest.
  const int level_step = Lanes::kWidth / ranks;
  const int rank_step = Lanes::kWidth - level_step * ranks;
  int level = lanes.lane() / ranks;
  int rank = lanes.lane() - level * ranks;
  i64 fault = kNoFault;
  for (int first = lanes.lane(); first < total; first += kBatch * Lanes::kWidth) {
    float values[kBatch];
    float before[kBatch];
    DDTREE_UNROLL
    for (int u = 0; u < kBatch; ++u) {
      const bool exists = first + u * Lanes::kWidth < total;
      const float* at = row + level * level_stride + rank * rank_stride;
      values[u] = exists ? *at : 0.0f;
      before[u] = exists && rank > 0 ? at[-rank_stride] : 0.0f;
      rank += rank_step;
      level += level_step;
      if (rank >= ranks) {
        rank -= ranks;
        ++level;
      }
    }
    DDTREE_UNROLL
    for (int u = 0; u < kBatch; ++u) {
      const int i = first + u * Lanes::kWidth;
      if (i >= total) break;
      work.units[i] = to_units(values[u]);
      // False for a NaN too; what follows a NaN is never the first fault.
      if (values[u] <= before[u]) continue;
      const i64 index = static_cast<i64>(i / ranks) * args.ranks + i % ranks;
      const i64 found = 4 * index + fault_code(values[u]);
      if (found < fault) fault = found;
    }
  }
  return lanes.least(fault);
}

DDTREE_FN void put_entry(const Workspace& work, int slot, i64 score, int key, int link, int place) {
  work.entry_score[slot] = score;
  work.entry_key[slot] = key;
  work.entry_link[slot] = link;
  work.entry_place[slot] = place;
}

DDTREE_FN void put_node(const Workspace& work, int node, i64 score, int parent, int depth,
                        int rank) {
  work.node_score[node] = score;
  work.node_parent[node] = parent;
  work.node_depth[node] = depth;
  work.node_rank[node] = rank;
  work.node_child[node] = kNone;
  work.node_sibling[node] = kNone;
}

// The B pops. Returns the number of nodes selected, the root not counted. At most one entry is
// added per pop and none after the last, so the frontier never exceeds `budget` entries.
//
// No barrier in the loop: an entry is read and written by the lane of its slot only, a node by the
// leader only until the loop has ended, and `units` no longer changes.
template <class Lanes>
DDTREE_FN int select_nodes(const Lanes& lanes, const BuildTreeArgs& args, int ranks, int budget,
                           const Workspace& work) {
  const int lane = lanes.lane();
  const bool leader = lane == 0;
  if (leader) {
    put_node(work, 0, 0, kNone, 0, kNone);
    if (budget > 0) put_entry(work, 0, work.units[0], 0, pack(0, 0), pack(0, 1));
  }
  int size = 1;
  int taken = kNoKey;  // key of the last pop
  int node = 1;
  for (; node <= budget; ++node) {
    Candidate mine = {kAbsentScore, kNoKey};
    for (int slot = lane; slot < size; slot += Lanes::kWidth) {
      // Makes room behind the last pop, for all at once. The entry that it added has its place and
      // a higher slot, and so moves up behind the one in its own slot.
      const int key = work.entry_key[slot] + (work.entry_key[slot] > taken ? kSlots : 0);
      work.entry_key[slot] = key;
      const i64 score = work.entry_score[slot];
      if (score >= mine.score) mine = better(mine, Candidate{score, key});
    }
    const Candidate top = lanes.best(mine);
    if (top.score == kAbsentScore) break;

    taken = top.key;
    const int slot = top.key & (kSlots - 1);
    const int owner = slot % Lanes::kWidth;
    const int link = lanes.from(lane == owner ? work.entry_link[slot] : 0, owner);
    const int place = lanes.from(lane == owner ? work.entry_place[slot] : 0, owner);
    const int prev = low_of(link);
    const int rank = high_of(link);
    const int parent = low_of(place);
    const int depth = high_of(place);
    const i64* level = work.units + (depth - 1) * ranks;
    const i64 child = depth < args.levels ? extend(top.score, level[ranks]) : kAbsentScore;
    const i64 sibling =
        rank + 1 < ranks ? extend(top.score - level[rank], level[rank + 1]) : kAbsentScore;
    const bool has_child = child != kAbsentScore;
    const bool both = has_child && sibling != kAbsentScore && node < budget;

    const int child_link = pack(node, 0);
    const int child_place = pack(node, depth + 1);
    const int sibling_link = pack(node, rank + 1);
    if (lane == owner) {
      put_entry(work, slot, has_child ? child : sibling, top.key,
                has_child ? child_link : sibling_link, has_child ? child_place : place);
    }
    if (both && lane == size % Lanes::kWidth) {
      put_entry(work, size, sibling, top.key - slot + size, sibling_link, place);
    }
    size += both ? 1 : 0;
    if (leader) {
      put_node(work, node, top.score, parent, depth, rank);
      (rank == 0 ? work.node_child : work.node_sibling)[prev] = node;
    }
  }
  return node - 1;
}

// Writes row `node` of the packed ancestor matrix: bit j of the row (bit j % 64 of word j / 64) is
// set when j is the node or one of its ancestors. Parents precede children, so the walk to the root
// visits words in descending order and each is written once.
DDTREE_FN void write_ancestors(const Workspace& work, int node, bool selected, int words,
                               i64* row) {
  int word = words - 1;
  u64 bits = 0;
  for (int at = node; at >= 0; at = selected ? work.node_parent[at] : kNone) {
    for (; word > at / kWordBits; --word) {
      row[word] = static_cast<i64>(bits);
      bits = 0;
    }
    bits |= static_cast<u64>(1) << (at % kWordBits);
  }
  for (; word >= 0; --word) {
    row[word] = static_cast<i64>(bits);
    bits = 0;
  }
}

// Writes every output element of a request exactly once. Slots beyond the count are padding that a
// verify forward can run over: token 0, depth 0, no links, attention to itself only.
template <class Lanes>
DDTREE_FN void write_outputs(const Lanes& lanes, const BuildTreeArgs& args, int request, int count,
                             const Workspace& work) {
  const i64* ids = args.token_ids + request * args.token_ids_stride[0];
  const int width = args.budget + 1;
  const int words = ancestor_words(args.budget);
  for (int node = lanes.lane(); node < width; node += Lanes::kWidth) {
    const i64 at = static_cast<i64>(request) * width + node;
    const bool selected = node <= count;
    i64 token = 0;
    if (node == 0) {
      token = args.roots == nullptr ? kNone : args.roots[request * args.roots_stride];
    } else if (selected) {
      token = ids[(work.node_depth[node] - 1) * args.token_ids_stride[1] +
                  work.node_rank[node] * args.token_ids_stride[2]];
    }
    args.parents[at] = selected ? work.node_parent[node] : kNone;
    args.depths[at] = selected ? work.node_depth[node] : 0;
    args.first_child[at] = selected ? work.node_child[node] : kNone;
    args.next_sibling[at] = selected ? work.node_sibling[node] : kNone;
    args.scores[at] = selected ? static_cast<float>(work.node_score[node]) * kNatsPerUnit
                               : kAbsentLogprob;
    write_ancestors(work, node, selected, words, args.ancestors + at * words);
    args.tokens[at] = token;  // last: the walk to the root takes as long as the load of the token
  }
}

// Builds the tree of one request; `block` holds Workspace::bytes(...) bytes. Returns the fault, or
// kNoFault. A faulty request gets a tree of the root alone and counts = -fault.
template <class Lanes>
DDTREE_FN i64 build_tree(const Lanes& lanes, const BuildTreeArgs& args, int request, void* block) {
  const Workspace work(block, args.levels, args.ranks, args.budget);
  const int budget = request_budget(args, request);
  const int ranks = ranks_used(args.ranks, budget);
  const i64 fault = load_units(lanes, args, request, ranks, work);
  const bool faulty = fault != kNoFault;
  lanes.sync();
  const int count = select_nodes(lanes, args, ranks, faulty ? 0 : budget, work);
  lanes.sync();
  write_outputs(lanes, args, request, count, work);

  // With fewer ranks than nodes, a node of the last rank may have a better sibling that was cut
  // off; if there is none, no tuple beyond the table can belong to the tree.
  i64 cut = kNoFault;
  if (ranks < budget) {
    for (int node = 1 + lanes.lane(); node <= count; node += Lanes::kWidth) {
      if (work.node_rank[node] == ranks - 1) cut = 0;
    }
  }
  cut = lanes.least(cut);
  if (lanes.lane() == 0) {
    args.counts[request] = faulty ? -fault : count;
    args.exact[request] = !faulty && cut == kNoFault;
  }
  return fault;
}

}  // namespace ddtree
