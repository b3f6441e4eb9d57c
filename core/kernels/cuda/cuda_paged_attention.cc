#include "core/kernels/cuda/cuda_paged_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "core/kernels/cpu/elements.h"
#include "core/kernels/cuda/paged_kernel.h"
#include "core/kernels/cuda/present_stream.h"

namespace quartet {
namespace {

template <typename Element>
at::Tensor OnDevice(std::vector<Element>& values, at::Device device) {
  const auto words = static_cast<int64_t>(values.size() * sizeof(Element) / sizeof(int32_t));
  return at::from_blob(values.data(), {words}, at::kInt).to(device, at::kInt, /*non_blocking=*/false, /*copy=*/true);
}

DevicePlan Upload(PagedPlan plan, const std::vector<AttentionChunk>& chunks, at::Device device) {
  DevicePlan there;
  for (const AttentionChunk& chunk : chunks) there.tokens += chunk.count;
  there.items = OnDevice(plan.items, device);
  there.merges = OnDevice(plan.merges, device);
  there.tables = OnDevice(plan.tables, device);
  there.num_items = static_cast<int32_t>(plan.items.size());
  there.num_narrow = plan.num_narrow;
  there.narrow_rows = plan.narrow_rows;
  there.num_merges = static_cast<int32_t>(plan.merges.size());
  there.parts = plan.parts;
  return there;
}

}  // namespace

CudaPagedAttention::CudaPagedAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads,
                                       int64_t kv_heads, int64_t head_dim, at::Device device)
    : CudaPagedAttention(block_size, Upload(PlanPagedAttention(block_size, chunks, heads, kv_heads), chunks, device),
                         heads, head_dim) {}

CudaPagedAttention::CudaPagedAttention(int64_t block_size, DevicePlan plan, int64_t heads, int64_t head_dim)
    : block_size_(block_size), plan_(std::move(plan)) {
  const at::TensorOptions fp32 = plan_.items.options().dtype(at::kFloat);
  const int64_t rows = plan_.parts * heads;
  part_sums_ = at::empty({rows * head_dim}, fp32);
  part_scores_ = at::empty({rows * 2}, fp32);
}

at::Tensor CudaPagedAttention::Attend(const at::Tensor& q_THd, const at::Tensor& keys_NKd,
                                      const at::Tensor& values_NKd) const {
  const at::Tensor q = HasHeadsEndToEnd(q_THd) ? q_THd : q_THd.contiguous();
  at::Tensor out_THd = at::empty(q.sizes(), q.options());
  out_THd.slice(0, plan_.tokens).zero_();
  if (plan_.num_items == 0 || q.is_meta()) return out_THd;
  TORCH_CHECK(keys_NKd.is_contiguous() && values_NKd.is_contiguous(), "a layer's slots lie end to end");
  PagedKernelArgs args;
  args.q = Elements<uint16_t>(q);
  args.q_stride = q.stride(0);
  args.out = static_cast<uint16_t*>(out_THd.mutable_data_ptr());
  args.keys = Elements<uint16_t>(keys_NKd);
  args.values = Elements<uint16_t>(values_NKd);
  args.items = reinterpret_cast<const AttentionItem*>(Elements<int32_t>(plan_.items));
  args.num_items = plan_.num_items;
  args.num_narrow = plan_.num_narrow;
  args.narrow_rows = plan_.narrow_rows;
  args.merges = reinterpret_cast<const AttentionMerge*>(Elements<int32_t>(plan_.merges));
  args.num_merges = plan_.num_merges;
  args.tables = Elements<int32_t>(plan_.tables);
  args.part_sums = static_cast<float*>(part_sums_.mutable_data_ptr());
  args.part_scores = static_cast<float*>(part_scores_.mutable_data_ptr());
  args.heads = static_cast<int32_t>(q.size(1));
  args.kv_heads = static_cast<int32_t>(keys_NKd.size(1));
  args.head_dim = static_cast<int32_t>(q.size(2));
  args.block_size = static_cast<int32_t>(block_size_);
  if (q.is_cpu()) {
    TORCH_CHECK(compute_items_of_host != nullptr, "paged attention by items is for GPUs; use TorchPagedAttention");
    compute_items_of_host(args);
    return out_THd;
  }
  StartOn(q.device(), "paged attention", [&](void* stream) { return LaunchPagedKernel(args, stream); });
  return out_THd;
}

void StoreInSlots(const at::Tensor& slots_n, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                  const at::Tensor& keys_NKd, const at::Tensor& values_NKd) {
  const at::Tensor k = HasHeadsEndToEnd(k_TKd) ? k_TKd : k_TKd.contiguous();
  const at::Tensor v = HasHeadsEndToEnd(v_TKd) ? v_TKd : v_TKd.contiguous();
  NewKeys stored;
  stored.slots = Elements<int64_t>(slots_n);
  stored.keys = Elements<uint16_t>(k);
  stored.values = Elements<uint16_t>(v);
  stored.keys_stride = k.stride(0);
  stored.values_stride = v.stride(0);
  stored.key_slots = static_cast<uint16_t*>(keys_NKd.mutable_data_ptr());
  stored.value_slots = static_cast<uint16_t*>(values_NKd.mutable_data_ptr());
  stored.tokens = slots_n.numel();
  stored.row = k.size(1) * k.size(2);
  StartOn(k.device(), "the key/value cache", [&](void* stream) { return LaunchStoreInSlots(stored, stream); });
}

}  // namespace quartet
