// The CUDA names that the kernels use, on the CPU: one warp as 32 fibers of one thread.
//
// A fiber runs until it meets a barrier or a shuffle; then the others run. The order in which they
// are resumed is shuffled by a seed, so a result that depends on an order (a missing barrier) shows
// as a difference between seeds. Lanes that meet different operations, or of which some end while
// others wait, would hang a GPU: that is reported instead.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <type_traits>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct Dim3 {
  unsigned x = 0;
};

inline Dim3 threadIdx;
inline Dim3 blockIdx;

namespace emulator {

constexpr int kLanes = 32;
constexpr std::size_t kStack = 256 * 1024;

enum class State { kReady, kWaiting, kDone };

class Warp {
 public:
  explicit Warp(unsigned seed) : random_(seed) {
    for (auto& lane : lanes_) lane.stack = std::make_unique<char[]>(kStack);
  }

  // Runs `body` on all lanes; false if the lanes did not stay together.
  bool run(const std::function<void()>& body) {
    body_ = &body;
    current_warp = this;
    for (auto& lane : lanes_) {
      getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.get();
      lane.context.uc_stack.ss_size = kStack;
      lane.context.uc_link = &scheduler_;
      makecontext(&lane.context, &Warp::enter, 0);
      lane.state = State::kReady;
      lane.parity = 0;
    }
    std::array<int, kLanes> order;
    for (int i = 0; i < kLanes; ++i) order[i] = i;
    while (true) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const int index : order) {
        current_ = index;
        threadIdx.x = static_cast<unsigned>(index);
        swapcontext(&scheduler_, &lanes_[index].context);
      }
      const Lane& first = lanes_[0];
      for (const Lane& lane : lanes_) {
        if (lane.state != first.state) return false;
        if (first.state == State::kWaiting && lane.operation != first.operation) return false;
      }
      if (first.state == State::kDone) return true;
    }
  }

  void meet(int operation) {
    Lane& lane = lanes_[current_];
    lane.operation = operation;
    lane.state = State::kWaiting;
    const int self = current_;
    swapcontext(&lane.context, &scheduler_);
    lanes_[self].state = State::kReady;
  }

  // A lane is at most one meeting ahead of another, so two sets of slots suffice.
  template <class T>
  T exchange(T value, int xor_mask, int operation) {
    static_assert(sizeof(T) <= sizeof(long) && std::is_integral_v<T>);
    Lane& lane = lanes_[current_];
    const int self = current_;
    auto& slots = slots_[lane.parity];
    lane.parity ^= 1;
    slots[self] = static_cast<long>(value);
    meet(operation);
    return static_cast<T>(slots[self ^ xor_mask]);
  }

  static inline Warp* current_warp = nullptr;

 private:
  struct Lane {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state = State::kReady;
    int operation = 0;
    int parity = 0;
  };

  static void enter() {
    Warp* warp = current_warp;
    const int self = warp->current_;
    (*warp->body_)();
    warp->lanes_[self].state = State::kDone;
  }

  std::mt19937 random_;
  std::array<Lane, kLanes> lanes_;
  std::array<std::array<long, kLanes>, 2> slots_{};
  ucontext_t scheduler_{};
  const std::function<void()>* body_ = nullptr;
  int current_ = 0;
};

}  // namespace emulator

constexpr int kBarrier = 1;
constexpr int kShuffle = 2;  // + the mask, so that different shuffles do not meet

inline void __syncwarp(unsigned mask) {
  if (mask != 0xffffffffu) __builtin_trap();
  emulator::Warp::current_warp->meet(kBarrier);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int xor_mask) {
  if (mask != 0xffffffffu) __builtin_trap();
  const int operation = kShuffle + xor_mask + 64 * static_cast<int>(sizeof(T));
  return emulator::Warp::current_warp->exchange(value, xor_mask, operation);
}
