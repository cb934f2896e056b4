// Forced in front of an op's source, makes it take a CPU tensor for a CUDA one: the op then checks,
// allocates and launches as on a GPU, with tensors that the emulated kernels can read.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

// Behind torch's own headers, which declare them. Not one by the other: a macro's text is expanded
// again. Every CPU tensor that an op is given has storage.
#define is_cpu is_meta
#define is_cuda has_storage
