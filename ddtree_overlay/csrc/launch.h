// Launches the ahead-of-time compiled kernels through the driver API on torch's current stream.
#pragma once

#include <c10/core/Device.h>

namespace ddtree {

// Blocks are one-dimensional. `shared` is dynamic shared memory in bytes a block.
struct LaunchShape {
  unsigned grid_x;
  unsigned grid_y;
  unsigned block;
  unsigned shared;
};

// Enqueues kernel `entry` on the current stream of `device`; `arguments` points to the kernel's one
// by-value parameter and is read before the call returns. An empty grid launches nothing. May be
// captured in a CUDA graph once the device's kernels are loaded; the first launch loads them
// otherwise. Raises c10::Error naming `op`, what does not fit or what the driver said, the remedy.
void launch_kernel(const char* op, const char* entry, c10::Device device, LaunchShape shape,
                   const void* arguments);

// Streaming multiprocessors of a CUDA device; the driver is asked once.
int multiprocessors(c10::Device device);

}  // namespace ddtree
