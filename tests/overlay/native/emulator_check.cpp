// Kernels for tests/overlay/test_emulator.py: what cuda_on_host.h must do, and what it must report.
#include "cuda_on_host.h"

#include <vector>

namespace {

constexpr int kRows = 3;
constexpr int kColumns = 2;
std::vector<int> results;  // of each thread of the grid

int thread() { return static_cast<int>(threadIdx.x); }

int* mine() {
  const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
  return &results[block * blockDim.x + threadIdx.x];
}

}  // namespace

alignas(16) long ddtree_shared[2048];

namespace {

int* shared() { return reinterpret_cast<int*>(ddtree_shared); }

// Every exchange among lanes, checked by each thread for itself.
void exchanges() {
  const int lane = thread() % 32;
  const int first = thread() - lane;
  bool fine = __shfl_xor_sync(~0u, thread(), 5) == first + (lane ^ 5);
  fine = fine && __shfl_sync(~0u, 0.5f + static_cast<float>(lane), lane + 3) ==
                     0.5f + static_cast<float>((lane + 3) % 32);
  fine = fine && __shfl_down_sync(~0u, static_cast<long>(lane) << 40, 4u) ==
                     static_cast<long>(lane + 4 < 32 ? lane + 4 : lane) << 40;
  fine = fine && __ballot_sync(~0u, lane % 3 == 0) == 0x49249249u;
  fine = fine && __syncthreads_or(thread() == 7) == 1 && __syncthreads_or(0) == 0;
  *mine() = fine ? 1 : 0;
}

// A sum of the block by halving, with or without the barrier that it needs.
template <bool kBarrier>
void block_sum() {
  shared()[thread()] = thread();
  __syncthreads();
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    if (thread() < half) shared()[thread()] += shared()[thread() + half];
    if (kBarrier) __syncthreads();
  }
  *mine() = shared()[0];
}

void atomics() {
  if (thread() == 0) shared()[0] = shared()[1] = 0;
  __syncthreads();
  atomicAdd(&shared()[0], 2);
  atomicMax(&shared()[1], thread() ^ 1);
  __syncthreads();
  *mine() = shared()[0] == 2 * static_cast<int>(blockDim.x) &&
            shared()[1] == static_cast<int>(blockDim.x) - 1;
}

// Looks up first and adds later, as if nobody came in between.
void lost_update() {
  if (thread() == 0) shared()[0] = shared()[1] = 0;
  __syncthreads();
  const int before = shared()[0];
  atomicAdd(&shared()[1], 1);
  shared()[0] = before + 1;
  __syncthreads();
  *mine() = shared()[0];
}

void half_at_barrier() {
  if (thread() < 32) __syncthreads();
}
void lane_ends() {
  if (thread() % 32 != 9) __syncwarp();
}
void different_barriers() {
  if (thread() % 2 == 0) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}
void different_shuffles() { __shfl_xor_sync(~0u, 1, thread() % 2 + 1); }
void beyond_shared() { shared()[64 + thread()] = 0; }
void within_shared() { shared()[thread()] = 0; }

constexpr void (*kKernels[])() = {
    exchanges, block_sum<true>, block_sum<false>,   atomics,       lost_update,  half_at_barrier,
    lane_ends, different_barriers, different_shuffles, beyond_shared, within_shared};

}  // namespace

// Fills `out` [rows * columns * threads]; returns the emulator::Status.
extern "C" int check_run(int kernel, int threads, unsigned seed, int* out) {
  results.assign(static_cast<std::size_t>(kRows * kColumns * threads), -1);
  const int status =
      emulator::launch(kRows, kColumns, threads, ddtree_shared, sizeof(ddtree_shared),
                       sizeof(int) * static_cast<std::size_t>(threads), seed, kKernels[kernel]);
  std::copy(results.begin(), results.end(), out);
  return status;
}
