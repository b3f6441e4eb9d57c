#include "core/model/item_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "core/model/run_paged_kernel.h"

namespace quartet {
namespace {

// Enough work for the multiprocessors of the largest GPUs, twice over.
constexpr int64_t kWantedItems = 264;

template <typename Element>
at::Tensor OnDevice(std::vector<Element>& values, at::Device device) {
  const auto words = static_cast<int64_t>(values.size() * sizeof(Element) / sizeof(int32_t));
  return at::from_blob(values.data(), {words}, at::kInt).to(device, at::kInt, /*non_blocking=*/false, /*copy=*/true);
}

template <typename Element>
const Element* Elements(const at::Tensor& tensor) {
  return static_cast<const Element*>(tensor.const_data_ptr());
}

}  // namespace

ItemAttention::ItemAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads,
                             int64_t kv_heads, int64_t head_dim, at::Device device)
    : block_size_(block_size) {
  PagedPlan plan = PlanPagedAttention(block_size, chunks, heads, kv_heads, head_dim, kWantedItems);
  for (const AttentionChunk& chunk : chunks) tokens_ += chunk.count;
  num_items_ = static_cast<int32_t>(plan.items.size());
  num_narrow_ = plan.num_narrow;
  num_merges_ = static_cast<int32_t>(plan.merges.size());
  items_ = OnDevice(plan.items, device);
  merges_ = OnDevice(plan.merges, device);
  tables_ = OnDevice(plan.tables, device);
  const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(device);
  const int64_t rows = int64_t{plan.parts} * kv_heads * kNarrowRows;
  part_sums_ = at::empty({rows * head_dim}, fp32);
  part_scores_ = at::empty({rows * 2}, fp32);
}

at::Tensor ItemAttention::Attend(const at::Tensor& q_THd, const at::Tensor& keys_NKd,
                                 const at::Tensor& values_NKd) const {
  const at::Tensor q = q_THd.contiguous();
  at::Tensor out_THd = at::empty(q.sizes(), q.options());
  out_THd.slice(0, tokens_).zero_();
  if (num_items_ == 0 || q.is_meta()) return out_THd;
  TORCH_CHECK(keys_NKd.is_contiguous() && values_NKd.is_contiguous(), "a layer's slots lie end to end");
  PagedKernelArgs args;
  args.q = Elements<uint16_t>(q);
  args.out = static_cast<uint16_t*>(out_THd.mutable_data_ptr());
  args.keys = Elements<uint16_t>(keys_NKd);
  args.values = Elements<uint16_t>(values_NKd);
  args.items = reinterpret_cast<const AttentionItem*>(Elements<int32_t>(items_));
  args.num_items = num_items_;
  args.num_narrow = num_narrow_;
  args.merges = reinterpret_cast<const AttentionMerge*>(Elements<int32_t>(merges_));
  args.num_merges = num_merges_;
  args.tables = Elements<int32_t>(tables_);
  args.part_sums = static_cast<float*>(part_sums_.mutable_data_ptr());
  args.part_scores = static_cast<float*>(part_scores_.mutable_data_ptr());
  args.heads = static_cast<int32_t>(q.size(1));
  args.kv_heads = static_cast<int32_t>(keys_NKd.size(1));
  args.head_dim = static_cast<int32_t>(q.size(2));
  args.block_size = static_cast<int32_t>(block_size_);
  const char* error = RunPagedKernel(args, q.device());
  TORCH_CHECK(error == nullptr, "paged attention: ", error);
  return out_THd;
}

}  // namespace quartet
