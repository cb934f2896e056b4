// One CPU thread as the only lane of tree_core.h.
#pragma once

#include "tree_core.h"

namespace ddtree {

struct SingleLane {
  static constexpr int kWidth = 1;

  int lane() const { return 0; }
  void sync() const {}
  Candidate best(Candidate mine) const { return mine; }
  int from(int value, int) const { return value; }
  i64 least(i64 mine) const { return mine; }
};

// tree_core.h's load_units for one lane, which has no use for its index arithmetic.
inline i64 load_units(const SingleLane&, const BuildTreeArgs& args, int request, int ranks,
                      const Workspace& work) {
  const float* row = args.logprobs + request * args.logprobs_stride[0];
  i64* units = work.units;
  for (int level = 0; level < args.levels; ++level) {
    const float* at = row + level * args.logprobs_stride[1];
    float before = 0.0f;
    for (int rank = 0; rank < ranks; ++rank) {
      const float value = at[rank * args.logprobs_stride[2]];
      if (!(value <= before)) {
        return 4 * (static_cast<i64>(level) * args.ranks + rank) + fault_code(value);
      }
      *units++ = to_units(value);
      before = value;
    }
  }
  return kNoFault;
}

}  // namespace ddtree
