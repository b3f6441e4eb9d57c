#include "core/kernels/cpu/attention/cpu_paged_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "core/hardware/parallel.h"
#include "core/hardware/stealing_for.h"
#include "core/kernels/cpu/attention/attention_gradient.h"
#include "core/kernels/cpu/elements.h"

namespace quartet {
namespace {

// Short enough that the parts of one long sequence are spread evenly over threads.
constexpr int64_t kTokensPerTask = 32;
// Worth another thread.
constexpr int64_t kTokensPerWrite = 64;
constexpr int64_t kRowsPerDelta = 512;
// What is kept of so many tokens while they share keys stays in a core's second cache.
constexpr int64_t kMostTogether = 16;
// Are left, at least, for each thread when tokens are put together.
constexpr int64_t kTasksPerThread = 16;

// Blocks that two sequences have in common from their beginning on, as far as tokens `first` of both see all of them.
int64_t SharedBlocks(const AttentionChunk& a, const AttentionChunk& b, int64_t block_size) {
  const int64_t most = std::min(a.first, b.first) / block_size;
  return std::mismatch(a.blocks, a.blocks + most, b.blocks).first - a.blocks;
}

template <typename Element>
void Gradients(const std::vector<AttentionGradientTask>& tasks, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& out_gradient,
               const AttentionGradients& gradients, const at::Tensor& deltas, const at::Tensor& scratch) {
  const int64_t H = q.size(1), K = k.size(1), d = q.size(2), G = H / K;
  auto* of_rows = deltas.mutable_data_ptr<float>();
  at::parallel_for(0, deltas.numel(), kRowsPerDelta, [&](int64_t begin, int64_t end) {
    AttentionDeltas(Elements<Element>(out) + begin * d, Elements<Element>(out_gradient) + begin * d, d, end - begin, d,
                    of_rows + begin);
  });
  auto* memory = scratch.mutable_data_ptr<float>();
  at::parallel_for(0, static_cast<int64_t>(tasks.size()) * K, 1, [&](int64_t begin, int64_t end) {
    float* own = memory + at::get_thread_num() * scratch.size(1);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i % K, query = head * G * d, key = head * d;
      AttendGradient<Element>({.queries = Elements<Element>(q) + query,
                               .output_gradients = Elements<Element>(out_gradient) + query,
                               .query_gradients = MutableElements<Element>(gradients.q_THd) + query,
                               .query_stride = H * d,
                               .keys = Elements<Element>(k) + key,
                               .values = Elements<Element>(v) + key,
                               .key_gradients = MutableElements<Element>(gradients.k_TKd) + key,
                               .value_gradients = MutableElements<Element>(gradients.v_TKd) + key,
                               .key_stride = K * d,
                               .log_sums = log_sums.const_data_ptr<float>() + head * G,
                               .deltas = of_rows + head * G,
                               .number_stride = H,
                               .group = G,
                               .head_dim = d},
                              tasks[i / K], own);
    }
  });
}

}  // namespace

CpuPagedAttention::CpuPagedAttention(const PagedCacheLayout& layout, std::vector<AttentionChunk> chunks,
                                     std::vector<Write> writes)
    : layout_(layout), chunks_(std::move(chunks)), writes_(std::move(writes)) {
  rows_ = {0};
  for (const AttentionChunk& chunk : chunks_) rows_.push_back(rows_.back() + chunk.count);
  const int64_t K = layout.kv_heads, threads = at::get_num_threads();
  const auto most =
      std::clamp<int64_t>(static_cast<int64_t>(chunks_.size()) * K / (kTasksPerThread * threads), 1, kMostTogether);
  groups_ = Groups(static_cast<size_t>(most));
  for (const Group& group : groups_) {
    for (int64_t first = 0; first < chunks_[group.begin].count; first += kTokensPerTask) {
      for (int64_t head = 0; head < K; ++head) works_.push_back({group, first, head});
    }
  }
}

// Samples of one prompt are neighbours. `most` chunks a group.
std::vector<CpuPagedAttention::Group> CpuPagedAttention::Groups(size_t most) const {
  std::vector<Group> groups;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!groups.empty() && chunks_[i].count == 1 && chunks_[groups.back().begin].count == 1 &&
        i - groups.back().begin < most) {
      Group& last = groups.back();
      int64_t shared = SharedBlocks(chunks_[last.begin], chunks_[i], layout_.block_size);
      if (last.end - last.begin > 1) shared = std::min(shared, last.shared);
      // A beginning that all prompts have is not worth less evenly divided work.
      if (shared > 0 && 2 * shared >= chunks_[i].first / layout_.block_size) {
        last.end = i + 1;
        last.shared = shared;
        continue;
      }
    }
    groups.push_back({.begin = i, .end = i + 1, .shared = 0});
  }
  return groups;
}

template <typename Element>
void CpuPagedAttention::Attend(Element* cache, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& out, float* log_sums) const {
  const int64_t H = q.size(1), K = layout_.kv_heads, d = layout_.head_dim, S = layout_.block_size, G = H / K;
  const auto* queries = static_cast<const Element*>(q.const_data_ptr());
  const auto* new_keys = static_cast<const Element*>(k.const_data_ptr());
  const auto* new_values = static_cast<const Element*>(v.const_data_ptr());
  auto* outputs = static_cast<Element*>(out.mutable_data_ptr());
  std::fill_n(outputs + rows_.back() * H * d, (q.size(0) - rows_.back()) * H * d, Element{0});

  const auto write_to = [&](const Write& to, int64_t head) {
    const int64_t offset = (to.row * K + head) * d;
    Element* block = cache + to.block * layout_.block_numel();
    WriteToCache(layout_, new_keys + offset, new_values + offset, to.offset, block + head * layout_.head_numel());
  };
  const auto write = [&](size_t chunk, int64_t i, int64_t head) {  // the new key and value of its token i
    const int64_t position = chunks_[chunk].first + i;
    write_to({.row = rows_[chunk] + i, .block = chunks_[chunk].blocks[position / S], .offset = position % S}, head);
  };
  const auto task_of = [&](size_t chunk, int64_t first, int64_t head) {  // tokens from `first` on
    const int64_t offset = ((rows_[chunk] + first) * H + head * G) * d;
    return PagedAttentionTask<Element>{.queries = queries + offset,
                                       .outputs = outputs + offset,
                                       .token_stride = H * d,
                                       .log_sums = log_sums == nullptr ? nullptr : log_sums + offset / d,
                                       .log_sum_stride = H,
                                       .tokens = std::min(kTokensPerTask, chunks_[chunk].count - first),
                                       .group = G,
                                       .first_position = chunks_[chunk].first + first,
                                       .blocks = chunks_[chunk].blocks,
                                       .cache = cache,
                                       .kv_head = head};
  };

  at::parallel_for(0, static_cast<int64_t>(writes_.size()), kTokensPerWrite, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t head = 0; head < K; ++head) write_to(writes_[i], head);
    }
  });
  for (const Group& group : groups_) {
    const int64_t count = chunks_[group.begin].count;
    if (count == 1 || !writes_.empty()) continue;
    at::parallel_for(0, count, kTokensPerWrite, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t head = 0; head < K; ++head) write(group.begin, i, head);
      }
    });
  }
  StealingFor(static_cast<int64_t>(works_.size()), 1, [&](int64_t i) {
    const auto& [group, first, head] = works_[i];
    // A token that is alone in its chunk is written where it is read.
    for (size_t c = group.begin; c < group.end; ++c) {
      if (chunks_[c].count == 1 && writes_.empty()) write(c, 0, head);
    }
    if (group.end - group.begin == 1) {
      const PagedAttentionTask<Element> task = task_of(group.begin, first, head);
      if (static_cast<size_t>(i) + 1 == works_.size()) return PagedAttend(layout_, task);
      const Work& next = works_[i + 1];
      const PagedAttentionTask<Element> next_task = task_of(next.group.begin, next.first, next.head);
      return PagedAttend(layout_, task, &next_task);
    }
    std::vector<PagedAttentionTask<Element>> tasks;
    for (size_t c = group.begin; c < group.end; ++c) tasks.push_back(task_of(c, 0, head));
    PagedAttendTogether(layout_, tasks, group.shared);
  });
}

at::Tensor CpuPagedAttention::Attend(void* cache, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                                     const at::Tensor& v_TKd, at::Tensor* log_sums_TH) const {
  const at::Tensor q = q_THd.contiguous(), k = k_TKd.contiguous(), v = v_TKd.contiguous(), out = at::empty_like(q);
  if (log_sums_TH != nullptr) *log_sums_TH = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  if (q.is_meta()) return out;
  float* log_sums = log_sums_TH == nullptr ? nullptr : log_sums_TH->mutable_data_ptr<float>();
  if (q.scalar_type() == at::kFloat) {
    Attend(static_cast<float*>(cache), q, k, v, out, log_sums);
  } else {
    Attend(static_cast<uint16_t*>(cache), q, k, v, out, log_sums);
  }
  return out;
}

AttentionGradients CpuAttentionGradient(const SequenceRows& rows, const at::Tensor& q_THd, const at::Tensor& k_TKd,
                                        const at::Tensor& v_TKd, const at::Tensor& out_THd,
                                        const at::Tensor& log_sums_TH, const at::Tensor& out_gradient_THd) {
  const at::Tensor q = q_THd.contiguous(), k = k_TKd.contiguous(), v = v_TKd.contiguous();
  const at::Tensor out = out_THd.contiguous(), out_gradient = out_gradient_THd.contiguous();
  const AttentionGradients gradients = {
      .q_THd = at::empty_like(q), .k_TKd = at::empty_like(k), .v_TKd = at::empty_like(v)};
  const std::vector<AttentionGradientTask> tasks = AttentionGradientTasks(rows);
  int64_t most_own = 0;
  for (const AttentionGradientTask& task : tasks) most_own = std::max(most_own, task.own.count);
  const auto fp32 = q.options().dtype(at::kFloat);
  const at::Tensor deltas = at::empty({q.size(0), q.size(1)}, fp32);
  const at::Tensor scratch =
      at::empty({std::min<int64_t>(at::get_num_threads(), static_cast<int64_t>(tasks.size()) * k.size(1)),
                 AttentionGradientScratch(most_own, q.size(1) / k.size(1), q.size(2))},
                fp32);
  if (q.is_meta()) return gradients;
  if (q.scalar_type() == at::kFloat) {
    Gradients<float>(tasks, q, k, v, out, log_sums_TH, out_gradient, gradients, deltas, scratch);
  } else {
    Gradients<uint16_t>(tasks, q, k, v, out, log_sums_TH, out_gradient, gradients, deltas, scratch);
  }
  return gradients;
}

}  // namespace quartet
