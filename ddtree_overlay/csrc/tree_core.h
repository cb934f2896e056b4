// Best-first draft tree, the one source of the algorithm for the CPU op and the CUDA kernel.
//
// A request gives, for each of L draft positions ("levels"), K log-probabilities in descending
// order. A node at depth d is a rank tuple (r1..rd) and scores sum(logprob[i][ri]). Nodes are
// chosen in the total order "score descending, then rank tuple lexicographically ascending, a
// prefix before its extensions", of which the first `budget` are always prefix-closed.
//
// Method: `budget` times, take the argmax over the frontier, then put the node's first child and
// next sibling in its place. In that order they sit between the same neighbours as the node did,
// so the frontier stays lexicographically sorted without ever comparing tuples: among equal scores
// the lower index wins, and that is the whole tie rule.
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
// This header includes nothing: NVRTC compiles it without a host header in sight. The caller
// supplies `Lanes`, the threads that cooperate on one request (a warp, or a single CPU thread):
//   static constexpr int kWidth;        number of lanes
//   int lane() const;                   this lane, 0 <= lane < kWidth
//   void sync() const;                  barrier; orders the lanes' memory accesses
//   Candidate best(Candidate) const;    the best of all lanes' candidates, on every lane
//   i64 least(i64) const;               the minimum over all lanes, on every lane
// Every lane calls them in the same order.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define DDTREE_FN __device__ __forceinline__
#else
#define DDTREE_FN inline
#endif

namespace ddtree {

typedef long i64;
typedef unsigned long u64;
static_assert(sizeof(i64) == 8, "an LP64 platform is assumed");

constexpr int kMaxLevels = 63;    // 63 * 2^17 * 2^40 < 2^63: a path score cannot overflow
constexpr int kMaxBudget = 1024;  // nodes besides the root
constexpr int kWordBits = 64;
constexpr float kUnitsPerNat = 1099511627776.0f;  // 2^40
constexpr float kNatsPerUnit = 1.0f / kUnitsPerNat;
constexpr float kAbsentLogprob = -131072.0f;      // -2^17
constexpr i64 kAbsentScore = -0x7fffffffffffffffL - 1;
constexpr int kNone = -1;

// What is wrong with a log-probability. A fault is 4 * (level * ranks + rank) + code, so that the
// least fault is the first one, whichever lane finds it.
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

struct Candidate {
  i64 score;
  int index;
};

DDTREE_FN Candidate better(Candidate a, Candidate b) {
  const bool b_wins = b.score > a.score || (b.score == a.score && b.index < a.index);
  return b_wins ? b : a;
}

DDTREE_FN constexpr int ancestor_words(int budget) { return (budget + kWordBits) / kWordBits; }

// Rank r needs r better siblings in the tree, so ranks from `budget` on cannot matter.
DDTREE_FN constexpr int ranks_used(int ranks, int budget) {
  return ranks < budget ? ranks : budget;
}

// Scratch of one request, carved from one 8-byte aligned block that all lanes see.
struct Workspace {
  i64* units;          // [levels * ranks_used] log-probabilities in fixed point
  i64* entry_score;    // [budget] frontier, in lexicographic order
  i64* node_score;     // [budget + 1]
  int* entry_prev;     // node that put the entry there: its parent (rank 0) or previous sibling
  int* entry_rank;
  int* node_parent;
  int* node_depth;
  int* node_rank;
  int* node_child;
  int* node_sibling;

  DDTREE_FN static constexpr i64 bytes(int levels, int ranks, int budget) {
    const i64 table = static_cast<i64>(levels) * ranks_used(ranks, budget);
    const i64 nodes = budget + 1;
    return 8 * (table + budget + nodes) + 4 * (2 * static_cast<i64>(budget) + 5 * nodes);
  }

  DDTREE_FN Workspace(void* block, int levels, int ranks, int budget) {
    units = static_cast<i64*>(block);
    entry_score = units + static_cast<i64>(levels) * ranks_used(ranks, budget);
    node_score = entry_score + budget;
    entry_prev = reinterpret_cast<int*>(node_score + budget + 1);
    entry_rank = entry_prev + budget;
    node_parent = entry_rank + budget;
    node_depth = node_parent + budget + 1;
    node_rank = node_depth + budget + 1;
    node_child = node_rank + budget + 1;
    node_sibling = node_child + budget + 1;
  }
};

DDTREE_FN i64 extend(i64 score, i64 units) {
  return units == kAbsentScore ? kAbsentScore : score + units;
}

// Reads one request's log-probabilities into fixed point; returns the first fault or kNoFault.
template <class Lanes>
DDTREE_FN i64 load_units(const Lanes& lanes, const BuildTreeArgs& args, int request, int ranks,
                         const Workspace& work) {
  const float* row = args.logprobs + request * args.logprobs_stride[0];
  const int total = args.levels * ranks;
  i64 fault = kNoFault;
  for (int i = lanes.lane(); i < total; i += Lanes::kWidth) {
    const int level = i / ranks;
    const int rank = i - level * ranks;
    const float* at = row + level * args.logprobs_stride[1] + rank * args.logprobs_stride[2];
    const float value = *at;
    int code = 0;
    if (value != value) {
      code = kFaultNan;
    } else if (value > 0.0f) {
      code = kFaultPositive;
    } else if (rank > 0 && value > at[-args.logprobs_stride[2]]) {
      code = kFaultUnsorted;
    }
    const i64 found = 4 * static_cast<i64>(i) + code;
    if (code != 0 && found < fault) fault = found;
    work.units[i] = code != 0 || value <= kAbsentLogprob
                        ? kAbsentScore
                        : static_cast<i64>(value * kUnitsPerNat);
  }
  return lanes.least(fault);
}

// Moves entries [first, size) up by one, the highest first so that none is overwritten unread.
template <class Lanes>
DDTREE_FN void open_gap(const Lanes& lanes, const Workspace& work, int first, int size) {
  for (int high = size; high > first; high -= Lanes::kWidth) {
    const int i = high - 1 - lanes.lane();
    i64 score = 0;
    int prev = 0;
    int rank = 0;
    if (i >= first) {
      score = work.entry_score[i];
      prev = work.entry_prev[i];
      rank = work.entry_rank[i];
    }
    lanes.sync();
    if (i >= first) {
      work.entry_score[i + 1] = score;
      work.entry_prev[i + 1] = prev;
      work.entry_rank[i + 1] = rank;
    }
    lanes.sync();
  }
}

DDTREE_FN void put_entry(const Workspace& work, int at, i64 score, int prev, int rank) {
  work.entry_score[at] = score;
  work.entry_prev[at] = prev;
  work.entry_rank[at] = rank;
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
template <class Lanes>
DDTREE_FN int select_nodes(const Lanes& lanes, const BuildTreeArgs& args, int ranks,
                           const Workspace& work) {
  const bool leader = lanes.lane() == 0;
  if (leader) {
    put_node(work, 0, 0, kNone, 0, kNone);
    put_entry(work, 0, work.units[0], 0, 0);
  }
  lanes.sync();
  int size = 1;
  int node = 1;
  for (; node <= args.budget; ++node) {
    Candidate mine = {kAbsentScore, args.budget};
    for (int i = lanes.lane(); i < size; i += Lanes::kWidth) {
      mine = better(mine, Candidate{work.entry_score[i], i});
    }
    const Candidate top = lanes.best(mine);
    if (top.score == kAbsentScore) break;

    const int prev = work.entry_prev[top.index];
    const int rank = work.entry_rank[top.index];
    const int parent = rank == 0 ? prev : work.node_parent[prev];
    const int depth = work.node_depth[parent] + 1;
    const i64* level = work.units + static_cast<i64>(depth - 1) * ranks;
    const i64 child = depth < args.levels ? extend(top.score, level[ranks]) : kAbsentScore;
    const i64 sibling =
        rank + 1 < ranks ? extend(work.node_score[parent], level[rank + 1]) : kAbsentScore;
    const bool both = child != kAbsentScore && sibling != kAbsentScore;
    lanes.sync();

    const bool last = node == args.budget;
    if (both && !last) open_gap(lanes, work, top.index + 1, size);
    if (leader) {
      put_node(work, node, top.score, parent, depth, rank);
      (rank == 0 ? work.node_child : work.node_sibling)[prev] = node;
      if (child != kAbsentScore) {
        put_entry(work, top.index, child, node, 0);
      } else {
        put_entry(work, top.index, sibling, node, rank + 1);
      }
      if (both && !last) put_entry(work, top.index + 1, sibling, node, rank + 1);
    }
    if (both) ++size;
    lanes.sync();
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
      token = kNone;
    } else if (selected) {
      token = ids[(work.node_depth[node] - 1) * args.token_ids_stride[1] +
                  work.node_rank[node] * args.token_ids_stride[2]];
    }
    args.tokens[at] = token;
    args.parents[at] = selected ? work.node_parent[node] : kNone;
    args.depths[at] = selected ? work.node_depth[node] : 0;
    args.first_child[at] = selected ? work.node_child[node] : kNone;
    args.next_sibling[at] = selected ? work.node_sibling[node] : kNone;
    args.scores[at] = selected ? static_cast<float>(work.node_score[node]) * kNatsPerUnit
                               : kAbsentLogprob;
    write_ancestors(work, node, selected, words, args.ancestors + at * words);
  }
}

// Builds the tree of one request; `block` holds Workspace::bytes(...) bytes. Returns the fault, or
// kNoFault. A faulty request gets a tree of the root alone and counts = -fault.
template <class Lanes>
DDTREE_FN i64 build_tree(const Lanes& lanes, const BuildTreeArgs& args, int request, void* block) {
  const Workspace work(block, args.levels, args.ranks, args.budget);
  const int ranks = ranks_used(args.ranks, args.budget);
  const i64 fault = load_units(lanes, args, request, ranks, work);
  const bool faulty = fault != kNoFault;
  // A faulty table is not searched, but the root is still set up for the padded output.
  if (faulty && lanes.lane() == 0) work.units[0] = kAbsentScore;
  lanes.sync();
  const int count = select_nodes(lanes, args, ranks, work);
  lanes.sync();
  write_outputs(lanes, args, request, count, work);

  // With fewer ranks than nodes, a node of the last rank may have a better sibling that was cut
  // off; if there is none, no tuple beyond the table can belong to the tree.
  i64 cut = kNoFault;
  if (ranks < args.budget) {
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
