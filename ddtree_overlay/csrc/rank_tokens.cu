// ddtree::rank_shard, merge_shards and rank_tokens on the device: the best k tokens of each row and
// its normaliser, in one pass over the logits.
//
// Compiled ahead of time by NVRTC, so nothing of a host header may be included. Launch: blocks of
// kRankThreads; ddtree_rank_shard on grid (rows, segments) with a RankShared as dynamic shared
// memory, ddtree_merge_shards on grid (rows) with a MergeShared.
//
// A block keeps a floor: a key that at least k keys of its segment reach. Only keys at or above the
// floor enter the block's buffer. The floor is the k-th best of the running maxima of thread pairs,
// taken after 1, 2, 4, 8.. rounds, so few keys beyond k ever pass it. Input made to fill the buffer
// costs time, not results: a bit for each key that finds it full waits in its thread until the
// buffer has been cut to its best k and the floor raised.
#include "rank_block.h"

namespace ddtree {
namespace {

struct Row {
  const char* base;  // of the first vector: at or before the row's first element
  int lead;          // elements of the first vector that come before the row
  int columns;
  i64 stride;        // between elements, in elements
};

template <class Type>
DDTREE_FN Row find_row(const RankArgs& args, i64 row) {
  typedef typename Type::Bits Bits;
  const char* first = static_cast<const char*>(args.logits) +
                      row * args.row_stride * static_cast<i64>(sizeof(Bits));
  const int past = static_cast<int>(reinterpret_cast<u64>(first) % kVectorBytes);
  const int lead = args.stride == 1 ? past / static_cast<int>(sizeof(Bits)) : 0;
  return {first - lead * static_cast<int>(sizeof(Bits)), lead, args.vocabulary, args.stride};
}

// Loads this thread's `active` vectors of a round, from `vector` on in steps of the block. What is
// not of the row becomes -inf.
template <class Type>
DDTREE_FN void load(RankShared& shared, const Row& row, int vector, int active) {
  typedef typename Type::Bits Bits;
  const Vector absent = {{Type::kAbsent, Type::kAbsent, Type::kAbsent, Type::kAbsent}};
  Vector loaded[kVectorsInFlight];
  u32 partial = 0;
  DDTREE_UNROLL
  for (int u = 0; u < kVectorsInFlight; ++u) {
    const int at = vector + u * kRankThreads;
    const int first = at * Type::kLanes - row.lead;
    const bool whole = row.stride == 1 && first >= 0 && first + Type::kLanes <= row.columns;
    loaded[u] = absent;
    if (u < active && whole) {
      loaded[u] = *reinterpret_cast<const Vector*>(row.base + static_cast<i64>(at) * kVectorBytes);
    }
    if (u < active && !whole) partial |= 1u << u;
  }
  DDTREE_UNROLL
  for (int u = 0; u < kVectorsInFlight; ++u) {
    shared.vectors[u * kRankThreads + thread_index()] = loaded[u];
  }
  // The ends of a row that are not whole vectors, and rows whose elements do not touch.
  const Bits* elements = reinterpret_cast<const Bits*>(row.base);
  DDTREE_ROLLED
  for (; partial != 0; partial &= partial - 1) {
    const int u = __ffs(static_cast<int>(partial)) - 1;
    const int first = (vector + u * kRankThreads) * Type::kLanes - row.lead;
    Vector& filled = shared.vectors[u * kRankThreads + thread_index()];
    constexpr int kPerWord = Type::kLanes / 4;
    DDTREE_UNROLL
    for (int i = 0; i < 4; ++i) {
      u32 word = Type::kAbsent;
      DDTREE_UNROLL
      for (int part = 0; part < kPerWord; ++part) {
        const int column = first + i * kPerWord + part;
        if (column < 0 || column >= row.columns) continue;
        const u32 bits = elements[(column + row.lead) * row.stride];
        constexpr u32 kMask = kPerWord == 1 ? 0xffffffffu : 0xffffu;
        word = (word & ~(kMask << (16 * part))) | bits << (16 * part);
      }
      filled.words[i] = word;
    }
  }
}

// Offers the elements of this thread's `active` vectors whose bits of `todo` are set; returns the
// bits of those that found the buffer full. `first_id` is the token of the first vector's first
// element.
template <class Type>
DDTREE_FN u32 offer(RankShared& shared, int active, u32 todo, u32 first_id) {
  static_assert(kVectorsInFlight * Type::kLanes <= 32, "a bit for each element");
  const u64 floor = floor_of(shared);
  const u32 order = static_cast<u32>(floor >> 32);
  const float least = order == 0 ? negative_infinity() : from_orderable(order);
  u32 waiting = 0;
  DDTREE_ROLLED
  for (int u = 0; u < active; ++u) {
    const int at = u * kRankThreads + thread_index();
    if (!(shared.peaks[at] >= least)) continue;
    const Vector vector = shared.vectors[at];
    u32 found = 0;
    DDTREE_UNROLL
    for (int lane = 0; lane < Type::kLanes; ++lane) {
      if (element<Type>(vector, lane) >= least) found |= 1u << lane;
    }
    found &= todo >> (u * Type::kLanes);
    DDTREE_ROLLED
    for (; found != 0; found &= found - 1) {
      const int lane = __ffs(static_cast<int>(found)) - 1;
      const u32 id = first_id + static_cast<u32>(u * kRankThreads * Type::kLanes + lane);
      const u64 key = make_key(element<Type>(shared.vectors[at], lane), id);
      if (key < floor) continue;
      const int slot = atomicAdd(&shared.count, 1);
      if (slot < kCandidates) {
        shared.keys[slot] = key;
      } else {
        waiting |= 1u << (u * Type::kLanes + lane);
      }
    }
  }
  return waiting;
}

// Adds a vector to the normaliser; returns the vector's maximum.
template <class Type>
DDTREE_FN float add_vector(const Vector& vector, Normaliser& seen) {
  float peak = negative_infinity();
  DDTREE_UNROLL
  for (int lane = 0; lane < Type::kLanes; ++lane) peak = fmaxf(peak, element<Type>(vector, lane));
  seen.raise(peak);
  const float base = seen.base();
  // Pairs first: fewer additions in a row, so less rounding.
  float sum = 0.0f;
  DDTREE_UNROLL
  for (int lane = 0; lane < Type::kLanes; lane += 2) {
    sum += exp_below(element<Type>(vector, lane) - base) +
           exp_below(element<Type>(vector, lane + 1) - base);
  }
  seen.sum += sum;
  return peak;
}

template <class Type>
DDTREE_FN void rank_segment(const RankArgs& args, RankShared& shared) {
  const int thread = thread_index();
  const i64 index = blockIdx.x;
  const Row row = find_row<Type>(args, index);
  const int vectors = (row.lead + row.columns + Type::kLanes - 1) / Type::kLanes;
  const int begin = static_cast<int>(blockIdx.y) * args.segment_vectors;
  const int end = begin + args.segment_vectors < vectors ? begin + args.segment_vectors : vectors;

  if (thread == 0) {
    shared.floor_key = 1;  // every candidate, but not key 0
    shared.floor_value = 0;
    shared.count = 0;
  }
  // The first barrier of raise_floor() comes before any use: in the first round, or in the cut of a
  // segment that has none.

  Normaliser seen = Normaliser::none();
  int round = 0;
  bool fresh = false;  // the floor is that of all maxima so far
  for (int at = begin; at < end; at += kVectorsInFlight * kRankThreads, ++round) {
    const int mine = (end - at - thread + kRankThreads - 1) / kRankThreads;
    const int active = mine < kVectorsInFlight ? mine : kVectorsInFlight;
    load<Type>(shared, row, at + thread, active);
    DDTREE_ROLLED
    for (int u = 0; u < active; ++u) {
      const int own = u * kRankThreads + thread;
      shared.peaks[own] = add_vector<Type>(shared.vectors[own], seen);
    }
    fresh = (round & (round + 1)) == 0;
    if (fresh) raise_floor(shared, seen.max, args.k);

    const u32 first_id = static_cast<u32>(args.id_offset) +
                         static_cast<u32>((at + thread) * Type::kLanes - row.lead);
    u32 waiting = offer<Type>(shared, active, 0xffffffffu, first_id);
    while (__syncthreads_or(waiting != 0 ? 1 : 0) != 0) {
      cut_buffer(shared, seen.max, args.k, fresh);
      waiting = offer<Type>(shared, active, waiting, first_id);
    }
  }
  cut_buffer(shared, seen.max, args.k, fresh);

  seen = join_warp(seen);
  if (thread % kWarpLanes == 0) shared.normalisers[thread / kWarpLanes] = seen.word();
  __syncthreads();
  u64* packed = reinterpret_cast<u64*>(args.packed) +
                (static_cast<i64>(blockIdx.y) * args.rows + index) * (args.k + 1);
  if (thread < args.k) packed[thread] = shared.best[thread];
  if (thread == 0) {
    DDTREE_ROLLED
    for (int warp = 1; warp < kWarps; ++warp) {
      seen = seen.joined(Normaliser::from_word(shared.normalisers[warp]));
    }
    packed[args.k] = seen.word();
  }
}

}  // namespace
}  // namespace ddtree

extern "C" __global__ void __launch_bounds__(ddtree::kRankThreads)
    ddtree_rank_shard(ddtree::RankArgs args) {
  alignas(16) extern __shared__ ddtree::i64 ddtree_shared[];
  auto& shared = *reinterpret_cast<ddtree::RankShared*>(ddtree_shared);
  if (args.type == ddtree::kBf16) {
    ddtree::rank_segment<ddtree::Bf16>(args, shared);
  } else if (args.type == ddtree::kFp16) {
    ddtree::rank_segment<ddtree::Fp16>(args, shared);
  } else {
    ddtree::rank_segment<ddtree::Fp32>(args, shared);
  }
}

extern "C" __global__ void __launch_bounds__(ddtree::kRankThreads)
    ddtree_merge_shards(ddtree::MergeArgs args) {
  using namespace ddtree;
  alignas(16) extern __shared__ ddtree::i64 ddtree_shared[];
  auto& shared = *reinterpret_cast<MergeShared*>(ddtree_shared);
  const int thread = thread_index();
  const i64 row = blockIdx.x;
  const u64* words = reinterpret_cast<const u64*>(args.candidates) + row * args.row_stride;

  // The first keys of each list: the k-th best of them is a floor for the whole.
  int depth = (kHeads + args.lists - 1) / args.lists;
  if (depth > args.list_ranks) depth = args.list_ranks;
  const int heads = args.lists * depth;
  for (int i = thread; i < heads; i += kRankThreads) {
    shared.heads[i] = words[i / depth * args.list_stride + i % depth * args.word_stride];
  }
  if (thread == 0) shared.count = 0;
  sort_best(shared.heads, heads, args.k, shared.best);
  const u64 last = shared.best[args.k - 1];
  const u64 floor = last == 0 ? 1 : last;

  for (int i = thread; i < args.lists * args.list_ranks; i += kRankThreads) {
    const u64 key = words[i / args.list_ranks * args.list_stride +
                          i % args.list_ranks * args.word_stride];
    if (key >= floor) shared.keys[atomicAdd(&shared.count, 1)] = key;
  }
  Normaliser total = Normaliser::none();
  if (thread < kWarpLanes) {
    for (int list = thread; list < args.lists; list += kWarpLanes) {
      total = total.joined(Normaliser::from_word(
          words[list * args.list_stride + args.list_ranks * args.word_stride]));
    }
    total = join_warp(total);
    if (thread == 0) shared.normaliser = total.word();
  }
  __syncthreads();
  sort_best(shared.keys, shared.count, args.k, shared.best);
  total = Normaliser::from_word(shared.normaliser);

  const u64 key = thread < args.k ? shared.best[thread] : 0;
  if (args.packed != nullptr) {
    u64* packed = reinterpret_cast<u64*>(args.packed) + row * (args.k + 1);
    if (thread < args.k) packed[thread] = key;
    if (thread == 0) packed[args.k] = total.word();
  } else if (thread < args.k) {
    const bool present = key != 0 && total.usable();
    args.logprobs[row * args.k + thread] =
        present ? total.logprob(key_value(key)) : negative_infinity();
    args.token_ids[row * args.k + thread] = present ? key_id(key) : 0;
  }
}
