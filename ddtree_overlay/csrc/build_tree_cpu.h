// One CPU thread as the only lane of tree_core.h.
#pragma once

#include "tree_core.h"

namespace ddtree {

struct SingleLane {
  static constexpr int kWidth = 1;

  int lane() const { return 0; }
  void sync() const {}
  Candidate best(Candidate mine) const { return mine; }
  i64 least(i64 mine) const { return mine; }
};

}  // namespace ddtree
