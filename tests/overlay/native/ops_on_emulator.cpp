// launch.h on the emulator: the ops' own launches, kernels and arguments, without a GPU. What a
// driver would refuse is an error here too, within the limits of sm_120.
//
// DDTREE_EMULATED_LAUNCHES=<file>: how often each kernel was launched, written at exit.
// DDTREE_EMULATED_FAULT=grid|shared: launches a column of blocks or 8 bytes too few, which a test
// of the op must notice. DDTREE_EMULATED_MULTIPROCESSORS: of the GPU.
#include "ops_on_emulator.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "cuda_on_host.h"
#include "device.h"
#include "launch.h"
#include "ops.h"

ddtree::i64 ddtree_shared[1 << 14];  // what `extern __shared__` in the kernels names

namespace {

constexpr unsigned kMostShared = 101376;
static_assert(sizeof(ddtree_shared) > kMostShared);

struct Entry {
  int most_threads;
  std::function<void(const void*)> run;
  long launches = 0;
};

struct Entries {
  std::map<std::string, Entry> all;

  ~Entries() {
    const char* path = std::getenv("DDTREE_EMULATED_LAUNCHES");
    if (path == nullptr) return;
    std::ofstream file(path);
    for (const auto& [name, entry] : all) file << name << ' ' << entry.launches << '\n';
  }
};

std::map<std::string, Entry>& entries() {
  static Entries known;
  return known.all;
}

ddtree::LaunchShape faulty(ddtree::LaunchShape shape) {
  const char* fault = std::getenv("DDTREE_EMULATED_FAULT");
  const std::string kind = fault == nullptr ? "" : fault;
  if (kind == "grid") --shape.grid_x;
  if (kind == "shared" && shape.shared > 0) shape.shared -= 8;
  return shape;
}

}  // namespace

emulator::Kernel::Kernel(const char* entry, int most_threads,
                         std::function<void(const void*)> run) {
  entries()[entry] = {most_threads, std::move(run)};
}

namespace ddtree {

void launch_kernel(const char* op, const char* entry, c10::Device, LaunchShape shape,
                   const void* arguments) {
  if (shape.grid_x == 0 || shape.grid_y == 0) return;
  const auto found = entries().find(entry);
  TORCH_CHECK(found != entries().end(), op, ": no kernel ", entry);
  TORCH_CHECK(shape.grid_x < 1u << 31 && shape.grid_y < 1u << 16, entry, ": grid ", shape.grid_x,
              " x ", shape.grid_y);
  TORCH_CHECK(shape.block >= 1 && static_cast<int>(shape.block) <= found->second.most_threads,
              entry, ": ", shape.block, " threads, launch bound ", found->second.most_threads);
  TORCH_CHECK(shape.shared <= kMostShared, entry, ": ", shape.shared, " bytes of shared memory");
  ++found->second.launches;
  shape = faulty(shape);
  static unsigned seed = 0;
  const emulator::Status status = emulator::launch(
      shape.grid_x, shape.grid_y, static_cast<int>(shape.block), ddtree_shared,
      sizeof(ddtree_shared), shape.shared, ++seed, [&] { found->second.run(arguments); });
  TORCH_CHECK(status == emulator::kFine, entry,
              status == emulator::kBeyondShared ? ": wrote beyond its shared memory"
                                                : ": its threads did not stay together");
}

int multiprocessors(c10::Device) {
  const char* count = std::getenv("DDTREE_EMULATED_MULTIPROCESSORS");
  return count == nullptr ? 188 : std::atoi(count);
}

void use_kernels(std::int64_t, at::ArrayRef<std::string>) {}
void load_kernels(std::int64_t) {}

}  // namespace ddtree
