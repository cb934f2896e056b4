// A libcuda.so.1 that records its calls. Kernels are text files: a module holds the functions whose
// names are words of its text.
//
// DDTREE_STUB_FAIL="<function>=<code>,..." makes functions fail; DDTREE_STUB_ARGUMENT_BYTES says
// how much of a kernel's parameter a launch records. Signatures: CUDA Driver API reference.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kNotFound = 500;

struct StubModule {
  std::string text;
};

struct StubFunction {
  std::string name;
};

std::mutex mutex;
std::string calls;
thread_local std::vector<void*> contexts;

int record(const char* function, const std::string& details) {
  const std::lock_guard<std::mutex> lock(mutex);
  calls += std::string(function) + (details.empty() ? "" : " ") + details + "\n";
  const char* fail = std::getenv("DDTREE_STUB_FAIL");
  std::stringstream rules(fail == nullptr ? "" : fail);
  for (std::string rule; std::getline(rules, rule, ',');) {
    const std::size_t equals = rule.find('=');
    if (rule.substr(0, equals) == function) return std::atoi(rule.c_str() + equals + 1);
  }
  return 0;
}

template <class... Parts>
int record(const char* function, const Parts&... parts) {
  std::ostringstream text;
  [[maybe_unused]] const char* separator = "";
  ((text << separator << parts, separator = " "), ...);
  return record(function, text.str());
}

// The primary context of a device.
void* primary(int device) { return reinterpret_cast<void*>(0x1000L + device); }

}  // namespace

extern "C" {

const char* stub_calls() { return calls.c_str(); }
void stub_forget() { calls.clear(); }
void stub_set_current(void* context) { contexts.assign(1, context); }
long stub_context_depth() { return static_cast<long>(contexts.size()); }

int cuInit(unsigned flags) { return record("cuInit", flags); }

int cuDriverGetVersion(int* version) {
  *version = 12080;
  return record("cuDriverGetVersion");
}

int cuGetErrorName(int code, const char** name) {
  static const std::pair<int, const char*> kNames[] = {
      {1, "CUDA_ERROR_INVALID_VALUE"},          {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {100, "CUDA_ERROR_NO_DEVICE"},            {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},    {218, "CUDA_ERROR_INVALID_PTX"},
      {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {500, "CUDA_ERROR_NOT_FOUND"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},      {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
  };
  for (const auto& [known, text] : kNames) {
    if (known == code) {
      *name = text;
      return 0;
    }
  }
  *name = nullptr;
  return kInvalidValue;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return record("cuDeviceGet", ordinal);
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16:
      *value = 188;
      break;
    case 75:
      *value = 12;
      break;
    case 76:
      *value = 0;
      break;
    case 97:
      *value = 101376;
      break;
    default:
      return kInvalidValue;
  }
  return record("cuDeviceGetAttribute", attribute, device);
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = primary(device);
  return record("cuDevicePrimaryCtxRetain", device);
}

int cuCtxGetCurrent(void** context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return record("cuCtxGetCurrent");
}

int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(context);
  return record("cuCtxPushCurrent_v2", context);
}

int cuCtxPopCurrent_v2(void** context) {
  *context = contexts.back();
  contexts.pop_back();
  return record("cuCtxPopCurrent_v2");
}

int cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options,
                       void** values) {
  ::usleep(2000);  // widens the race of two threads that both load
  const auto text = std::string(static_cast<const char*>(image));
  const int result = record("cuModuleLoadDataEx", contexts.empty() ? nullptr : contexts.back(),
                            text.substr(0, text.find('\n')));
  if (result != 0 && count == 2 && options[0] == 5 && options[1] == 6) {
    std::snprintf(static_cast<char*>(values[0]), reinterpret_cast<unsigned long>(values[1]),
                  "ptxas fatal: Unsupported .version\nand more");
  }
  *module = new StubModule{text};
  return result;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  std::stringstream words(static_cast<StubModule*>(module)->text);
  bool found = false;
  for (std::string word; words >> word;) found = found || word == name;
  const int result = record("cuModuleGetFunction", name);
  *function = new StubFunction{name};
  return found ? result : kNotFound;
}

int cuFuncGetAttribute(int* value, int attribute, void* function) {
  if (attribute != 1) return kInvalidValue;
  *value = static_cast<StubFunction*>(function)->name == "ddtree_static" ? 1024 : 0;
  return record("cuFuncGetAttribute", attribute, static_cast<StubFunction*>(function)->name);
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  return record("cuFuncSetAttribute", static_cast<StubFunction*>(function)->name, attribute,
                value);
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void* stream, void** parameters, void** extra) {
  const char* bytes = std::getenv("DDTREE_STUB_ARGUMENT_BYTES");
  std::string hex;
  for (int i = 0; i < std::atoi(bytes == nullptr ? "0" : bytes); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<const unsigned char*>(parameters[0])[i]);
    hex += digits;
  }
  return record("cuLaunchKernel", static_cast<StubFunction*>(function)->name, grid_x, grid_y,
                grid_z, block_x, block_y, block_z, shared, stream,
                contexts.empty() ? nullptr : contexts.back(), extra == nullptr ? hex : "extra");
}

}  // extern "C"
