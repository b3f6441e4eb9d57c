#include "rollout/engine/graphs/decode_graphs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/logging.h"
#include "core/base/time/loading.h"
#include "core/kernels/cuda/cuda_paged_attention.h"
#include "core/kernels/torch_paged_attention.h"
#include "core/memory/accounted_tensor.h"

namespace quartet {
namespace {

constexpr int64_t kMostSequences = 512;

template <typename Element>
constexpr int64_t kWords = sizeof(Element) / sizeof(int32_t);

}  // namespace

std::vector<int64_t> GraphBatchSizes(int64_t most) {
  most = std::min(most, kMostSequences);
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < most; size += size < 8 ? size : size < 256 ? 8 : 16) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

DecodeGraphs::Places::Places(int64_t B, const DecodePlanSize& plan)
    : ids(0),
      positions(ids + B * kWords<int64_t>),
      slots(positions + B * kWords<int64_t>),
      items(slots + B * kWords<int64_t>),
      merges(items + plan.items * kWords<AttentionItem>),
      tables(merges + plan.merges * kWords<AttentionMerge>),
      end(tables + plan.tables) {}

DecodeGraphs::DecodeGraphs(std::unique_ptr<GraphRecorder> recorder, const KvCache* cache,
                           const DecodeGraphOptions& options, Forward forward, Ledger* ledger)
    : cache_(cache),
      options_(options),
      spare_block_(static_cast<int32_t>(cache->blocks() - 1)),
      forward_(std::move(forward)),
      sizes_(GraphBatchSizes(options.max_num_seqs)),
      recorder_(std::move(recorder)),
      graphs_(sizes_.size()) {
  int64_t words = 0;
  for (const int64_t B : sizes_) words = std::max(words, Places(B, PlanSize(B)).end);
  const auto new_words = [&](MemoryTier tier) {
    return AccountedEmpty(ledger, MemoryCategory::kActivations, words, at::kInt, cache->device(), tier);
  };
  host_words_ = new_words(MemoryTier::kHost);
  words_ = new_words(MemoryTier::kDevice);
  for (size_t i = sizes_.size(); i-- > 0;) {
    graphs_[i] = RecordSize(sizes_[i]);
    if (!words_.is_meta()) ReportLoading("recording CUDA graphs", sizes_.size() - i, sizes_.size());
  }
  pool_ = LedgerEntry(ledger, MemoryCategory::kActivations, recorder_->pool_bytes());
  bytes_ = recorder_->pool_bytes() + words * static_cast<int64_t>(sizeof(int32_t));
}

DecodePlanSize DecodeGraphs::PlanSize(int64_t B) const {
  const PagedCacheLayout& layout = cache_->shape().layout;
  return ReservedDecodePlan(layout.block_size, B, layout.kv_heads, options_.max_model_len);
}

std::unique_ptr<RecordedForward> DecodeGraphs::RecordSize(int64_t B) {
  const auto [block_size, kv_heads, head_dim] = cache_->shape().layout;
  const DecodePlanSize size = PlanSize(B);
  const Places at(B, size);
  const auto longs = [&](int64_t place) { return words_.narrow(0, place, B * kWords<int64_t>).view(at::kLong); };
  const at::Tensor ids_B = longs(at.ids), positions_B = longs(at.positions), slots_B = longs(at.slots);
  DevicePlan plan;
  plan.tokens = B;
  plan.items = words_.narrow(0, at.items, at.merges - at.items);
  plan.merges = words_.narrow(0, at.merges, at.tables - at.merges);
  plan.tables = words_.narrow(0, at.tables, at.end - at.tables);
  plan.num_items = plan.num_narrow = static_cast<int32_t>(size.items);
  plan.narrow_rows = static_cast<int32_t>(options_.heads / kv_heads);
  plan.num_merges = static_cast<int32_t>(size.merges);
  plan.parts = size.parts;
  Write({}, B);  // rows that can be computed
  return recorder_->Record([=, this, block_size = block_size, head_dim = head_dim] {
    PagedAttention attention(cache_, slots_B, CudaPagedAttention(block_size, plan, options_.heads, head_dim));
    return forward_(ids_B, positions_B, attention);
  });
}

bool DecodeGraphs::Fit(const std::vector<ScheduledChunk>& chunks) const {
  const auto n = static_cast<int64_t>(chunks.size());
  if (n == 0 || n > sizes_.back()) return false;
  int64_t items = 0;
  for (const ScheduledChunk& chunk : chunks) {
    if (chunk.count != 1 || !chunk.last) return false;
    items += PartsOf(chunk.first + 1);
  }
  const int64_t B = *std::lower_bound(sizes_.begin(), sizes_.end(), n);
  return items + B - n <= PlanSize(B).items;
}

at::Tensor DecodeGraphs::Run(const std::vector<ScheduledChunk>& chunks) {
  QUARTET_CHECK(Fit(chunks)) << chunks.size() << " chunks";
  const auto n = static_cast<int64_t>(chunks.size());
  const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), n);
  Write(chunks, *size);
  return graphs_[size - sizes_.begin()]->Replay().narrow(0, 0, n);
}

// Returns when the device has it: the next step may write to the host's side.
void DecodeGraphs::Write(const std::vector<ScheduledChunk>& scheduled, int64_t B) {
  if (words_.is_meta()) return;
  const int64_t block_size = cache_->shape().layout.block_size, kv_heads = cache_->shape().layout.kv_heads;
  std::vector<AttentionChunk> chunks;
  for (const ScheduledChunk& chunk : scheduled) {
    chunks.push_back({.blocks = chunk.sequence->blocks.data(), .first = chunk.first, .count = 1});
  }
  // Rows of nobody see the one key that they write themselves.
  chunks.resize(static_cast<size_t>(B), {.blocks = &spare_block_, .first = 0, .count = 1});
  const DecodePlanSize size = PlanSize(B);
  PagedPlan plan = PlanPagedAttention(block_size, chunks, options_.heads, kv_heads);
  FillUp(size, &plan);

  const Places at(B, size);
  auto* const words = host_words_.mutable_data_ptr<int32_t>();
  const auto put = [words](int64_t place, const auto& values) {
    if (!values.empty()) std::memcpy(words + place, values.data(), values.size() * sizeof(values[0]));
  };
  std::vector<int64_t> ids(static_cast<size_t>(B), 0), positions(static_cast<size_t>(B), 0);
  for (size_t i = 0; i < scheduled.size(); ++i) {
    ids[i] = scheduled[i].sequence->ids[scheduled[i].first];
    positions[i] = scheduled[i].first;
  }
  put(at.ids, ids);
  put(at.positions, positions);
  put(at.slots, SlotsOf(block_size, chunks));
  put(at.items, plan.items);
  put(at.merges, plan.merges);
  put(at.tables, plan.tables);
  const int64_t used = at.tables + static_cast<int64_t>(plan.tables.size());
  QUARTET_CHECK(used <= at.end) << "a sequence is longer than max_model_len " << options_.max_model_len;
  words_.narrow(0, 0, used).copy_(host_words_.narrow(0, 0, used));
}

}  // namespace quartet
