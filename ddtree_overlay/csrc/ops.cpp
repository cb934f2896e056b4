// Schemas, stated here and nowhere else, and registration of the ops. What the arguments and
// outputs mean: ddtree_overlay/ops/__init__.py.
#include "ops.h"

#include <torch/library.h>

namespace {

const auto kCompliant = at::Tag::pt2_compliant_tag;

void register_for_device(torch::Library& m) {
  m.impl("rank_tokens", &ddtree::rank_tokens);
  m.impl("rank_shard", &ddtree::rank_shard);
  m.impl("merge_shards", &ddtree::merge_shards);
  m.impl("build_tree", &ddtree::build_tree);
  m.impl("build_tree_out", &ddtree::build_tree_out);
  m.impl("place_tree", &ddtree::place_tree);
  m.impl("walk_tree", &ddtree::walk_tree);
  m.impl("walk_greedy", &ddtree::walk_greedy);
  m.impl("count_round", &ddtree::count_round);
  m.impl("compact_kv", &ddtree::compact_kv);
  m.impl("gather_path", &ddtree::gather_path);
}

}  // namespace

TORCH_LIBRARY(ddtree, m) {
  m.def("rank_tokens(Tensor logits, int k, int id_offset=0) -> (Tensor logprobs, Tensor token_ids)",
        {kCompliant});
  m.def("rank_shard(Tensor logits, int k, int id_offset=0) -> Tensor", {kCompliant});
  m.def("merge_shards(Tensor candidates, int k) -> (Tensor logprobs, Tensor token_ids)",
        {kCompliant});
  m.def(
      "build_tree(Tensor logprobs, Tensor token_ids, int budget, Tensor? budgets=None, "
      "Tensor? roots=None) -> (Tensor tokens, Tensor parents, Tensor depths, Tensor first_child, "
      "Tensor next_sibling, Tensor ancestors, Tensor counts, Tensor scores, Tensor exact)",
      {kCompliant});
  m.def(
      "build_tree_out(Tensor logprobs, Tensor token_ids, Tensor? budgets, Tensor? roots, "
      "Tensor(a!) tokens, Tensor(b!) parents, Tensor(c!) depths, Tensor(d!) first_child, "
      "Tensor(e!) next_sibling, Tensor(f!) ancestors, Tensor(g!) counts, Tensor(h!) scores, "
      "Tensor(i!) exact) -> ()",
      {kCompliant});
  m.def(
      "place_tree(Tensor ancestors, Tensor depths, Tensor prefix_lens, Tensor(a!) mask, "
      "Tensor(b!) positions) -> ()",
      {kCompliant});
  m.def(
      "walk_tree(Tensor tokens, Tensor parents, Tensor target_ids, int columns) -> "
      "(Tensor path, Tensor accepted, Tensor emitted, Tensor bonus)",
      {kCompliant});
  m.def(
      "walk_greedy(Tensor tokens, Tensor parents, Tensor logits, int columns) -> "
      "(Tensor path, Tensor accepted, Tensor emitted, Tensor bonus)",
      {kCompliant});
  m.def(
      "count_round(Tensor parents, Tensor first_child, Tensor counts, Tensor exact, Tensor path, "
      "Tensor accepted, Tensor(a!) sums) -> ()",
      {kCompliant});
  m.def(
      "compact_kv(Tensor(a!)[] buffers, Tensor slots, Tensor path, Tensor accepted) -> ()",
      {kCompliant});
  m.def("gather_path(Tensor rows, Tensor path) -> Tensor", {kCompliant});
  m.def("_use_kernels(int device, str[] files) -> ()");
  m.def("_load_kernels(int device) -> ()");
  m.impl("_use_kernels", [](std::int64_t device, std::vector<std::string> files) {
    ddtree::use_kernels(device, files);
  });
  m.impl("_load_kernels", &ddtree::load_kernels);
}

TORCH_LIBRARY_IMPL(ddtree, CPU, m) { register_for_device(m); }
TORCH_LIBRARY_IMPL(ddtree, CUDA, m) { register_for_device(m); }
