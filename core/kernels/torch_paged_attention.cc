#include "core/kernels/torch_paged_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace quartet {
namespace {

// Bounds of one tile: scores, and gathered slots.
constexpr int64_t kMostScores = int64_t{1} << 25;
constexpr int64_t kMostSlots = int64_t{1} << 14;

int64_t SlotOf(int64_t block_size, const AttentionChunk& chunk, int64_t position) {
  return chunk.blocks[position / block_size] * block_size + position % block_size;
}

at::Tensor OnDevice(std::vector<int64_t>& values, at::Device device) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kLong)
      .to(device, at::kLong, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

std::vector<int64_t> SlotsOf(int64_t block_size, const std::vector<AttentionChunk>& chunks) {
  std::vector<int64_t> slots;
  for (const AttentionChunk& chunk : chunks) {
    for (int64_t i = 0; i < chunk.count; ++i) slots.push_back(SlotOf(block_size, chunk, chunk.first + i));
  }
  return slots;
}

void WriteToSlots(const at::Tensor& slots_n, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                  const at::Tensor& keys_NKd, const at::Tensor& values_NKd) {
  const int64_t n = slots_n.numel();
  keys_NKd.index_copy_(0, slots_n, k_TKd.slice(0, 0, n));
  values_NKd.index_copy_(0, slots_n, v_TKd.slice(0, 0, n));
}

TorchPagedAttention::TorchPagedAttention(int64_t block_size, const std::vector<AttentionChunk>& chunks, int64_t heads,
                                         at::Device device)
    : device_(device) {
  struct Single {
    int64_t row;
    const AttentionChunk* chunk;
  };
  std::vector<Single> singles;  // chunks of one token: those that decode
  int64_t row = 0;
  for (const AttentionChunk& chunk : chunks) {
    if (chunk.count == 1) {
      singles.push_back({row++, &chunk});
      continue;
    }
    const int64_t end = chunk.first + chunk.count;
    std::vector<int64_t> slots;
    for (int64_t position = 0; position < end; ++position) slots.push_back(SlotOf(block_size, chunk, position));
    const at::Tensor slots_1L = OnDevice(slots, device).unsqueeze(0);
    const int64_t step = std::max<int64_t>(1, kMostScores / (heads * end));
    for (int64_t position = chunk.first; position < end;) {
      const int64_t count = std::min(step, end - position);
      std::vector<int64_t> rows(count), last_positions(count);
      std::iota(rows.begin(), rows.end(), row);
      std::iota(last_positions.begin(), last_positions.end(), position);
      row += count;
      position += count;
      AddTile(rows, last_positions, slots_1L, position);
    }
  }

  // Those of similar length together.
  std::stable_sort(singles.begin(), singles.end(),
                   [](const Single& a, const Single& b) { return a.chunk->first > b.chunk->first; });
  for (size_t begin = 0; begin < singles.size();) {
    const int64_t L = singles[begin].chunk->first + 1;
    const int64_t most = std::max<int64_t>(1, std::min(kMostSlots / L, kMostScores / (heads * L)));
    const size_t end = std::min(singles.size(), begin + static_cast<size_t>(most));
    std::vector<int64_t> rows, last_positions, slots;
    for (size_t i = begin; i < end; ++i) {
      const AttentionChunk& chunk = *singles[i].chunk;
      rows.push_back(singles[i].row);
      last_positions.push_back(chunk.first);
      for (int64_t position = 0; position < L; ++position) {
        slots.push_back(position <= chunk.first ? SlotOf(block_size, chunk, position) : 0);
      }
    }
    AddTile(rows, last_positions, OnDevice(slots, device).view({static_cast<int64_t>(end - begin), L}), L);
    begin = end;
  }
}

void TorchPagedAttention::AddTile(const std::vector<int64_t>& rows, const std::vector<int64_t>& last_positions,
                                  const at::Tensor& slots_BL, int64_t L) {
  std::vector<int64_t> row_values = rows, last_values = last_positions;
  Tile tile;
  tile.B = slots_BL.size(0);
  tile.Q = static_cast<int64_t>(rows.size()) / tile.B;
  tile.L = L;
  tile.rows = OnDevice(row_values, device_);
  tile.slots_BL = slots_BL.slice(1, 0, L);
  const at::Tensor last_BQ1 = OnDevice(last_values, device_).view({tile.B, tile.Q, 1});
  tile.hidden_BQL = at::arange(L, at::TensorOptions(at::kLong).device(device_)) > last_BQ1;
  tiles_.push_back(std::move(tile));
}

at::Tensor TorchPagedAttention::Attend(const at::Tensor& q_THd, const at::Tensor& keys_NKd,
                                       const at::Tensor& values_NKd) const {
  const int64_t H = q_THd.size(1), K = keys_NKd.size(1), d = q_THd.size(2), G = H / K;
  at::Tensor out_THd = at::zeros(q_THd.sizes(), q_THd.options());
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (const Tile& tile : tiles_) {
    const int64_t B = tile.B, Q = tile.Q, L = tile.L;
    const auto gather = [&](const at::Tensor& cache_NKd) {  // [B, K, L, d]
      return cache_NKd.index_select(0, tile.slots_BL.reshape({-1})).to(at::kFloat).view({B, L, K, d}).transpose(1, 2);
    };
    const at::Tensor q = q_THd.index_select(0, tile.rows)
                             .to(at::kFloat)
                             .view({B, Q, K, G, d})
                             .permute({0, 2, 3, 1, 4})
                             .reshape({B, K, G * Q, d});
    at::Tensor scores = at::matmul(q, gather(keys_NKd).transpose(2, 3)).mul_(scale).view({B, K, G, Q, L});
    scores.masked_fill_(tile.hidden_BQL.view({B, 1, 1, Q, L}), -std::numeric_limits<double>::infinity());
    const at::Tensor weights = at::softmax(scores, -1).view({B, K, G * Q, L});
    const at::Tensor seen = at::matmul(weights, gather(values_NKd)).view({B, K, G, Q, d}).permute({0, 3, 1, 2, 4});
    out_THd.index_copy_(0, tile.rows, seen.reshape({B * Q, H, d}).to(q_THd.scalar_type()));
  }
  return out_THd;
}

}  // namespace quartet
