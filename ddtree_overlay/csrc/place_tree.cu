// ddtree::place_tree on the device: the mask in aligned stores of 16 bytes, most of them all ones.
//
// Compiled ahead of time by NVRTC, so nothing of a host header may be included. Launch: grid
// (place_blocks(numel, batch), batch + 1), block (kPlaceThreads), no shared memory. The last row of
// blocks writes what is beyond the requests.
#include "place_core.h"

namespace {

using ddtree::i64;
using ddtree::u32;
using ddtree::u64;
using ddtree::PlaceTreeArgs;

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;
constexpr u64 kOnes = 0x0101010101010101u;

struct alignas(16) Piece {
  u64 low;
  u64 high;
};

// A prefix length out of range must not lead out of the mask.
__device__ __forceinline__ i64 bounded_prefix(const PlaceTreeArgs& args, int request) {
  const i64 prefix = args.prefix_len(request);
  return prefix < 0 ? 0 : prefix > args.numel ? args.numel : prefix;
}

// First element of the request, which may be beyond the mask. Every warp finds it for itself.
__device__ __forceinline__ i64 first_element(const PlaceTreeArgs& args, int request) {
  i64 sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < request; i += kWarp) {
    sum += bounded_prefix(args, i) + args.width;
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  return sum * args.width;
}

// Row and column of a request's element; columns stay below 2^32 as the mask's elements do.
struct Cell {
  u32 row;
  u32 column;

  __device__ __forceinline__ void next(u32 columns) {
    ++column;
    if (column == columns) {
      column = 0;
      ++row;
    }
  }
};

// Elements [from, from + 16) of a request, of which those in 0..length - 1 exist.
__device__ __forceinline__ void store_piece(const PlaceTreeArgs& args, int request, u32 prefix,
                                            unsigned char* segment, i64 from, i64 length) {
  const bool whole = from >= 0 && from + ddtree::kPieceBytes <= length;
  u64 words[2] = {kOnes, kOnes};
  if (request < args.batch) {
    const u32 columns = prefix + static_cast<u32>(args.width);
    const u32 first = static_cast<u32>(from < 0 ? 0 : from);
    Cell cell;
    cell.row = first / columns;
    cell.column = first - cell.row * columns;
    if (cell.column + ddtree::kPieceBytes > prefix) {
#pragma unroll
      for (int i = 0; i < ddtree::kPieceBytes; ++i) {
        if (from + i < 0 || from + i >= length) continue;
        if (cell.column >= prefix && !args.sees(request, cell.row, cell.column - prefix)) {
          words[i / 8] &= ~(static_cast<u64>(1) << (i % 8 * 8));
        }
        cell.next(columns);
      }
    }
  }
  if (whole) {
    *reinterpret_cast<Piece*>(segment + from) = Piece{words[0], words[1]};
    return;
  }
#pragma unroll
  for (int i = 0; i < ddtree::kPieceBytes; ++i) {
    if (from + i < 0 || from + i >= length) continue;
    segment[from + i] = static_cast<unsigned char>(words[i / 8] >> (i % 8 * 8));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) ddtree_place_tree(ddtree::PlaceTreeArgs args) {
  static_assert(ddtree::kPlaceThreads == 256, "as the launch bound says");
  const int request = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  i64 begin = first_element(args, request);
  i64 end = args.numel;
  u32 prefix = 0;
  if (request < args.batch) {
    const i64 bounded = bounded_prefix(args, request);
    const i64 size = (bounded + args.width) * args.width;
    if (begin + size < end) end = begin + size;
    prefix = static_cast<u32>(bounded);
    if (blockIdx.x == 0) {
      const i64 given = args.prefix_len(request);
      for (int node = thread; node < args.width; node += ddtree::kPlaceThreads) {
        args.positions[static_cast<i64>(request) * args.width + node] =
            args.position(request, node, given);
      }
    }
  }
  if (begin >= end) return;

  unsigned char* segment = args.mask + begin;
  const i64 length = end - begin;
  const i64 lead = static_cast<i64>(reinterpret_cast<u64>(segment) % ddtree::kPieceBytes);
  const i64 pieces = (lead + length + ddtree::kPieceBytes - 1) / ddtree::kPieceBytes;
  const i64 step = static_cast<i64>(gridDim.x) * ddtree::kPlaceThreads;
  for (i64 i = static_cast<i64>(blockIdx.x) * ddtree::kPlaceThreads + thread; i < pieces;
       i += step) {
    store_piece(args, request, prefix, segment, i * ddtree::kPieceBytes - lead, length);
  }
}
