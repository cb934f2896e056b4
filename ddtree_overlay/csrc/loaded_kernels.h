// The kernels of a device, once they are loaded.
//
// All are loaded at once, under a lock, and never unloaded; what a launch needs is then immutable
// and read without one. Loading must precede a graph capture: the driver refuses it inside one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_driver.h"

namespace ddtree {

struct LoadedKernel {
  std::string entry;
  KernelHandle handle;
  unsigned max_shared;  // dynamic shared memory that a launch may ask for, in bytes a block
};

struct LoadedKernels {
  Context context;  // the device's primary context, which torch uses too
  std::vector<LoadedKernel> kernels;
};

// Loads the files that use_kernels recorded for the device unless they are. Raises c10::Error
// naming `op`, what failed and the remedy; the next call tries again.
const LoadedKernels& loaded_kernels(const char* op, std::int64_t device);

// "cuda:<device>", as torch writes it.
std::string device_name(std::int64_t device);

}  // namespace ddtree
