// launch.h behind a C ABI: each function returns null or what went wrong, valid until the thread's
// next call.
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "launch.h"
#include "ops.h"

namespace {

thread_local std::string message;

template <class Call>
const char* guarded(const Call& call) {
  try {
    call();
    return nullptr;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = std::string("not a c10::Error: ") + error.what();
  }
  return message.c_str();
}

c10::Device cuda(int device) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)};
}

}  // namespace

extern "C" {

const char* use_kernels(int device, const char** files, int count) {
  return guarded([&] {
    ddtree::use_kernels(device, std::vector<std::string>(files, files + count));
  });
}

const char* load_kernels(int device) {
  return guarded([&] { ddtree::load_kernels(device); });
}

const char* launch(const char* op, const char* entry, int device, unsigned grid_x, unsigned grid_y,
                   unsigned block, unsigned shared, const void* arguments) {
  return guarded([&] {
    ddtree::launch_kernel(op, entry, cuda(device), {grid_x, grid_y, block, shared}, arguments);
  });
}

const char* multiprocessors(int device, int* count) {
  return guarded([&] { *count = ddtree::multiprocessors(cuda(device)); });
}

}  // extern "C"
