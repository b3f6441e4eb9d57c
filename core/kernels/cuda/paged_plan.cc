#include "core/kernels/cuda/paged_plan.h"

#include <algorithm>

#include "core/base/division.h"

namespace quartet {
namespace {

// The keys that a part has about, where there are no more than kMostParts of them: of twice as many a batch of few
// sequences would wait for one block's loop, of half as many a large batch would compute merges for nothing.
constexpr int64_t kUsualPartKeys = 512;
constexpr int64_t kMostParts = 32;
// Items of all key/value heads, each a block of threads; like those above chosen by reasoning, without a GPU.
constexpr int64_t kReservedBlocks = 8192;

}  // namespace

bool TilesFit(int64_t head_dim, int64_t group) {
  return head_dim % 8 == 0 && head_dim <= kMostHeadDim && group <= kNarrowRows;
}

int64_t PartsOf(int64_t keys) {
  return std::clamp<int64_t>((keys + kUsualPartKeys / 2) / kUsualPartKeys, 1, kMostParts);
}

PagedPlan PlanPagedAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads,
                             int64_t kv_heads) {
  const int64_t group = heads / kv_heads;
  PagedPlan plan;
  std::vector<AttentionItem> narrow, wide;
  int64_t row = 0;
  for (const AttentionChunk& chunk : chunks) {
    const auto table = static_cast<int32_t>(plan.tables.size());
    plan.tables.insert(plan.tables.end(), chunk.blocks,
                       chunk.blocks + CeilDivide(chunk.first + chunk.count, block_size));
    const int64_t most = (chunk.count * group <= kNarrowRows ? kNarrowRows : kWideRows) / group;
    for (int64_t done = 0; done < chunk.count; done += most) {
      const int64_t tokens = std::min(most, chunk.count - done), position = chunk.first + done;
      AttentionItem item;
      item.row = static_cast<int32_t>(row + done);
      item.tokens = static_cast<int32_t>(tokens);
      item.position = static_cast<int32_t>(position);
      item.table = table;
      item.begin = 0;
      item.end = static_cast<int32_t>(position + tokens);
      item.part = -1;
      (tokens * group <= kNarrowRows ? narrow : wide).push_back(item);
    }
    row += chunk.count;
  }
  for (const AttentionItem& item : narrow) {
    plan.narrow_rows = std::max(plan.narrow_rows, item.tokens * static_cast<int32_t>(group));
    const int64_t parts = item.tokens == 1 ? PartsOf(item.end) : 1;
    if (parts <= 1) {
      plan.items.push_back(item);
      continue;
    }
    const int64_t keys = RoundUp(CeilDivide(item.end, parts), kPartKeys);
    AttentionMerge merge{item.row, item.tokens, plan.parts, 0};
    for (int64_t begin = 0; begin < item.end; begin += keys) {
      AttentionItem part = item;
      part.begin = static_cast<int32_t>(begin);
      part.end = static_cast<int32_t>(std::min<int64_t>(item.end, begin + keys));
      part.part = plan.parts++;
      plan.items.push_back(part);
      ++merge.parts;
    }
    plan.merges.push_back(merge);
  }
  plan.num_narrow = static_cast<int32_t>(plan.items.size());
  plan.items.insert(plan.items.end(), wide.begin(), wide.end());
  return plan;
}

DecodePlanSize ReservedDecodePlan(int64_t block_size, int64_t chunks, int64_t kv_heads, int64_t longest) {
  const int64_t parts = PartsOf(longest);
  DecodePlanSize size;
  size.items = std::min(chunks * parts, std::max(2 * chunks, kReservedBlocks / kv_heads));
  size.merges = parts > 1 ? chunks : 0;
  size.parts = parts > 1 ? size.items : 0;
  size.tables = chunks * CeilDivide(longest, block_size);
  return size;
}

void FillUp(const DecodePlanSize& size, PagedPlan* plan) {
  AttentionItem nothing = {};
  nothing.part = -1;
  plan->items.resize(static_cast<size_t>(size.items), nothing);
  plan->num_narrow = static_cast<int32_t>(size.items);
  plan->merges.resize(static_cast<size_t>(size.merges), AttentionMerge{});
  plan->parts = static_cast<int32_t>(size.parts);
}

}  // namespace quartet
