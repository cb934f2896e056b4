// A kernel that launch_kernel can find by its name: each .cu file's are registered behind it.
#pragma once

#include <functional>

namespace emulator {

struct Kernel {
  Kernel(const char* entry, int most_threads, std::function<void(const void*)> run);
};

}  // namespace emulator
