// Ranked tokens of a row of logits: what the CPU ops and the CUDA kernels share.
//
// A candidate is one 64-bit key: the fp32 value as an ordered integer above, 0xffffffff - token id
// below. Keys of one row are unique and their order, as unsigned integers, is "value descending,
// equal values by ascending id". So the best k are the same on every device and however the row is
// cut. Key 0 is no candidate: that of a NaN, of -inf, or of a token that is not there.
//
// The normaliser is the row's maximum and sum(exp(x - maximum)), kept as two floats so that parts
// of a row can be joined. A NaN or +inf makes the sum NaN, and such a row has no candidates.
//
// Packed candidates, the exchange format of a row or of a part of it: words 0..k-1 hold keys in
// descending order, word k the normaliser.
#pragma once

#include "logits.h"

namespace ddtree {

constexpr int kMaxRanks = 64;
constexpr int kMaxShards = 64;
constexpr i64 kMaxTokens = 0x80000000L;   // ids are below 2^31

constexpr int kRankThreads = 256;
constexpr int kVectorsInFlight = 4;  // loads of a thread before it uses any
constexpr int kCandidates = 512;     // buffer of a block
constexpr int kSegmentElements = 8192;
constexpr int kBlocksPerMultiprocessor = 6;  // at once on sm_90, with 40 registers a thread

// One block ranks one segment of one row: grid (rows, segments). Strides count elements.
struct RankArgs {
  const void* logits;
  i64 row_stride;
  i64 stride;
  i64* packed;  // [segments, rows, k + 1]
  int type;
  int rows;
  int vocabulary;
  int k;
  int id_offset;
  int segment_vectors;
};

// One block joins the lists of one row: grid (rows). Strides count elements. Writes `packed` [rows,
// k + 1] if given, else logprobs and token_ids [rows, k].
struct MergeArgs {
  const i64* candidates;  // [lists, rows, list_ranks + 1]
  i64 list_stride;
  i64 row_stride;
  i64 word_stride;
  i64* packed;
  float* logprobs;
  i64* token_ids;
  int lists;
  int list_ranks;
  int rows;
  int k;
};

constexpr int kWarps = kRankThreads / 32;
constexpr int kGroups = kRankThreads / 2;  // a maximum for each pair of threads
static_assert(kGroups >= kMaxRanks, "the k-th best group maximum must exist");

// Shared memory of a block of ddtree_rank_shard.
struct RankShared {
  // A round's vectors and their maxima, each thread's own. Here rather than in registers: they are
  // used twice, and only some of them a second time.
  Vector vectors[kVectorsInFlight * kRankThreads];
  float peaks[kVectorsInFlight * kRankThreads];
  u64 keys[kCandidates];
  u64 best[kMaxRanks];
  u64 groups[kGroups / 2];  // two 32-bit values a word
  u64 normalisers[kWarps];
  u64 floor_key;         // the k-th best of the buffer when it was last cut
  unsigned floor_value;  // that of the running maxima, as an ordered integer
  int count;             // keys offered to the buffer; beyond kCandidates they were not taken
};

// Shared memory of a block of ddtree_merge_shards: the heads of the lists, then all that may win.
constexpr int kHeads = 128;
static_assert(kHeads >= kMaxRanks, "the k-th best head must exist");
struct MergeShared {
  u64 best[kMaxRanks];
  u64 heads[kHeads + kMaxShards];
  u64 normaliser;
  int count;
  u64 keys[kMaxShards * kMaxRanks];  // all, at worst
};

// How a row is cut. A row that does not start at a multiple of 16 bytes begins within a vector,
// hence the room for one vector more.
struct Segments {
  int count;
  int vectors;  // of each, the last may have fewer

  // As many blocks as run at once on sm_90 and no more, which would be a second wave. On sm_120,
  // whose shared memory holds three at a time, the memory is too slow for waves to matter. No
  // segment is so short that ranking it costs more than reading it.
  DDTREE_FN static constexpr Segments of(i64 rows, i64 vocabulary, int type, int multiprocessors) {
    const i64 lanes = kVectorBytes / element_bytes(type);
    const i64 total = (vocabulary + 2 * (lanes - 1)) / lanes;
    const i64 least = kSegmentElements / lanes;
    const i64 blocks = static_cast<i64>(multiprocessors) * kBlocksPerMultiprocessor;
    i64 count = rows < 1 ? 1 : blocks / rows;
    if (count < 1) count = 1;
    if (count > kMaxShards) count = kMaxShards;
    // Multiples of the block, so that its threads have equally many.
    i64 vectors = (total + count - 1) / count;
    vectors = (vectors + kRankThreads - 1) / kRankThreads * kRankThreads;
    if (vectors < least) vectors = least;
    count = (total + vectors - 1) / vectors;
    return {static_cast<int>(count < 1 ? 1 : count), static_cast<int>(vectors)};
  }
};

DDTREE_FN u64 make_key(float value, u32 id) {
  const bool absent = value != value || value == negative_infinity();
  return absent ? 0 : static_cast<u64>(orderable(value)) << 32 | (0xffffffffu - id);
}

DDTREE_FN float key_value(u64 key) { return from_orderable(static_cast<u32>(key >> 32)); }

DDTREE_FN i64 key_id(u64 key) { return 0xffffffffu - static_cast<u32>(key); }

// e^d for d <= 0, and NaN for NaN. 2^x is the primitive of the device.
DDTREE_FN float exp_below(float d) { return exp2f(d * 1.44269504f); }

struct Normaliser {
  float max;
  float sum;

  DDTREE_FN static Normaliser none() { return {negative_infinity(), 0.0f}; }

  DDTREE_FN static Normaliser from_word(u64 word) {
    return {float_of(static_cast<u32>(word >> 32)), float_of(static_cast<u32>(word))};
  }

  // Adding 0 makes one of the two zeros: which of equal values is the maximum depends on the order.
  DDTREE_FN u64 word() const {
    return static_cast<u64>(float_bits(max + 0.0f)) << 32 | float_bits(sum);
  }

  // What exponents are taken relative to: with no finite maximum yet, -inf - -inf must not arise.
  DDTREE_FN float base() const { return max == negative_infinity() ? 0.0f : max; }

  DDTREE_FN void raise(float value) {
    if (value > max) {
      sum *= exp_below(max - value);
      max = value;
    }
  }

  // Commutative, so that lanes that exchange theirs agree bit for bit.
  DDTREE_FN Normaliser joined(Normaliser other) const {
    Normaliser mine = *this;
    mine.raise(other.max);
    other.raise(max);
    return {mine.max, mine.sum + other.sum};
  }

  // Whether the row has log-probabilities at all. False for a NaN sum.
  DDTREE_FN bool usable() const { return is_finite(max) && is_finite(sum) && sum > 0.0f; }

  // Not value - (max + log(sum)), which rounds to the step of `max`.
  DDTREE_FN float logprob(float value) const {
    const float result = (value - max) - logf(sum);
    return result < 0.0f ? result : 0.0f;
  }
};

}  // namespace ddtree
