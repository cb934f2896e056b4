// The CUDA names that the kernels use, on the CPU: the threads of a block as fibers of one thread.
//
// A fiber runs until it meets a barrier, a shuffle or a ballot; then others run. The order in which
// the lanes of a warp are resumed is shuffled by a seed, and so is how far one warp runs ahead of
// the others between two __syncthreads(); an atomic may let the other lanes run first. So a result
// that depends on an order (a missing barrier) shows as a difference between seeds. What would hang
// a GPU or is undefined there is reported instead: lanes of a warp that meet different operations,
// and threads that end, or wait for something else, while others wait for them.
//
// Shared memory is dynamic only: `extern __shared__ ddtree::i64 ddtree_shared[]` in a kernel names
// an array that the shim defines. The blocks of a grid run one after another, in shuffled order.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Dim3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

inline Dim3 threadIdx;
inline Dim3 blockIdx;
inline Dim3 blockDim{32, 1, 1};
inline Dim3 gridDim{1, 1, 1};

namespace emulator {

constexpr int kLanes = 32;
constexpr int kMaxThreads = 1024;
constexpr std::size_t kStack = 128 * 1024;
constexpr unsigned char kPoison = 0xa5;

// What a fiber waits for. Shuffles add their width and mask, so that different ones do not meet.
enum Operation { kSyncWarp = 1, kSyncThreads, kBallot, kShuffle, kShuffleDown, kShuffleXor };

// The plain function: the checked one that _FORTIFY_SOURCE puts in its place refuses other stacks.
extern "C" [[noreturn]] void plain_longjmp(jmp_buf, int) noexcept __asm__("_longjmp");

class Block {
 public:
  Block(int threads, unsigned seed) : random_(seed), threads_(static_cast<std::size_t>(threads)) {
    if (threads < 1 || threads > kMaxThreads) __builtin_trap();
    if (spare_stacks().empty()) {
      // Not initialised: pages that nothing touches cost nothing.
      stacks_.reset(new char[kMaxThreads * kStack]);
    } else {
      stacks_ = std::move(spare_stacks().back());
      spare_stacks().pop_back();
    }
    warps_.resize((threads_.size() + kLanes - 1) / kLanes);
    for (int i = 0; i < static_cast<int>(warps_.size()); ++i) {
      warps_[i].first = i * kLanes;
      warps_[i].lanes = std::min(kLanes, threads - i * kLanes);
      std::iota(warps_[i].order.begin(), warps_[i].order.end(), 0);
    }
  }

  Block(const Block&) = delete;

  // For the next block: to get the pages anew takes longer than most kernels here.
  ~Block() { spare_stacks().push_back(std::move(stacks_)); }

  // Runs `body` on all threads; false if they did not stay together.
  bool run(const std::function<void()>& body) {
    body_ = &body;
    active = this;
    blockDim = {static_cast<unsigned>(threads_.size()), 1, 1};
    for (Thread& thread : threads_) {
      if (thread.state != State::kDone) thread.started = false;  // abandoned in an earlier run
      thread.state = State::kReady;
    }
    for (Warp& warp : warps_) warp.state = State::kReady;
    any_ = 0;
    std::vector<int> ready;
    while (true) {
      ready.clear();
      for (int i = 0; i < static_cast<int>(warps_.size()); ++i) {
        if (warps_[i].state == State::kReady) ready.push_back(i);
      }
      if (!ready.empty()) {
        Warp& warp = warps_[ready[random_() % ready.size()]];
        // Short turns interleave warps closely, long ones take one up to the next __syncthreads().
        int turns = 1 + static_cast<int>(random_() % 4);
        if (random_() % 4 == 0) turns = 1 << 20;
        for (; turns > 0 && warp.state == State::kReady; --turns) {
          if (!advance(warp)) return false;
        }
        continue;
      }
      for (const Warp& warp : warps_) {
        if (warp.state != warps_[0].state) return false;
      }
      if (warps_[0].state == State::kDone) return true;
      for (Warp& warp : warps_) warp.state = State::kReady;
      any_released_ = any_;
      any_ = 0;
    }
  }

  void meet(int operation) {
    Thread& thread = threads_[current_];
    thread.operation = operation;
    thread.state = State::kWaiting;
    suspend(thread);
  }

  // Lets the other lanes of the warp run first, now and then.
  void stumble() {
    if (random_() % 8 == 0) suspend(threads_[current_]);
  }

  bool any(bool mine) {
    any_ = any_ || mine;
    meet(kSyncThreads);
    return any_released_;
  }

  // The slots of the warp once all its lanes have put their values there. A lane is at most one
  // meeting ahead of another, so two sets suffice.
  const std::uint64_t* exchange(std::uint64_t value, int operation) {
    Thread& thread = threads_[current_];
    Warp& warp = warps_[current_ / kLanes];
    if (warp.lanes != kLanes) __builtin_trap();  // the mask names lanes that do not exist
    auto& slots = warp.slots[thread.parity];
    thread.parity ^= 1;
    slots[current_ % kLanes] = value;
    meet(operation);
    return slots.data();
  }

  int lane() const { return current_ % kLanes; }

  static inline Block* active = nullptr;

 private:
  enum class State { kDone, kReady, kWaiting };

  struct Thread {
    jmp_buf here;
    State state = State::kDone;
    bool started = false;
    int operation = 0;
    int parity = 0;
  };

  struct Warp {
    int first = 0;
    int lanes = 0;
    State state = State::kReady;  // kWaiting: at __syncthreads()
    std::array<int, kLanes> order;
    std::array<std::array<std::uint64_t, kLanes>, 2> slots{};
  };

  static std::vector<std::unique_ptr<char[]>>& spare_stacks() {
    static std::vector<std::unique_ptr<char[]>> spare;
    return spare;
  }

  // All lanes up to their next meeting; false if they do not meet.
  bool advance(Warp& warp) {
    std::shuffle(warp.order.begin(), warp.order.begin() + warp.lanes, random_);
    for (int i = 0; i < warp.lanes; ++i) {
      Thread& thread = threads_[warp.first + i];
      if (thread.state == State::kWaiting) thread.state = State::kReady;
    }
    for (bool again = true; again;) {
      again = false;
      for (int i = 0; i < warp.lanes; ++i) {
        const int index = warp.first + warp.order[i];
        Thread& thread = threads_[index];
        if (thread.state != State::kReady) continue;
        current_ = index;
        threadIdx.x = static_cast<unsigned>(index);
        resume(thread);
        again = again || thread.state == State::kReady;
      }
    }
    const Thread& first = threads_[warp.first];
    for (int i = 1; i < warp.lanes; ++i) {
      const Thread& thread = threads_[warp.first + i];
      if (thread.state != first.state) return false;
      if (first.state == State::kWaiting && thread.operation != first.operation) return false;
    }
    if (first.state == State::kDone) {
      warp.state = State::kDone;
    } else if (first.operation == kSyncThreads) {
      warp.state = State::kWaiting;
    }
    return true;
  }

  // A switch by jump costs nanoseconds; swapcontext() makes a system call.
  __attribute__((noinline)) void resume(Thread& thread) {
    if (_setjmp(scheduler_) != 0) return;
    if (thread.started) plain_longjmp(thread.here, 1);
    thread.started = true;
    thread.parity = 0;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = stacks_.get() + static_cast<std::size_t>(current_) * kStack;
    start.uc_stack.ss_size = kStack;
    start.uc_link = nullptr;
    makecontext(&start, &Block::enter, 0);
    setcontext(&start);
    __builtin_trap();
  }

  __attribute__((noinline)) void suspend(Thread& thread) {
    if (_setjmp(thread.here) == 0) plain_longjmp(scheduler_, 1);
  }

  // A fiber's stack is used again by the next run.
  static void enter() {
    while (true) {
      (*active->body_)();
      Thread& thread = active->threads_[active->current_];
      thread.state = State::kDone;
      thread.parity = 0;
      active->suspend(thread);
    }
  }

  std::mt19937 random_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<char[]> stacks_;
  jmp_buf scheduler_;
  const std::function<void()>* body_ = nullptr;
  int current_ = 0;
  bool any_ = false;
  bool any_released_ = false;
};

// One warp, for kernels of 32 threads.
class Warp : public Block {
 public:
  explicit Warp(unsigned seed) : Block(kLanes, seed) {}
};

enum Status { kFine = 0, kBeyondShared = 1, kDiverged = 2 };

// Runs `kernel` over a grid. `shared` points to the array of `capacity` bytes that the kernel's
// extern __shared__ names; each block finds it poisoned, and `bytes` of it are its to write.
inline Status launch(unsigned grid_x, unsigned grid_y, int threads, void* shared,
                     std::size_t capacity, std::size_t bytes, unsigned seed,
                     const std::function<void()>& kernel) {
  constexpr std::size_t kGuard = 256;
  if (bytes + kGuard > capacity) return kBeyondShared;
  auto* raw = static_cast<unsigned char*>(shared);
  Block block(threads, seed);
  gridDim = {grid_x, grid_y, 1};
  std::vector<unsigned> order(static_cast<std::size_t>(grid_x) * grid_y);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  for (const unsigned index : order) {
    blockIdx = {index % grid_x, index / grid_x, 0};
    std::memset(raw, kPoison, bytes + kGuard);
    if (!block.run(kernel)) return kDiverged;
    for (std::size_t i = bytes; i < bytes + kGuard; ++i) {
      if (raw[i] != kPoison) return kBeyondShared;
    }
  }
  return kFine;
}

inline void require_full(unsigned mask) {
  if (mask != 0xffffffffu) __builtin_trap();
}

template <class T>
std::uint64_t to_slot(T value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_arithmetic_v<T>);
  std::uint64_t slot = 0;
  std::memcpy(&slot, &value, sizeof(T));
  return slot;
}

template <class T>
T from_slot(std::uint64_t slot) {
  T value;
  std::memcpy(&value, &slot, sizeof(T));
  return value;
}

template <class T>
T shuffle(unsigned mask, T value, int kind, int argument, int from) {
  require_full(mask);
  const int operation = kind + 16 * argument + 1024 * static_cast<int>(sizeof(T));
  const std::uint64_t* slots = Block::active->exchange(to_slot(value), operation);
  return from_slot<T>(slots[from]);
}

// Single-word atomics. `may_alias`: a kernel casts its 64-bit words to what CUDA's functions take.
template <class T, class Change>
T update(T* at, Change change) {
  typedef T __attribute__((may_alias)) Word;
  Block::active->stumble();
  Word* word = at;
  const T old = *word;
  *word = change(old);
  return old;
}

}  // namespace emulator

inline void __syncthreads() { emulator::Block::active->meet(emulator::kSyncThreads); }

inline int __syncthreads_or(int predicate) {
  return emulator::Block::active->any(predicate != 0) ? 1 : 0;
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulator::require_full(mask);
  emulator::Block::active->meet(emulator::kSyncWarp);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int xor_mask) {
  const int from = emulator::Block::active->lane() ^ xor_mask;
  return emulator::shuffle(mask, value, emulator::kShuffleXor, xor_mask, from);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const int self = emulator::Block::active->lane();
  const int from = self + static_cast<int>(delta);
  return emulator::shuffle(mask, value, emulator::kShuffleDown, static_cast<int>(delta),
                           from < emulator::kLanes ? from : self);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulator::shuffle(mask, value, emulator::kShuffle, 0, from & (emulator::kLanes - 1));
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  emulator::require_full(mask);
  const std::uint64_t* slots = emulator::Block::active->exchange(predicate != 0,
                                                                 emulator::kBallot);
  unsigned bits = 0;
  for (int i = 0; i < emulator::kLanes; ++i) bits |= static_cast<unsigned>(slots[i]) << i;
  return bits;
}

inline int atomicAdd(int* at, int value) {
  return emulator::update(at, [&](int old) { return old + value; });
}
inline unsigned atomicAdd(unsigned* at, unsigned value) {
  return emulator::update(at, [&](unsigned old) { return old + value; });
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return emulator::update(at, [&](unsigned long long old) { return old + value; });
}
inline int atomicMax(int* at, int value) {
  return emulator::update(at, [&](int old) { return std::max(old, value); });
}
inline unsigned atomicMax(unsigned* at, unsigned value) {
  return emulator::update(at, [&](unsigned old) { return std::max(old, value); });
}
inline unsigned long long atomicMax(unsigned long long* at, unsigned long long value) {
  return emulator::update(at, [&](unsigned long long old) { return std::max(old, value); });
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
