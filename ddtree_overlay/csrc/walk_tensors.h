// Tensors as the walk's kernels take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "walk_core.h"

namespace ddtree {

// An int64 tensor of one or two dimensions.
inline Integers integers(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), tensor.stride(0),
          tensor.dim() > 1 ? tensor.stride(1) : 0};
}

}  // namespace ddtree
