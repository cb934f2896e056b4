#include "cuda_driver.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace ddtree {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Driver open_driver(const char* op) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "ddtree::", op, ": the CUDA driver cannot be loaded (", dlerror(),
              "); install it on the host and give the container its GPUs (docker run --gpus all)");
  Driver driver;
#define DDTREE_FIND(member, symbol, parameters)                                                \
  driver.member = reinterpret_cast<DriverResult(*) parameters>(dlsym(library, #symbol));       \
  TORCH_CHECK(driver.member != nullptr, "ddtree::", op, ": ", kLibrary, " has no " #symbol     \
              "; update the NVIDIA driver");
  DDTREE_DRIVER_FUNCTIONS(DDTREE_FIND)
#undef DDTREE_FIND
  check_driver(driver, driver.init(0), op, "cuInit", "");
  return driver;
}

// Codes: CUDA Driver API reference, CUresult.
const char* remedy(DriverResult code) {
  switch (code) {
    case 2:  // OUT_OF_MEMORY
      return "free memory on this GPU, such as by a lower --mem-fraction-static";
    case 3:  // NOT_INITIALIZED
      return "start workers by spawn: a process forked after CUDA was initialised cannot use it";
    case 100:  // NO_DEVICE
    case 101:  // INVALID_DEVICE
      return "give the process this GPU (docker run --gpus, CUDA_VISIBLE_DEVICES)";
    case 200:  // INVALID_IMAGE
    case 218:  // INVALID_PTX
    case 300:  // INVALID_SOURCE
    case 500:  // NOT_FOUND
      return "the kernel file is damaged or of another build: reinstall the ddtree-overlay wheel";
    case 209:  // NO_BINARY_FOR_GPU
      return "the kernel file holds no code for this GPU: install an overlay built for it";
    case 221:  // JIT_COMPILER_NOT_FOUND
      return "only PTX fits this GPU and the driver's compiler for it is absent: mount "
             "libnvidia-ptxjitcompiler.so (NVIDIA_DRIVER_CAPABILITIES=compute,utility)";
    case 222:  // UNSUPPORTED_PTX_VERSION
      return "only PTX fits this GPU and the driver is older than that: update the NVIDIA driver";
    case 803:  // SYSTEM_DRIVER_MISMATCH
      return "the host's kernel module and libcuda.so.1 are of different releases: reboot the host "
             "or mount its own libcuda.so.1";
    case 700:  // ILLEGAL_ADDRESS
    case 710:  // ASSERT
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
      return "an earlier kernel failed and its context is lost: restart the process; "
             "CUDA_LAUNCH_BLOCKING=1 finds the kernel";
    case 900:  // STREAM_CAPTURE_UNSUPPORTED
    case 901:  // STREAM_CAPTURE_INVALIDATED
      return "load the kernels before a graph is captured (ddtree_overlay.ops.load_kernels)";
    default:
      return "see the CUDA driver API's description of this error";
  }
}

}  // namespace

const Driver& cuda_driver(const char* op) {
  static const Driver driver = open_driver(op);
  return driver;
}

void check_driver(const Driver& driver, DriverResult result, const char* op, const char* function,
                  const std::string& what) {
  if (result == 0) return;
  const char* name = nullptr;
  if (driver.error_name(result, &name) != 0 || name == nullptr) name = "an error without a name";
  TORCH_CHECK(false, "ddtree::", op, ": ", function, " failed", what.empty() ? "" : " for ", what,
              ": ", name, " (", result, "); ", remedy(result));
}

ContextScope::ContextScope(const Driver& driver, const char* op, Context context)
    : driver_(driver) {
  Context current = nullptr;
  check_driver(driver, driver.current_context(&current), op, "cuCtxGetCurrent", "");
  if (current == context) return;
  check_driver(driver, driver.push_context(context), op, "cuCtxPushCurrent_v2", "");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  Context popped = nullptr;
  // Pops what was pushed: it can only fail where the driver itself is shutting down.
  if (pushed_) driver_.pop_context(&popped);
}

}  // namespace ddtree
