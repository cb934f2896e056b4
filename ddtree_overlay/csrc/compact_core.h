// Rows of accepted nodes: moved to the front of the verify window (compact_kv, in place) and
// gathered for the drafter (gather_path). A dtype is a number of bytes here.
//
// compact_kv: for r = 1..accepted, row slots[path[r]] of each buffer goes to row slots[r]. Sources
// and targets are rows of one window and overlap as sets. What makes it safe:
// - A path ascends from the root at 0, so path[r] >= r, and path[s] > r for every later step s > r.
//   A request's slots differ, so no later step reads the row that step r has written. Steps done
//   in ascending r therefore read only rows as they were before the call.
// - Steps of one group load before any of them stores, which is that order or stricter.
// - A vector of a row (the same bytes of every row of one buffer) belongs to one thread, which
//   does all steps of a request on it. Two threads never touch the same byte, so no barrier is
//   needed and no order between threads is assumed. Requests own different slots.
// Slots that are equal in all of a request, as where a CUDA graph pads its batch, move nothing.
//
// A device cannot report a bad index: a step with one moves nothing, and a gathered row with one is
// zero. The CPU ops refuse both.
#pragma once

#include "device.h"

namespace ddtree {

constexpr int kMoveThreads = 128;  // at most, in a block of compact_kv
constexpr int kMoveGroup = 8;      // steps in flight: a usual path in one latency of the memory
constexpr int kGatherThreads = 256;
constexpr int kMaxTiles = 64;     // blocks that share a row; its threads go round beyond
constexpr int kMaxBuffers = 160;  // of one launch: K and V of 80 layers

// Rows of `row_bytes`, `stride` bytes apart, moved in vectors of `vector` bytes.
struct MovedBuffer {
  unsigned char* rows;
  i64 stride;
  int row_bytes;
  int vector;
};

// Arguments of one launch of compact_kv. Strides of slots, path and accepted count elements. Grid
// (buffers * tiles, batch), block (threads).
struct CompactArgs {
  MovedBuffer buffers[kMaxBuffers];
  const i64* slots;
  i64 slots_stride[2];
  const i64* path;
  i64 path_stride[2];
  const i64* accepted;
  i64 accepted_stride;
  i64 rows;  // of the buffer that has the fewest
  int width;
  int columns;
  int tiles;  // blocks that share a row
  int threads;
};
// CUDA allows 4 KiB of parameters on every architecture.
static_assert(sizeof(CompactArgs) <= 4000, "the parameter of one launch is too large");

// Arguments of one launch of gather_path. Strides of rows count bytes, those of path elements. Grid
// (batch * columns * tiles), block (kGatherThreads). The output is contiguous.
struct GatherArgs {
  const unsigned char* rows;
  i64 stride;
  unsigned char* gathered;
  const i64* path;
  i64 path_stride[2];
  i64 row_bytes;
  int vector;
  int width;
  int columns;
  int tiles;
};

struct alignas(16) Bytes16 {
  u64 low;
  u64 high;
};

// The widest vector, in bytes, that `bits` (addresses, strides, sizes, or-ed together) allow.
DDTREE_FN int widest_vector(u64 bits) {
  int vector = 16;
  while (bits % static_cast<u64>(vector) != 0) vector /= 2;
  return vector;
}

// Blocks of `threads` for a row of `vectors`.
DDTREE_FN int row_tiles(i64 vectors, i64 threads) {
  const i64 tiles = (vectors + threads - 1) / threads;
  return static_cast<int>(tiles < kMaxTiles ? tiles : kMaxTiles);
}

DDTREE_FN MovedBuffer moved_buffer(void* rows, i64 stride, int row_bytes) {
  const u64 bits = reinterpret_cast<u64>(rows) | static_cast<u64>(stride) |
                   static_cast<u64>(row_bytes);
  return {static_cast<unsigned char*>(rows), stride, row_bytes, widest_vector(bits)};
}

// Sets the threads and tiles of a launch for the widest row of the first `count` buffers.
DDTREE_FN void shape_compact(CompactArgs& args, int count) {
  int vectors = 1;
  for (int i = 0; i < count; ++i) {
    const int mine = args.buffers[i].row_bytes / args.buffers[i].vector;
    vectors = mine > vectors ? mine : vectors;
  }
  args.threads = vectors < kMoveThreads ? (vectors + 31) / 32 * 32 : kMoveThreads;
  args.tiles = row_tiles(vectors, args.threads);
}

// Sets the vector and tiles of a launch from the rest of `args`.
DDTREE_FN void shape_gather(GatherArgs& args) {
  args.vector = widest_vector(reinterpret_cast<u64>(args.rows) |
                              reinterpret_cast<u64>(args.gathered) |
                              static_cast<u64>(args.stride) | static_cast<u64>(args.row_bytes));
  args.tiles = row_tiles(args.row_bytes / args.vector, kGatherThreads);
}

// Every index of the group is loaded before the first is used, clamped rather than skipped, and
// tested without branches, so that a group costs three latencies of the memory (path, slots, rows)
// and not three a step.
template <class Vector>
DDTREE_FN void compact_vectors(const CompactArgs& args, const MovedBuffer& buffer, i64 request,
                               int first) {
  const i64* slots = args.slots + request * args.slots_stride[0];
  const i64* path = args.path + request * args.path_stride[0];
  const i64 given = args.accepted[request * args.accepted_stride];
  const int accepted =
      given < 0 ? 0 : static_cast<int>(given < args.columns ? given : args.columns - 1);
  const int vectors = buffer.row_bytes / static_cast<int>(sizeof(Vector));
  for (int at = first; at < vectors; at += args.tiles * args.threads) {
    unsigned char* column = buffer.rows + static_cast<i64>(at) * static_cast<i64>(sizeof(Vector));
    for (int begin = 1; begin <= accepted; begin += kMoveGroup) {
      i64 node[kMoveGroup];
      i64 source[kMoveGroup];
      i64 target[kMoveGroup];
      Vector held[kMoveGroup];
#pragma unroll
      for (int i = 0; i < kMoveGroup; ++i) {
        const int step = begin + i < accepted ? begin + i : accepted;
        node[i] = path[step * args.path_stride[1]];
        target[i] = slots[step * args.slots_stride[1]];
      }
#pragma unroll
      for (int i = 0; i < kMoveGroup; ++i) {
        const bool moves =
            (begin + i <= accepted) & (node[i] > begin + i) & (node[i] < args.width);
        source[i] = slots[(moves ? node[i] : 0) * args.slots_stride[1]];
        target[i] = moves ? target[i] : kNone;
      }
#pragma unroll
      for (int i = 0; i < kMoveGroup; ++i) {
        const bool known = (source[i] >= 0) & (source[i] < args.rows) & (target[i] < args.rows);
        target[i] = known & (source[i] != target[i]) ? target[i] : kNone;
      }
#pragma unroll
      for (int i = 0; i < kMoveGroup; ++i) {
        if (target[i] >= 0) {
          held[i] = *reinterpret_cast<const Vector*>(column + source[i] * buffer.stride);
        }
      }
#pragma unroll
      for (int i = 0; i < kMoveGroup; ++i) {
        if (target[i] >= 0) {
          *reinterpret_cast<Vector*>(column + target[i] * buffer.stride) = held[i];
        }
      }
    }
  }
}

// One thread's share of a launch of compact_kv.
DDTREE_FN void compact_kv(const CompactArgs& args, int block, int request, int thread) {
  const MovedBuffer& buffer = args.buffers[block / args.tiles];
  const int first = block % args.tiles * args.threads + thread;
  switch (buffer.vector) {
    case 16:
      return compact_vectors<Bytes16>(args, buffer, request, first);
    case 8:
      return compact_vectors<u64>(args, buffer, request, first);
    case 4:
      return compact_vectors<unsigned>(args, buffer, request, first);
    case 2:
      return compact_vectors<unsigned short>(args, buffer, request, first);
    default:
      return compact_vectors<unsigned char>(args, buffer, request, first);
  }
}

template <class Vector>
DDTREE_FN void gather_vectors(const GatherArgs& args, i64 output, i64 first) {
  const i64 request = output / args.columns;
  const i64 step = output % args.columns;
  const i64 node = args.path[request * args.path_stride[0] + step * args.path_stride[1]];
  const bool known = node >= 0 && node < args.width;
  const unsigned char* row = args.rows + (known ? request * args.width + node : 0) * args.stride;
  unsigned char* target = args.gathered + output * args.row_bytes;
  const i64 vectors = args.row_bytes / static_cast<i64>(sizeof(Vector));
  for (i64 at = first; at < vectors; at += static_cast<i64>(args.tiles) * kGatherThreads) {
    Vector value{};
    if (known) value = reinterpret_cast<const Vector*>(row)[at];
    reinterpret_cast<Vector*>(target)[at] = value;
  }
}

// One thread's share of a launch of gather_path.
DDTREE_FN void gather_path(const GatherArgs& args, int block, int thread) {
  const i64 output = block / args.tiles;
  const i64 first = static_cast<i64>(block % args.tiles) * kGatherThreads + thread;
  switch (args.vector) {
    case 16:
      return gather_vectors<Bytes16>(args, output, first);
    case 8:
      return gather_vectors<u64>(args, output, first);
    case 4:
      return gather_vectors<unsigned>(args, output, first);
    case 2:
      return gather_vectors<unsigned short>(args, output, first);
    default:
      return gather_vectors<unsigned char>(args, output, first);
  }
}

}  // namespace ddtree
