// ddtree::compact_kv and ddtree::gather_path: checks, the CPU's copies, the kernels' launches.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "checks.h"
#include "compact_core.h"
#include "launch.h"
#include "ops.h"

namespace ddtree {
namespace {

constexpr const char* kCompact = "compact_kv";
constexpr const char* kGather = "gather_path";
constexpr i64 kMaxGridY = 65535;

i64 row_numel(const at::Tensor& buffer) {
  i64 numel = 1;
  for (i64 dim = 1; dim < buffer.dim(); ++dim) numel *= buffer.size(dim);
  return numel;
}

i64 row_bytes(const at::Tensor& buffer) {
  return row_numel(buffer) * static_cast<i64>(buffer.element_size());
}

// Bytes from a row to the next; a lone row has none to reach.
i64 row_stride(const at::Tensor& buffer) {
  return buffer.size(0) > 1 ? buffer.stride(0) * static_cast<i64>(buffer.element_size())
                            : row_bytes(buffer);
}

bool rows_are_contiguous(const at::Tensor& buffer) {
  i64 expected = 1;
  for (i64 dim = buffer.dim() - 1; dim > 0; --dim) {
    if (buffer.size(dim) != 1 && buffer.stride(dim) != expected) return false;
    expected *= buffer.size(dim);
  }
  return buffer.size(0) <= 1 || buffer.stride(0) >= expected;
}

void check_buffer(const at::Tensor& buffer, std::size_t index, c10::Device device) {
  TORCH_CHECK(buffer.device() == device, "ddtree::compact_kv: buffers[", index, "] must be on ",
              device, " like slots, got ", buffer.device());
  TORCH_CHECK(buffer.dim() >= 1, "ddtree::compact_kv: buffers[", index,
              "] must have shape [slots, ...], got []");
  const i64 bytes = row_bytes(buffer);
  TORCH_CHECK(bytes <= kMaxInt, "ddtree::compact_kv: a row of buffers[", index,
              "] must be at most ", kMaxInt, " bytes, got ", bytes);
  TORCH_CHECK(bytes == 0 || rows_are_contiguous(buffer), "ddtree::compact_kv: buffers[", index,
              "] must have contiguous rows that do not overlap, got strides ", buffer.strides(),
              " for shape ", buffer.sizes());
}

void check_compact(at::TensorList buffers, const at::Tensor& slots, const at::Tensor& path,
                   const at::Tensor& accepted) {
  check_dtype(kCompact, {"slots", slots}, at::kLong);
  check_dtype(kCompact, {"path", path}, at::kLong);
  check_dtype(kCompact, {"accepted", accepted}, at::kLong);
  check_dim(kCompact, {"slots", slots}, 2, "[batch, width]");
  check_dim(kCompact, {"path", path}, 2, "[batch, columns]");
  check_device(kCompact, {{"slots", slots}, {"path", path}, {"accepted", accepted}});
  check_range(kCompact, "batch (dimension 0 of slots)", slots.size(0), 0, kMaxGridY);
  check_range(kCompact, "width (dimension 1 of slots)", slots.size(1), 1, kMaxInt);
  check_range(kCompact, "columns (dimension 1 of path)", path.size(1), 1, slots.size(1));
  check_sizes(kCompact, {"path", path}, {slots.size(0), path.size(1)});
  check_sizes(kCompact, {"accepted", accepted}, {slots.size(0)});
  for (std::size_t i = 0; i < buffers.size(); ++i) check_buffer(buffers[i], i, slots.device());
}

// Index of the buffer that has rows to move and the fewest of them; the list's size if none has.
std::size_t smallest(at::TensorList buffers) {
  std::size_t found = buffers.size();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (row_bytes(buffers[i]) == 0) continue;
    if (found == buffers.size() || buffers[i].size(0) < buffers[found].size(0)) found = i;
  }
  return found;
}

void check_slot(const CompactArgs& args, i64 request, i64 node, std::size_t smallest) {
  const i64 slot = args.slots[request * args.slots_stride[0] + node * args.slots_stride[1]];
  TORCH_CHECK_VALUE(slot >= 0 && slot < args.rows, "ddtree::compact_kv: slots[", request, ", ",
                    node, "] = ", slot, " must be 0..", args.rows - 1, ", the rows of buffers[",
                    smallest, "]");
}

// Everything that the kernel cannot report, before the first byte is moved.
void check_values(const CompactArgs& args, i64 batch, std::size_t smallest) {
  for (i64 request = 0; request < batch; ++request) {
    const i64 accepted = args.accepted[request * args.accepted_stride];
    TORCH_CHECK_VALUE(accepted >= 0 && accepted < args.columns, "ddtree::compact_kv: accepted[",
                      request, "] = ", accepted, " must be 0..", args.columns - 1);
    i64 last = -1;
    for (i64 step = 0; step <= accepted; ++step) {
      const i64 node = args.path[request * args.path_stride[0] + step * args.path_stride[1]];
      TORCH_CHECK_VALUE(node > last && node < args.width, "ddtree::compact_kv: path[", request,
                        ", ", step, "] = ", node, " must be ", last + 1, "..", args.width - 1,
                        ": a path ascends");
      TORCH_CHECK_VALUE(step > 0 || node == 0, "ddtree::compact_kv: path[", request,
                        ", 0] = ", node, " must be 0, the root");
      if (node > step) {
        check_slot(args, request, node, smallest);
        check_slot(args, request, step, smallest);
      }
      last = node;
    }
  }
}

void compact_on_cpu(const CompactArgs& args, const MovedBuffer& buffer, i64 batch) {
  for (i64 request = 0; request < batch; ++request) {
    const i64* slots = args.slots + request * args.slots_stride[0];
    const i64* path = args.path + request * args.path_stride[0];
    const i64 accepted = args.accepted[request * args.accepted_stride];
    for (i64 step = 1; step <= accepted; ++step) {
      const i64 source = slots[path[step * args.path_stride[1]] * args.slots_stride[1]];
      const i64 target = slots[step * args.slots_stride[1]];
      if (source == target) continue;
      std::memcpy(buffer.rows + target * buffer.stride, buffer.rows + source * buffer.stride,
                  static_cast<std::size_t>(buffer.row_bytes));
    }
  }
}

// Moves the rows of the first `count` buffers of `args`; on a GPU in one launch.
void move_rows(CompactArgs& args, int count, i64 batch, c10::Device device) {
  if (device.is_cpu()) {
    for (int i = 0; i < count; ++i) compact_on_cpu(args, args.buffers[i], batch);
    return;
  }
  shape_compact(args, count);
  const LaunchShape shape{static_cast<unsigned>(count * args.tiles), static_cast<unsigned>(batch),
                          static_cast<unsigned>(args.threads), 0};
  launch_kernel(kCompact, "ddtree_compact_kv", device, shape, &args);
}

}  // namespace

void compact_kv(at::TensorList buffers, const at::Tensor& slots, const at::Tensor& path,
                const at::Tensor& accepted) {
  check_compact(buffers, slots, path, accepted);
  const i64 batch = slots.size(0);
  const std::size_t least = smallest(buffers);

  CompactArgs args{};
  args.slots = slots.const_data_ptr<std::int64_t>();
  args.path = path.const_data_ptr<std::int64_t>();
  args.accepted = accepted.const_data_ptr<std::int64_t>();
  for (int dim = 0; dim < 2; ++dim) {
    args.slots_stride[dim] = slots.stride(dim);
    args.path_stride[dim] = path.stride(dim);
  }
  args.accepted_stride = accepted.stride(0);
  args.rows = least < buffers.size() ? buffers[least].size(0) : std::numeric_limits<i64>::max();
  args.width = static_cast<int>(slots.size(1));
  args.columns = static_cast<int>(path.size(1));

  if (slots.is_cpu()) check_values(args, batch, least);
  if (batch == 0 || args.columns == 1) return;
  int count = 0;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.numel() == 0) continue;
    args.buffers[count++] = moved_buffer(buffer.mutable_data_ptr(), row_stride(buffer),
                                         static_cast<int>(row_bytes(buffer)));
    if (count < kMaxBuffers) continue;
    move_rows(args, count, batch, slots.device());
    count = 0;
  }
  if (count > 0) move_rows(args, count, batch, slots.device());
}

namespace {

void check_gather(const at::Tensor& rows, const at::Tensor& path) {
  check_dim(kGather, {"rows", rows}, 2, "[batch * width, features]");
  check_dtype(kGather, {"path", path}, at::kLong);
  check_dim(kGather, {"path", path}, 2, "[batch, columns]");
  check_device(kGather, {{"rows", rows}, {"path", path}});
  TORCH_CHECK(rows.size(1) <= 1 || rows.stride(1) == 1,
              "ddtree::gather_path: rows must be contiguous in the last dimension, got strides ",
              rows.strides(), " for shape ", rows.sizes());
  const i64 batch = path.size(0);
  const bool fits = batch == 0 ? rows.size(0) == 0
                               : rows.size(0) >= batch && rows.size(0) % batch == 0;
  TORCH_CHECK(fits, "ddtree::gather_path: dimension 0 of rows must be a multiple of ", batch,
              ", the batch of path, at least one row each, got ", rows.size(0));
  check_range(kGather, "dimension 0 of rows", rows.size(0), 0, kMaxInt);
  check_range(kGather, "columns (dimension 1 of path)", path.size(1), 0, kMaxInt);
}

void gather_on_cpu(const GatherArgs& args, i64 batch) {
  for (i64 request = 0; request < batch; ++request) {
    for (i64 step = 0; step < args.columns; ++step) {
      const i64 node = args.path[request * args.path_stride[0] + step * args.path_stride[1]];
      TORCH_CHECK_VALUE(node >= 0 && node < args.width, "ddtree::gather_path: path[", request,
                        ", ", step, "] = ", node, " must be 0..", args.width - 1);
      if (args.row_bytes == 0) continue;
      std::memcpy(args.gathered + (request * args.columns + step) * args.row_bytes,
                  args.rows + (request * args.width + node) * args.stride,
                  static_cast<std::size_t>(args.row_bytes));
    }
  }
}

}  // namespace

at::Tensor gather_path(const at::Tensor& rows, const at::Tensor& path) {
  check_gather(rows, path);
  const i64 batch = path.size(0);
  const i64 columns = path.size(1);
  const auto item = static_cast<i64>(rows.element_size());
  at::Tensor gathered = at::empty({batch * columns, rows.size(1)}, rows.options());

  GatherArgs args{};
  args.rows = static_cast<const unsigned char*>(rows.const_data_ptr());
  args.stride = rows.stride(0) * item;
  args.gathered = static_cast<unsigned char*>(gathered.mutable_data_ptr());
  args.path = path.const_data_ptr<std::int64_t>();
  for (int dim = 0; dim < 2; ++dim) args.path_stride[dim] = path.stride(dim);
  args.row_bytes = rows.size(1) * item;
  args.width = batch > 0 ? static_cast<int>(rows.size(0) / batch) : 0;
  args.columns = static_cast<int>(columns);
  if (rows.is_cpu()) {
    gather_on_cpu(args, batch);
  } else if (gathered.numel() > 0) {
    shape_gather(args);
    const i64 blocks = batch * columns * args.tiles;
    check_range(kGather, "blocks (batch * columns * tiles of a row)", blocks, 0, kMaxInt);
    launch_kernel(kGather, "ddtree_gather_path", rows.device(),
                  {static_cast<unsigned>(blocks), 1, kGatherThreads, 0}, &args);
  }
  return gathered;
}

}  // namespace ddtree
