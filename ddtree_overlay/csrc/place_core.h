// The tree as an attention mask and positions: what ddtree::place_tree's CPU op and kernel share.
//
// The mask is flat (SGLang's FULL_MASK, see ddtree_overlay/tree/mask.py): for each request `width`
// rows, the nodes, of prefix + width columns, request after request. Where a request starts follows
// from the prefix lengths of those before it.
#pragma once

#include "device.h"

namespace ddtree {

constexpr int kPlaceThreads = 256;
constexpr int kPieceBytes = 16;       // of the mask, one store
constexpr int kPiecesPerThread = 4;   // a block's set-up costs about as much as storing them
constexpr int kMaxPlaceBatch = 4096;  // each warp adds up the prefix lengths of the batch

// Strides count elements. `mask` may start at any address, `positions` is contiguous.
struct PlaceTreeArgs {
  const i64* ancestors;  // [batch, width, words]
  i64 ancestors_stride[3];
  const i64* depths;  // [batch, width]
  i64 depths_stride[2];
  const void* prefix_lens;  // [batch] int32 or int64
  i64 prefix_lens_stride;
  unsigned char* mask;  // [numel]
  i64* positions;       // [batch, width]
  i64 numel;
  int prefix_lens_bytes;
  int batch;
  int width;

  DDTREE_FN i64 prefix_len(int request) const {
    const i64 at = request * prefix_lens_stride;
    return prefix_lens_bytes == 4 ? static_cast<const int*>(prefix_lens)[at]
                                  : static_cast<const i64*>(prefix_lens)[at];
  }

  DDTREE_FN bool sees(int request, i64 row, i64 node) const {
    const i64 word = ancestors[request * ancestors_stride[0] + row * ancestors_stride[1] +
                               (node >> 6) * ancestors_stride[2]];
    return (word >> (node & 63) & 1) != 0;
  }

  DDTREE_FN i64 position(int request, int node, i64 prefix) const {
    return prefix + depths[request * depths_stride[0] + node * depths_stride[1]];
  }
};

// Blocks for each request, if all are equally long; a longer one takes more turns. One more row of
// blocks writes what is beyond the last request.
DDTREE_FN constexpr unsigned place_blocks(i64 numel, int batch) {
  const i64 requests = batch < 1 ? 1 : batch;
  const i64 each = static_cast<i64>(kPlaceThreads) * kPiecesPerThread * kPieceBytes * requests;
  const i64 blocks = (numel + each - 1) / each;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks);
}

}  // namespace ddtree
