// ddtree::rank_tokens, rank_shard and merge_shards: argument checks, the CPU implementation, and
// the launches.
//
// The CPU's method is its own: a heap of the best k keys, and sums of exponentials in double. So
// ids, keys and maxima equal the kernels' bit for bit, sums and log-probabilities nearly.
#include "rank_core.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "checks.h"
#include "launch.h"
#include "ops.h"

namespace ddtree {
namespace {

RankArgs check_logits(const char* op, const at::Tensor& logits, i64 k, i64 id_offset) {
  RankArgs args{};
  args.type = check_logit_type(op, {"logits", logits});
  check_dim(op, {"logits", logits}, 2, "[rows, vocabulary]");
  check_device(op, {{"logits", logits}});
  check_range(op, "rows (dimension 0 of logits)", logits.size(0), 0, kMaxInt);
  check_range(op, "vocabulary (dimension 1 of logits)", logits.size(1), 0, kMaxVocabulary);
  check_range(op, "k", k, 1, kMaxRanks);
  // Token ids are below 2^31.
  check_range(op, "id_offset", id_offset, 0, kMaxTokens - std::max<i64>(logits.size(1), 1));
  args.logits = logits.const_data_ptr();
  args.row_stride = logits.stride(0);
  args.stride = logits.stride(1);
  args.rows = static_cast<int>(logits.size(0));
  args.vocabulary = static_cast<int>(logits.size(1));
  args.k = static_cast<int>(k);
  args.id_offset = static_cast<int>(id_offset);
  return args;
}

// A tensor of packed candidates.
at::Tensor empty_packed(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kLong));
}

MergeArgs merge_of(const at::Tensor& candidates, i64 k) {
  MergeArgs args{};
  args.candidates = candidates.const_data_ptr<std::int64_t>();
  args.list_stride = candidates.stride(0);
  args.row_stride = candidates.stride(1);
  args.word_stride = candidates.stride(2);
  args.lists = static_cast<int>(candidates.size(0));
  args.list_ranks = static_cast<int>(candidates.size(2) - 1);
  args.rows = static_cast<int>(candidates.size(1));
  args.k = static_cast<int>(k);
  return args;
}

// The best k keys seen, and the least of them on top.
class Best {
 public:
  explicit Best(int k) : size_(static_cast<std::size_t>(k)) {}

  void add(u64 key) {
    if (key <= least_) return;
    if (keys_.size() == size_) {
      std::pop_heap(keys_.begin(), keys_.end(), std::greater<>{});
      keys_.back() = key;
    } else {
      keys_.push_back(key);
    }
    std::push_heap(keys_.begin(), keys_.end(), std::greater<>{});
    if (keys_.size() == size_) least_ = keys_.front();
  }

  // Values below this cannot enter.
  float least_value() const {
    return keys_.size() == size_ ? key_value(least_) : negative_infinity();
  }

  // In descending order, 0 where there are none.
  const std::vector<u64>& sorted() {
    std::sort(keys_.begin(), keys_.end(), std::greater<>{});
    keys_.resize(size_, 0);
    return keys_;
  }

 private:
  std::size_t size_;
  std::vector<u64> keys_;
  u64 least_ = 0;
};

float base_of(float max) { return max == negative_infinity() ? 0.0f : max; }

template <class Value>
void rank_row(const RankArgs& args, i64 row, const Value& value_at, i64* packed) {
  Best best(args.k);
  float max = negative_infinity();
  const i64 start = row * args.row_stride;
  for (i64 column = 0; column < args.vocabulary; ++column) {
    const float value = value_at(start + column * args.stride);
    if (value > max) max = value;
    if (value >= best.least_value()) {
      best.add(make_key(value, static_cast<u32>(args.id_offset + column)));
    }
  }
  double sum = 0.0;
  for (i64 column = 0; column < args.vocabulary; ++column) {
    sum += std::exp(value_at(start + column * args.stride) - base_of(max));
  }
  const std::vector<u64>& keys = best.sorted();
  std::copy(keys.begin(), keys.end(), packed);
  packed[args.k] = static_cast<i64>(Normaliser{max, static_cast<float>(sum)}.word());
}

void rank_rows(const RankArgs& args, i64* packed) {
  const auto* halves = static_cast<const std::uint16_t*>(args.logits);
  const auto* floats = static_cast<const float*>(args.logits);
  for (i64 row = 0; row < args.rows; ++row, packed += args.k + 1) {
    if (args.type == kBf16) {
      rank_row(args, row, [=](i64 at) { return bf16_value(halves[at]); }, packed);
    } else if (args.type == kFp16) {
      rank_row(args, row, [=](i64 at) { return fp16_value(halves[at]); }, packed);
    } else {
      rank_row(args, row, [=](i64 at) { return floats[at]; }, packed);
    }
  }
}

void merge_row(const MergeArgs& args, i64 row) {
  Best best(args.k);
  float max = negative_infinity();
  for (i64 list = 0; list < args.lists; ++list) {
    const i64* words = args.candidates + list * args.list_stride + row * args.row_stride;
    for (i64 i = 0; i < args.list_ranks; ++i) {
      best.add(static_cast<u64>(words[i * args.word_stride]));
    }
    const i64 word = words[args.list_ranks * args.word_stride];
    max = std::max(max, Normaliser::from_word(static_cast<u64>(word)).max);
  }
  double sum = 0.0;
  for (i64 list = 0; list < args.lists; ++list) {
    const i64 word = args.candidates[list * args.list_stride + row * args.row_stride +
                                     args.list_ranks * args.word_stride];
    const Normaliser part = Normaliser::from_word(static_cast<u64>(word));
    sum += part.sum * std::exp(static_cast<double>(part.max) - base_of(max));
  }
  const bool usable = Normaliser{max, static_cast<float>(sum)}.usable();
  const std::vector<u64>& keys = best.sorted();
  for (i64 i = 0; i < args.k; ++i) {
    const u64 key = keys[static_cast<std::size_t>(i)];
    const bool present = usable && key != 0;
    const double logprob = static_cast<double>(key_value(key)) - max - std::log(sum);
    args.logprobs[row * args.k + i] =
        present ? static_cast<float>(std::min(logprob, 0.0)) : negative_infinity();
    args.token_ids[row * args.k + i] = present ? key_id(key) : 0;
  }
}

void launch_merge(const char* op, c10::Device device, const MergeArgs& args) {
  launch_kernel(op, "ddtree_merge_shards", device,
                {static_cast<unsigned>(args.rows), 1, kRankThreads, sizeof(MergeShared)}, &args);
}

// One segment on the CPU.
Segments segments_of(const at::Tensor& logits, const RankArgs& args) {
  if (!logits.is_cuda() || args.rows == 0) return {1, 0};
  return Segments::of(args.rows, args.vocabulary, args.type, multiprocessors(logits.device()));
}

// Fills `packed`, [segments, rows, k + 1].
void rank_segments(const char* op, const at::Tensor& logits, RankArgs args, Segments segments,
                   const at::Tensor& packed) {
  if (args.rows == 0) return;
  args.packed = packed.mutable_data_ptr<std::int64_t>();
  args.segment_vectors = segments.vectors;
  if (!logits.is_cuda()) {
    rank_rows(args, args.packed);
    return;
  }
  launch_kernel(op, "ddtree_rank_shard", logits.device(),
                {static_cast<unsigned>(args.rows), static_cast<unsigned>(segments.count),
                 kRankThreads, sizeof(RankShared)},
                &args);
}

Ranked merge(const char* op, const at::Tensor& candidates, i64 k) {
  MergeArgs args = merge_of(candidates, k);
  at::Tensor logprobs = at::empty({args.rows, k}, candidates.options().dtype(at::kFloat));
  at::Tensor token_ids = at::empty({args.rows, k}, candidates.options());
  args.logprobs = logprobs.mutable_data_ptr<float>();
  args.token_ids = token_ids.mutable_data_ptr<std::int64_t>();
  if (args.rows == 0) return {logprobs, token_ids};
  if (candidates.is_cuda()) {
    launch_merge(op, candidates.device(), args);
  } else {
    for (i64 row = 0; row < args.rows; ++row) merge_row(args, row);
  }
  return {logprobs, token_ids};
}

}  // namespace

at::Tensor rank_shard(const at::Tensor& logits, std::int64_t k, std::int64_t id_offset) {
  const char* op = "rank_shard";
  const RankArgs args = check_logits(op, logits, k, id_offset);
  const Segments segments = segments_of(logits, args);
  at::Tensor packed = empty_packed(logits, {args.rows, k + 1});
  if (segments.count == 1) {
    rank_segments(op, logits, args, segments, packed);
    return packed;
  }
  const at::Tensor parts = empty_packed(logits, {segments.count, args.rows, k + 1});
  rank_segments(op, logits, args, segments, parts);
  MergeArgs joined = merge_of(parts, k);
  joined.packed = packed.mutable_data_ptr<std::int64_t>();
  launch_merge(op, logits.device(), joined);
  return packed;
}

Ranked merge_shards(const at::Tensor& candidates, std::int64_t k) {
  const char* op = "merge_shards";
  check_dtype(op, {"candidates", candidates}, at::kLong);
  check_dim(op, {"candidates", candidates}, 3, "[shards, rows, ranks + 1]");
  check_device(op, {{"candidates", candidates}});
  check_range(op, "shards (dimension 0 of candidates)", candidates.size(0), 1, kMaxShards);
  check_range(op, "rows (dimension 1 of candidates)", candidates.size(1), 0, kMaxInt);
  check_range(op, "ranks (dimension 2 of candidates, less 1)", candidates.size(2) - 1, 1,
              kMaxRanks);
  const i64 most = candidates.size(0) * (candidates.size(2) - 1);
  check_range(op, "k", k, 1, std::min<i64>(most, kMaxRanks));
  return merge(op, candidates, k);
}

Ranked rank_tokens(const at::Tensor& logits, std::int64_t k, std::int64_t id_offset) {
  const char* op = "rank_tokens";
  const RankArgs args = check_logits(op, logits, k, id_offset);
  const Segments segments = segments_of(logits, args);
  const at::Tensor parts = empty_packed(logits, {segments.count, args.rows, k + 1});
  rank_segments(op, logits, args, segments, parts);
  return merge(op, parts, k);
}

}  // namespace ddtree
