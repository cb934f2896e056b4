// The few entry points of the CUDA driver that the launcher needs, found at run time.
//
// Declared here and not taken from cuda.h: the build has no CUDA headers, and an extension that is
// not linked to libcuda loads on a machine without a GPU and under either CUDA major version. Where
// a plain name is the ABI of CUDA 2 or 3, the versioned symbol is used, as cuda.h does by macro.
// Signatures and numbers: CUDA Driver API reference.
#pragma once

#include <string>

namespace ddtree {

using DriverResult = int;
using DeviceHandle = int;
using Context = void*;
using Module = void*;
using KernelHandle = void*;
using Stream = void*;

// CU_DEVICE_ATTRIBUTE_*
constexpr int kMultiprocessorCount = 16;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMaxSharedPerBlockOptin = 97;  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
// CU_FUNC_ATTRIBUTE_*
constexpr int kFunctionSharedBytes = 1;       // SHARED_SIZE_BYTES, the static part
constexpr int kFunctionMaxDynamicShared = 8;  // MAX_DYNAMIC_SHARED_SIZE_BYTES
// CU_JIT_*
constexpr int kJitErrorLogBuffer = 5;  // ERROR_LOG_BUFFER
constexpr int kJitErrorLogBytes = 6;   // ERROR_LOG_BUFFER_SIZE_BYTES

// X(member, symbol, parameters)
#define DDTREE_DRIVER_FUNCTIONS(X)                                                             \
  X(init, cuInit, (unsigned))                                                                  \
  X(driver_version, cuDriverGetVersion, (int*))                                                \
  X(error_name, cuGetErrorName, (DriverResult, const char**))                                  \
  X(device, cuDeviceGet, (DeviceHandle*, int))                                                 \
  X(device_attribute, cuDeviceGetAttribute, (int*, int, DeviceHandle))                         \
  X(retain_context, cuDevicePrimaryCtxRetain, (Context*, DeviceHandle))                        \
  X(current_context, cuCtxGetCurrent, (Context*))                                              \
  X(push_context, cuCtxPushCurrent_v2, (Context))                                              \
  X(pop_context, cuCtxPopCurrent_v2, (Context*))                                               \
  X(load_module, cuModuleLoadDataEx, (Module*, const void*, unsigned, int*, void**))           \
  X(find_function, cuModuleGetFunction, (KernelHandle*, Module, const char*))                  \
  X(function_attribute, cuFuncGetAttribute, (int*, int, KernelHandle))                         \
  X(set_function_attribute, cuFuncSetAttribute, (KernelHandle, int, int))                      \
  X(launch, cuLaunchKernel,                                                                    \
    (KernelHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
     void**, void**))

struct Driver {
#define DDTREE_MEMBER(member, symbol, parameters) DriverResult(*member) parameters = nullptr;
  DDTREE_DRIVER_FUNCTIONS(DDTREE_MEMBER)
#undef DDTREE_MEMBER
};

// The driver, loaded and initialised by the first call. Raises c10::Error naming `op`, what is
// missing and the remedy; the next call tries again.
const Driver& cuda_driver(const char* op);

// Raises c10::Error in one line unless `result` is success: op, driver function, error name and
// code, `what` it was done to, and the remedy.
void check_driver(const Driver& driver, DriverResult result, const char* op, const char* function,
                  const std::string& what);

// Makes `context` current for a scope, unless it is already.
class ContextScope {
 public:
  ContextScope(const Driver& driver, const char* op, Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace ddtree
