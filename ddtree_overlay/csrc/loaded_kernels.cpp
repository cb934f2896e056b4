// Which kernel files a device uses, and their loading.
#include "loaded_kernels.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include "launch.h"
#include "ops.h"

namespace ddtree {
namespace {

constexpr std::int64_t kMaxDevices = 64;

struct KernelFile {
  std::string path;
  std::vector<std::string> entries;

  bool operator==(const KernelFile& other) const {
    return path == other.path && entries == other.entries;
  }
};

struct DeviceState {
  std::mutex mutex;  // guards all but the two atomics
  std::vector<KernelFile> files;
  // Kept when loading fails half way, so that the next try leaks neither.
  Context context = nullptr;
  std::vector<Module> modules;
  std::unique_ptr<const LoadedKernels> owner;

  std::atomic<const LoadedKernels*> loaded{nullptr};
  std::atomic<int> multiprocessors{0};
};

DeviceState& state_of(const char* op, std::int64_t device) {
  // Never destroyed: a thread may still launch while the process exits.
  static auto& states = *new std::array<DeviceState, kMaxDevices>;
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "ddtree::", op, ": device must be 0..",
              kMaxDevices - 1, ", got ", device);
  return states[static_cast<std::size_t>(device)];
}

// "<absolute path>:<entry>,<entry>...". The last colon counts: a path may hold others.
KernelFile parse_file(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  TORCH_CHECK(!text.empty() && text.front() == '/' && colon != std::string::npos &&
                  colon + 1 < text.size(),
              "ddtree::_use_kernels: files must be \"<absolute path>:<entry>,<entry>...\", got \"",
              text, "\"");
  KernelFile file{text.substr(0, colon), {}};
  std::size_t first = colon + 1;
  while (first <= text.size()) {
    const std::size_t comma = std::min(text.find(',', first), text.size());
    TORCH_CHECK(comma > first, "ddtree::_use_kernels: an entry of ", file.path, " is empty");
    file.entries.push_back(text.substr(first, comma - first));
    first = comma + 1;
  }
  return file;
}

void check_entries_differ(const std::vector<KernelFile>& files) {
  std::vector<std::pair<std::string, std::string>> seen;
  for (const KernelFile& file : files) {
    for (const std::string& entry : file.entries) {
      for (const auto& [other, path] : seen) {
        TORCH_CHECK(entry != other, "ddtree::_use_kernels: kernel ", entry, " is in both ", path,
                    " and ", file.path);
      }
      seen.emplace_back(entry, file.path);
    }
  }
}

std::string read_image(const char* op, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  if (file) bytes << file.rdbuf();  // fails when there is nothing to copy
  TORCH_CHECK(file && bytes, "ddtree::", op, ": kernel file ", path,
              " cannot be read or is empty; reinstall the ddtree-overlay wheel");
  return bytes.str();
}

int attribute(const Driver& driver, const char* op, int which, std::int64_t device) {
  DeviceHandle handle = 0;
  int value = 0;
  const std::string what = device_name(device);
  check_driver(driver, driver.device(&handle, static_cast<int>(device)), op, "cuDeviceGet", what);
  check_driver(driver, driver.device_attribute(&value, which, handle), op, "cuDeviceGetAttribute",
               what);
  return value;
}

// Where and with what a load failed: file, GPU, driver, and the compiler's first words.
std::string load_context(const Driver& driver, const char* op, const std::string& path,
                         std::int64_t device, const char* log) {
  int version = 0;
  driver.driver_version(&version);
  std::string text = path + " on " + device_name(device) + " (compute capability " +
                     std::to_string(attribute(driver, op, kComputeCapabilityMajor, device)) + "." +
                     std::to_string(attribute(driver, op, kComputeCapabilityMinor, device)) +
                     ", driver for CUDA " + std::to_string(version / 1000) + "." +
                     std::to_string(version % 1000 / 10) + ")";
  const std::string line(log, std::strcspn(log, "\r\n"));
  return line.empty() ? text : text + ", \"" + line + "\"";
}

Module load_module(const Driver& driver, const char* op, const std::string& path,
                   std::int64_t device) {
  // PTX must end in a zero byte, which std::string has.
  const std::string image = read_image(op, path);
  std::array<char, 1024> log{};
  std::array<int, 2> options{kJitErrorLogBuffer, kJitErrorLogBytes};
  // The driver reads the size out of the pointer itself and writes how much it used there.
  std::array<void*, 2> values{log.data(), reinterpret_cast<void*>(log.size() - 1)};
  Module module = nullptr;
  const DriverResult result = driver.load_module(&module, image.c_str(), options.size(),
                                                 options.data(), values.data());
  if (result != 0) {
    check_driver(driver, result, op, "cuModuleLoadDataEx",
                 load_context(driver, op, path, device, log.data()));
  }
  return module;
}

// Allows a launch all the shared memory that a block of this GPU can have: without it the driver
// refuses more than 48 KiB. Raised here once, so that no launch has to.
LoadedKernel load_kernel(const Driver& driver, const char* op, Module module,
                         const std::string& entry, const std::string& path, int shared_limit) {
  const std::string what = entry + " in " + path;
  KernelHandle handle = nullptr;
  check_driver(driver, driver.find_function(&handle, module, entry.c_str()), op,
               "cuModuleGetFunction", what);
  int fixed = 0;
  check_driver(driver, driver.function_attribute(&fixed, kFunctionSharedBytes, handle), op,
               "cuFuncGetAttribute", what);
  const int limit = shared_limit - fixed;
  check_driver(driver, driver.set_function_attribute(handle, kFunctionMaxDynamicShared, limit), op,
               "cuFuncSetAttribute", what);
  return {entry, handle, static_cast<unsigned>(limit)};
}

}  // namespace

std::string device_name(std::int64_t device) { return "cuda:" + std::to_string(device); }

const LoadedKernels& loaded_kernels(const char* op, std::int64_t device) {
  DeviceState& state = state_of(op, device);
  if (const LoadedKernels* loaded = state.loaded.load(std::memory_order_acquire)) return *loaded;

  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.owner) return *state.owner;
  TORCH_CHECK(!state.files.empty(), "ddtree::", op, ": no kernels were chosen for ",
              device_name(device), "; import ddtree_overlay.ops with this GPU visible to torch");
  const Driver& driver = cuda_driver(op);
  if (state.context == nullptr) {
    DeviceHandle handle = 0;
    const std::string what = device_name(device);
    check_driver(driver, driver.device(&handle, static_cast<int>(device)), op, "cuDeviceGet", what);
    check_driver(driver, driver.retain_context(&state.context, handle), op,
                 "cuDevicePrimaryCtxRetain", what);
  }
  const int shared_limit = attribute(driver, op, kMaxSharedPerBlockOptin, device);
  const ContextScope scope(driver, op, state.context);
  auto loaded = std::make_unique<LoadedKernels>();
  loaded->context = state.context;
  for (std::size_t i = 0; i < state.files.size(); ++i) {
    const KernelFile& file = state.files[i];
    if (i == state.modules.size()) {
      state.modules.push_back(load_module(driver, op, file.path, device));
    }
    for (const std::string& entry : file.entries) {
      loaded->kernels.push_back(
          load_kernel(driver, op, state.modules[i], entry, file.path, shared_limit));
    }
  }
  state.owner = std::move(loaded);
  state.loaded.store(state.owner.get(), std::memory_order_release);
  return *state.owner;
}

void use_kernels(std::int64_t device, at::ArrayRef<std::string> files) {
  DeviceState& state = state_of("_use_kernels", device);
  TORCH_CHECK(!files.empty(), "ddtree::_use_kernels: files is empty for ", device_name(device));
  std::vector<KernelFile> parsed;
  for (const std::string& file : files) parsed.push_back(parse_file(file));
  check_entries_differ(parsed);
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.files == parsed) return;
  TORCH_CHECK(state.modules.empty(), "ddtree::_use_kernels: the kernels of ", device_name(device),
              " are loaded already, from ", state.files.front().path,
              " on; use other files in a new process");
  state.files = std::move(parsed);
}

void load_kernels(std::int64_t device) { loaded_kernels("_load_kernels", device); }

int multiprocessors(c10::Device device) {
  constexpr const char* kOp = "multiprocessors";
  DeviceState& state = state_of(kOp, device.index());
  int count = state.multiprocessors.load(std::memory_order_relaxed);
  if (count == 0) {
    count = attribute(cuda_driver(kOp), kOp, kMultiprocessorCount, device.index());
    state.multiprocessors.store(count, std::memory_order_relaxed);
  }
  return count;
}

}  // namespace ddtree
