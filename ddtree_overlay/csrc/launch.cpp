// Launches, on torch's current stream.
#include "launch.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "cuda_driver.h"
#include "loaded_kernels.h"

namespace ddtree {
namespace {

constexpr unsigned kMaxGridX = 2147483647u;
constexpr unsigned kMaxGridY = 65535u;
constexpr unsigned kMaxBlock = 1024u;

const LoadedKernel& find_kernel(const char* op, const LoadedKernels& loaded, const char* entry,
                                std::int64_t device) {
  for (const LoadedKernel& kernel : loaded.kernels) {
    if (kernel.entry == entry) return kernel;
  }
  TORCH_CHECK(false, "ddtree::", op, ": kernel ", entry, " is in none of the ",
              loaded.kernels.size(), " kernels of ", device_name(device),
              "; reinstall the ddtree-overlay wheel");
}

// torch's own stable C function. libtorch_cuda is already in the process when a CUDA tensor exists,
// but Python loads it RTLD_LOCAL, so that it must be asked for by name.
using StreamGetter = int (*)(std::int32_t, void**);

StreamGetter find_stream_getter(const char* op) {
  constexpr const char* kSymbol = "aoti_torch_get_current_cuda_stream";
  void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* symbol = library == nullptr ? nullptr : dlsym(library, kSymbol);
  TORCH_CHECK(symbol != nullptr, "ddtree::", op, ": libtorch_cuda.so ",
              library == nullptr ? "is not loaded" : "has no aoti_torch_get_current_cuda_stream",
              "; run with the torch that the ddtree-overlay wheel was built for");
  return reinterpret_cast<StreamGetter>(symbol);
}

Stream current_stream(const char* op, std::int64_t device) {
  static const StreamGetter getter = find_stream_getter(op);
  Stream stream = nullptr;
  const int result = getter(static_cast<std::int32_t>(device), &stream);
  TORCH_CHECK(result == 0, "ddtree::", op, ": aoti_torch_get_current_cuda_stream failed for ",
              device_name(device), " (", result, "); torch says why on standard error");
  return stream;
}

void check_shape(const char* op, const char* entry, const LaunchShape& shape) {
  TORCH_CHECK(shape.grid_x <= kMaxGridX && shape.grid_y <= kMaxGridY, "ddtree::", op, ": ", entry,
              " needs a grid of ", shape.grid_x, " x ", shape.grid_y, " blocks; at most ",
              kMaxGridX, " x ", kMaxGridY, " can be launched");
  TORCH_CHECK(shape.block >= 1 && shape.block <= kMaxBlock, "ddtree::", op, ": ", entry,
              " needs blocks of ", shape.block, " threads; a block has 1..", kMaxBlock);
}

std::int64_t cuda_index(const char* op, c10::Device device) {
  TORCH_CHECK(device.is_cuda() && device.has_index(), "ddtree::", op,
              ": a CUDA device with an index is needed, got ", device);
  return device.index();
}

}  // namespace

void launch_kernel(const char* op, const char* entry, c10::Device device, LaunchShape shape,
                   const void* arguments) {
  if (shape.grid_x == 0 || shape.grid_y == 0) return;
  check_shape(op, entry, shape);
  const std::int64_t index = cuda_index(op, device);
  const LoadedKernels& loaded = loaded_kernels(op, index);
  const LoadedKernel& kernel = find_kernel(op, loaded, entry, index);
  TORCH_CHECK(shape.shared <= kernel.max_shared, "ddtree::", op, ": ", entry, " needs ",
              shape.shared, " bytes of shared memory a block; ", device_name(index), " has ",
              kernel.max_shared);
  const Driver& driver = cuda_driver(op);
  const Stream stream = current_stream(op, index);
  const ContextScope scope(driver, op, loaded.context);
  // The driver copies the argument before it returns.
  void* parameters[] = {const_cast<void*>(arguments)};
  const DriverResult result =
      driver.launch(kernel.handle, shape.grid_x, shape.grid_y, 1, shape.block, 1, 1, shape.shared,
                    stream, parameters, nullptr);
  if (result != 0) {
    check_driver(driver, result, op, "cuLaunchKernel",
                 std::string(entry) + " on " + device_name(index));
  }
}

}  // namespace ddtree
