// Refusals that all ops share. Each names the op, the argument, what was found and the bound.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <limits>
#include <type_traits>

#include "logits.h"

namespace ddtree {

static_assert(std::is_same_v<i64, std::int64_t>, "tensors hand out std::int64_t pointers");

// Shared memory of a block that every supported GPU has (sm_120 the least of them): 99 KiB.
constexpr i64 kMaxShared = 99 * 1024;

constexpr i64 kMaxInt = std::numeric_limits<int>::max();  // of what a kernel counts in an int

// A tensor argument with what it is called in the schema.
struct Named {
  const char* name;
  const at::Tensor& tensor;
};

inline void check_dtype(const char* op, Named argument, at::ScalarType dtype) {
  TORCH_CHECK(argument.tensor.scalar_type() == dtype, "ddtree::", op, ": ", argument.name,
              " must be ", dtype, ", got ", argument.tensor.scalar_type());
}

// `shape` is the text of the expected shape, such as "[batch, levels, ranks]".
inline void check_dim(const char* op, Named argument, i64 dim, const char* shape) {
  TORCH_CHECK(argument.tensor.dim() == dim, "ddtree::", op, ": ", argument.name,
              " must have shape ", shape, ", got ", argument.tensor.sizes());
}

inline void check_sizes(const char* op, Named argument, at::IntArrayRef sizes) {
  TORCH_CHECK(argument.tensor.sizes() == sizes, "ddtree::", op, ": ", argument.name,
              " must have shape ", sizes, ", got ", argument.tensor.sizes());
}

inline void check_range(const char* op, const char* name, i64 value, i64 least, i64 most) {
  TORCH_CHECK(value >= least && value <= most, "ddtree::", op, ": ", name, " must be ", least, "..",
              most, ", got ", value);
}

inline void check_contiguous(const char* op, Named argument) {
  TORCH_CHECK(argument.tensor.is_contiguous(), "ddtree::", op, ": ", argument.name,
              " must be contiguous, got strides ", argument.tensor.strides(), " for shape ",
              argument.tensor.sizes());
}

inline LogitType check_logit_type(const char* op, Named argument) {
  switch (argument.tensor.scalar_type()) {
    case at::kBFloat16:
      return kBf16;
    case at::kHalf:
      return kFp16;
    case at::kFloat:
      return kFp32;
    default:
      TORCH_CHECK(false, "ddtree::", op, ": ", argument.name,
                  " must be BFloat16, Half or Float, got ", argument.tensor.scalar_type());
  }
}

// All on the device of the first, which must be a CPU or a CUDA device.
inline void check_device(const char* op, std::initializer_list<Named> arguments) {
  const Named& first = *arguments.begin();
  TORCH_CHECK(first.tensor.is_cpu() || first.tensor.is_cuda(), "ddtree::", op, ": ", first.name,
              " must be on a CPU or CUDA device, got ", first.tensor.device());
  for (const Named& argument : arguments) {
    TORCH_CHECK(argument.tensor.device() == first.tensor.device(), "ddtree::", op, ": ",
                argument.name, " must be on ", first.tensor.device(), " like ", first.name,
                ", got ", argument.tensor.device());
  }
}

}  // namespace ddtree
