// T tokens of one forward, D hidden, H query heads, K key/value heads, d head dimension, V vocabulary, N rows of
// logits.

#include "rollout/engine.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/comm/process_group.h"
#include "core/model/decoder.h"
#include "core/model/paged_attention.h"
#include "core/model/vocabulary_head.h"
#include "core/zero/accounted_tensor.h"
#include "core/zero/catch_exceptions.h"
#include "core/zero/sharded_model.h"
#include "rollout/sampler.h"
#include "rollout/scheduler.h"

namespace quartet {
namespace {

// Both halves of the cache of all layers. Zeroed by the operating system, which gives pages as they are first written.
class KvCache {
 public:
  KvCache(const PagedCacheLayout& layout, int64_t layers, int64_t blocks, int64_t element_bytes, Ledger* ledger)
      : layout_(layout),
        blocks_(blocks),
        element_bytes_(element_bytes),
        bytes_(layers * blocks * BlockBytes(layout, element_bytes)),
        entry_(ledger, MemoryCategory::kKvCache, bytes_),
        memory_(static_cast<char*>(std::calloc(bytes_, 1)), &std::free) {
    if (memory_ != nullptr) return;
    throw OutOfMemoryError(ledger->ExplainFailure(MemoryCategory::kKvCache, bytes_, MemoryTier::kDevice));
  }

  // Of one layer.
  static int64_t BlockBytes(const PagedCacheLayout& layout, int64_t element_bytes) {
    return (layout.key_block_numel() + layout.value_block_numel()) * element_bytes;
  }

  const PagedCacheLayout& layout() const { return layout_; }
  template <typename Element>
  Element* keys(int64_t layer) const {
    return reinterpret_cast<Element*>(memory_.get() + layer * blocks_ * BlockBytes(layout_, element_bytes_));
  }
  template <typename Element>
  Element* values(int64_t layer) const {
    return keys<Element>(layer) + blocks_ * layout_.key_block_numel();
  }

 private:
  PagedCacheLayout layout_;
  int64_t blocks_;
  int64_t element_bytes_;
  int64_t bytes_;
  LedgerEntry entry_;
  std::unique_ptr<char, decltype(&std::free)> memory_;
};

// Query tokens that one task of the attention works on; a multiple keeps long chunks parallel.
constexpr int64_t kTokensPerTask = 32;

// The attention of one step over the paged cache: writes the step's keys and values to their places first.
class PagedAttention : public Attention {
 public:
  PagedAttention(const KvCache* cache, const std::vector<ScheduledChunk>* chunks) : cache_(cache), chunks_(chunks) {}

  void set_layer(int64_t layer) { layer_ = layer; }

  at::Tensor Attend(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd) const override {
    return q_THd.scalar_type() == at::kFloat ? AttendAs<float>(q_THd, k_TKd, v_TKd)
                                             : AttendAs<uint16_t>(q_THd, k_TKd, v_TKd);
  }

 private:
  template <typename Element>
  at::Tensor AttendAs(const at::Tensor& q_any, const at::Tensor& k_any, const at::Tensor& v_any) const {
    const PagedCacheLayout& layout = cache_->layout();
    const at::Tensor q = q_any.contiguous();
    const at::Tensor k = k_any.contiguous();
    const at::Tensor v = v_any.contiguous();
    at::Tensor out = at::empty_like(q);
    const auto* queries = static_cast<const Element*>(q.const_data_ptr());
    const auto* new_keys = static_cast<const Element*>(k.const_data_ptr());
    const auto* new_values = static_cast<const Element*>(v.const_data_ptr());
    auto* outputs = static_cast<Element*>(out.mutable_data_ptr());
    Element* keys = cache_->keys<Element>(layer_);
    Element* values = cache_->values<Element>(layer_);

    const int64_t heads = q.size(1);
    const int64_t d = layout.head_dim;
    const int64_t group = heads / layout.kv_heads;
    struct Part {
      const ScheduledChunk* chunk;
      int64_t row;    // of the part's first token, in q
      int64_t first;  // token of the chunk
      int64_t count;
      int64_t kv_head;
    };
    std::vector<Part> parts;
    int64_t row = 0;
    for (const ScheduledChunk& chunk : *chunks_) {
      for (int64_t i = 0; i < chunk.count; ++i) {
        const int64_t position = chunk.first + i;
        const int64_t block = chunk.sequence->blocks[position / layout.block_size];
        WriteToCache<Element>(layout, new_keys + (row + i) * layout.kv_heads * d,
                              new_values + (row + i) * layout.kv_heads * d, position % layout.block_size,
                              keys + block * layout.key_block_numel(), values + block * layout.value_block_numel());
      }
      for (int64_t first = 0; first < chunk.count; first += kTokensPerTask) {
        const int64_t count = std::min(kTokensPerTask, chunk.count - first);
        for (int64_t head = 0; head < layout.kv_heads; ++head) {
          parts.push_back({&chunk, row + first, first, count, head});
        }
      }
      row += chunk.count;
    }
    at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Part& part = parts[i];
        PagedAttentionTask<Element> task;
        const int64_t start = (part.row * heads + part.kv_head * group) * d;
        task.queries = queries + start;
        task.outputs = outputs + start;
        task.token_stride = heads * d;
        task.tokens = part.count;
        task.group = group;
        task.first_position = part.chunk->first + part.first;
        task.blocks = part.chunk->sequence->blocks.data();
        task.key_cache = keys;
        task.value_cache = values;
        task.kv_head = part.kv_head;
        PagedAttend(layout, task);
      }
    });
    return out;
  }

  const KvCache* cache_;
  const std::vector<ScheduledChunk>* chunks_;
  int64_t layer_ = 0;
};

// Accounted by the model, as parameters.
class Staging : public WeightStaging {
 public:
  Staging(const ShardedModel& model, const std::vector<int32_t>& first_tensor) : buffers_(model.NewResidentBuffers()) {
    for (const ResidentPiece& piece : model.pieces()) {
      const at::Tensor& buffer = buffers_[piece.group];
      char* data = static_cast<char*>(buffer.mutable_data_ptr()) + piece.shard_offset * buffer.element_size();
      ranges_.push_back({first_tensor[piece.group] + piece.parameter, piece.begin, piece.count, data});
    }
  }
  const std::vector<StagedRange>& ranges() const override { return ranges_; }
  std::vector<at::Tensor> TakeBuffers() { return std::move(buffers_); }

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<StagedRange> ranges_;
};

class Engine : public RolloutEngine {
 public:
  Engine(const RolloutEngineOptions& options, Ledger* ledger, std::unique_ptr<ProcessGroup> group,
         std::unique_ptr<ShardedModel> model)
      : options_(options),
        ledger_(ledger),
        group_(std::move(group)),
        model_(std::move(model)),
        lockstep_(options.zero_stage == 3 && group_->size() > 1) {
    for (const ParameterGroup& parameters : model_->layout().groups) {
      first_tensor_.push_back(static_cast<int32_t>(tensors_.size()));
      tensors_.insert(tensors_.end(), parameters.parameters.begin(), parameters.parameters.end());
    }
    samplers_.resize(at::get_num_threads());
  }

  absl::Status MakeCache() {
    const ModelConfig& config = model_->config();
    const PagedCacheLayout layout{options_.block_size, config.num_key_value_heads, config.head_dim};
    const int64_t element_bytes = model_->options().compute_dtype == at::kFloat ? 4 : 2;
    const int64_t block_bytes = config.num_hidden_layers * KvCache::BlockBytes(layout, element_bytes);
    const int64_t blocks_a_sequence = (options_.max_model_len + options_.block_size - 1) / options_.block_size;
    const int64_t blocks = std::min(options_.kv_cache_bytes / block_bytes, options_.max_num_seqs * blocks_a_sequence);
    if (blocks < 1) {
      return absl::InvalidArgumentError(absl::StrCat("rollout.kv_cache_bytes is ", options_.kv_cache_bytes,
                                                     "; one block of ", options_.block_size, " tokens takes ",
                                                     block_bytes, " bytes"));
    }
    cache_.emplace(layout, config.num_hidden_layers, blocks, element_bytes, ledger_);
    SchedulerOptions scheduler;
    scheduler.num_blocks = blocks;
    scheduler.block_size = options_.block_size;
    scheduler.max_num_seqs = options_.max_num_seqs;
    scheduler.max_num_batched_tokens = options_.max_num_batched_tokens;
    scheduler.max_model_len = options_.max_model_len;
    scheduler_.emplace(scheduler);
    QUARTET_LOG(kInfo) << "KV cache: " << blocks << " blocks of " << options_.block_size << " tokens, "
                       << blocks * block_bytes / (1 << 20) << " MiB";
    return absl::OkStatus();
  }

  absl::Status Check(const SamplingParams& sampling) const override {
    if (!(sampling.temperature() >= 0) || !std::isfinite(sampling.temperature())) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.temperature is ", sampling.temperature(), "; allowed: finite and at least 0"));
    }
    if (sampling.top_k() < -1) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.top_k is ", sampling.top_k(), "; allowed: -1 or 0 (off), or at least 1"));
    }
    if (!(sampling.top_p() > 0 && sampling.top_p() <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.top_p is ", sampling.top_p(), "; allowed: above 0 and at most 1 (off)"));
    }
    if (sampling.max_new_tokens() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.max_new_tokens is ", sampling.max_new_tokens(), "; allowed: at least 1"));
    }
    if (sampling.n_samples() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.n_samples is ", sampling.n_samples(), "; allowed: at least 1"));
    }
    for (const int32_t id : sampling.stop_token_ids()) {
      if (id < 0 || id >= vocab_size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("sampling.stop_token_ids holds ", id, "; allowed: 0 to ", vocab_size() - 1));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Check(const SamplingParams& sampling, const GenerationTask& task) const override {
    const absl::Status fits = scheduler_->CheckFits(static_cast<int64_t>(task.ids.size()), sampling.max_new_tokens());
    if (!fits.ok()) {
      return absl::Status(fits.code(), absl::StrCat("prompt ", task.prompt_index, ": ", fits.message()));
    }
    for (size_t i = 0; i < task.ids.size(); ++i) {
      if (task.ids[i] < 0 || task.ids[i] >= vocab_size()) {
        return absl::InvalidArgumentError(absl::StrCat("prompt ", task.prompt_index, ": ids[", i, "] is ", task.ids[i],
                                                       "; allowed: 0 to ", vocab_size() - 1));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Generate(const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
                        const std::function<void(GeneratedSequence)>& done) override {
    QUARTET_RETURN_IF_ERROR(Check(sampling));
    for (const GenerationTask& task : tasks) QUARTET_RETURN_IF_ERROR(Check(sampling, task));
    absl::Status status;
    try {
      status = Run(sampling, tasks, done);
    } catch (const std::exception& error) {
      status = StatusOf(error, "generation", *ledger_);
    }
    scheduler_->Clear();
    return status;
  }

  const std::vector<ParameterSpec>& tensors() const override { return tensors_; }
  Dtype resident_dtype() const override {
    return model_->options().compute_dtype == at::kFloat ? Dtype::kF32 : Dtype::kBF16;
  }

  std::unique_ptr<WeightStaging> NewStaging() override { return std::make_unique<Staging>(*model_, first_tensor_); }

  void Commit(std::unique_ptr<WeightStaging> staging, uint64_t version) override {
    model_->SwapResident(static_cast<Staging&>(*staging).TakeBuffers());
    version_ = version;
  }

  uint64_t version() const override { return version_; }
  int64_t vocab_size() const override { return model_->config().vocab_size; }
  const std::vector<int64_t>& eos_token_ids() const override { return model_->config().eos_token_ids; }

  RolloutEngineStats stats() const override { return {steps_, preemptions_, generated_tokens_}; }

 private:
  absl::Status Run(const SamplingParams& sampling, const std::vector<GenerationTask>& tasks,
                   const std::function<void(GeneratedSequence)>& done) {
    const at::NoGradGuard no_grad;
    absl::flat_hash_set<int32_t> stops(options_.stop_token_ids.begin(), options_.stop_token_ids.end());
    stops.insert(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
    if (!sampling.ignore_eos()) stops.insert(eos_token_ids().begin(), eos_token_ids().end());
    for (const GenerationTask& task : tasks) {
      scheduler_->Add(task.prompt_index, task.ids, task.first_sample, task.samples);
    }
    for (;;) {
      const std::vector<ScheduledChunk> chunks = scheduler_->Schedule();
      preemptions_ = scheduler_->preemptions();
      if (!AnyRankHasWork(!chunks.empty())) break;
      const at::Tensor logits_NV = Forward(chunks);
      for (const ScheduledChunk& chunk : chunks) scheduler_->Computed(chunk);
      QUARTET_RETURN_IF_ERROR(Extend(sampling, stops, chunks, logits_NV, done));
      ++steps_;
    }
    return absl::OkStatus();
  }

  bool AnyRankHasWork(bool here) {
    if (!lockstep_) return here;
    const at::Tensor work = at::full({1}, here ? 1 : 0, at::kLong);
    group_->AllReduceMax(work)->Wait();
    return work.item<int64_t>() != 0;
  }

  // Logits, fp32 [N, V], after the last token of each chunk that ends its sequence; undefined where there is none. At
  // stage 3 a rank without chunks takes part in every gather.
  at::Tensor Forward(const std::vector<ScheduledChunk>& chunks) {
    const MemoryScope activations(ledger_, MemoryCategory::kActivations);
    const ParameterLayout& layout = model_->layout();
    const ModelConfig& config = model_->config();
    const auto blocks = static_cast<int>(config.num_hidden_layers);
    const bool work = !chunks.empty();

    std::vector<int64_t> ids;
    std::vector<int64_t> positions;
    std::vector<int64_t> rows;
    for (const ScheduledChunk& chunk : chunks) {
      for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
        ids.push_back(chunk.sequence->ids[i]);
        positions.push_back(i);
      }
      if (chunk.last) rows.push_back(static_cast<int64_t>(ids.size()) - 1);
    }
    const auto as_tensor = [](std::vector<int64_t>& values) {
      return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kLong);
    };

    at::Tensor hidden_TD;
    RotaryTable rotary;
    {
      const GatheredGroup group = model_->Gather(0, layout.block_group(0));
      if (work) {
        hidden_TD = Embed(Find(layout.groups[0], group, "model.embed_tokens.weight"), as_tensor(ids));
        rotary = MakeRotaryTable(config, as_tensor(positions));
      }
    }
    PagedAttention attention(&*cache_, &chunks);
    for (int block = 0; block < blocks; ++block) {
      const int index = layout.block_group(block);
      const GatheredGroup group =
          model_->Gather(index, block + 1 < blocks ? layout.block_group(block + 1) : layout.head_group);
      if (!work) continue;
      attention.set_layer(block);
      hidden_TD =
          DecoderBlock(config, MakeBlockWeights(layout.groups[index], group.tensors()), rotary, attention, hidden_TD);
    }
    const GatheredGroup group = model_->Gather(layout.head_group);
    if (rows.empty()) return {};
    const ParameterGroup& head = layout.groups[layout.head_group];
    const at::Tensor last_ND = RmsNorm(at::index_select(hidden_TD, 0, as_tensor(rows)),
                                       Find(head, group, "model.norm.weight"), config.rms_norm_eps);
    const at::Tensor head_VD =
        Find(head, group, config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
    const MemoryScope logits(ledger_, MemoryCategory::kLogits);
    return VocabularyLogits(last_ND, head_VD).contiguous();
  }

  static at::Tensor Find(const ParameterGroup& parameters, const GatheredGroup& gathered, const std::string& name) {
    for (size_t i = 0; i < parameters.parameters.size(); ++i) {
      if (parameters.parameters[i].name == name) return gathered.tensors()[i];
    }
    QUARTET_CHECK(false) << "group '" << parameters.name << "' has no " << name;
    return {};
  }

  // Draws the next token of each sequence that is up to date, and gives away those that end with it.
  absl::Status Extend(const SamplingParams& sampling, const absl::flat_hash_set<int32_t>& stops,
                      const std::vector<ScheduledChunk>& chunks, const at::Tensor& logits_NV,
                      const std::function<void(GeneratedSequence)>& done) {
    std::vector<Sequence*> ready;
    for (const ScheduledChunk& chunk : chunks) {
      if (chunk.last) ready.push_back(chunk.sequence);
    }
    if (ready.empty()) return absl::OkStatus();
    const SamplingRule rule{sampling.temperature(), sampling.top_k(), sampling.top_p()};
    const int64_t vocabulary = logits_NV.size(1);
    const float* logits = logits_NV.const_data_ptr<float>();
    std::vector<absl::StatusOr<SampledToken>> drawn(ready.size(), SampledToken{});
    at::parallel_for(0, static_cast<int64_t>(ready.size()), 1, [&](int64_t begin, int64_t end) {
      Sampler& sampler = samplers_[at::get_thread_num()];
      for (int64_t i = begin; i < end; ++i) {
        const Sequence& sequence = *ready[i];
        const uint64_t noise = NoiseKey(sampling.seed(), sequence.prompt_index, sequence.sample,
                                        static_cast<int64_t>(sequence.ids.size()));
        drawn[i] = sampler.Sample(absl::MakeConstSpan(logits + i * vocabulary, vocabulary), rule, noise);
      }
    });
    for (size_t i = 0; i < ready.size(); ++i) {
      Sequence* sequence = ready[i];
      if (!drawn[i].ok()) {
        return absl::Status(drawn[i].status().code(),
                            absl::StrCat("prompt ", sequence->prompt_index, ", sample ", sequence->sample, ", token ",
                                         sequence->ids.size(), ": ", drawn[i].status().message()));
      }
      sequence->ids.push_back(drawn[i]->id);
      sequence->log_probs.push_back(drawn[i]->log_prob);
      sequence->sampled_log_probs.push_back(drawn[i]->sampled_log_prob);
      ++generated_tokens_;
      const bool stopped = stops.contains(drawn[i]->id);
      if (stopped || static_cast<int64_t>(sequence->log_probs.size()) >= sampling.max_new_tokens()) {
        done(Describe(*scheduler_->Finish(sequence), stopped ? GeneratedSequence::STOP : GeneratedSequence::LENGTH));
      }
    }
    return absl::OkStatus();
  }

  GeneratedSequence Describe(const Sequence& sequence, GeneratedSequence::FinishReason reason) const {
    GeneratedSequence out;
    out.set_prompt_index(sequence.prompt_index);
    out.set_sample(sequence.sample);
    out.set_finish_reason(reason);
    TokenSequence& tokens = *out.mutable_tokens();
    tokens.mutable_ids()->Add(sequence.ids.begin(), sequence.ids.end());
    tokens.mutable_action_mask()->Resize(static_cast<int>(sequence.ids.size()), true);
    std::fill_n(tokens.mutable_action_mask()->begin(), sequence.prompt_len, false);
    out.mutable_log_probs()->Add(sequence.log_probs.begin(), sequence.log_probs.end());
    out.mutable_sampled_log_probs()->Add(sequence.sampled_log_probs.begin(), sequence.sampled_log_probs.end());
    // A call of Generate is never interrupted by a Commit, so that one version made them all.
    out.mutable_policy_versions()->Resize(static_cast<int>(sequence.log_probs.size()), version_);
    return out;
  }

  const RolloutEngineOptions options_;
  Ledger* const ledger_;
  const std::unique_ptr<ProcessGroup> group_;
  const std::unique_ptr<ShardedModel> model_;
  const bool lockstep_;
  std::vector<ParameterSpec> tensors_;
  std::vector<int32_t> first_tensor_;  // of each group
  std::optional<KvCache> cache_;
  std::optional<Scheduler> scheduler_;
  std::vector<Sampler> samplers_;  // one a thread
  std::atomic<uint64_t> version_ = 0;
  std::atomic<int64_t> steps_ = 0;
  std::atomic<int64_t> preemptions_ = 0;
  std::atomic<int64_t> generated_tokens_ = 0;
};

absl::Status CheckOptions(const RolloutEngineOptions& options, const RankContext& context) {
  const auto refuse = [](const char* field, const auto& value, const char* allowed) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.", field, " is ", value, "; allowed: ", allowed));
  };
  if (options.dtype != "bf16" && options.dtype != "fp32") {
    return refuse("dtype", absl::StrCat("\"", options.dtype, "\""), "\"bf16\", \"fp32\"");
  }
  if (options.zero_stage != 0 && options.zero_stage != 3) return refuse("zero_stage", options.zero_stage, "0, 3");
  if (options.block_size < 1 || options.block_size % PagedCacheLayout::kBlockSizeMultiple != 0) {
    return refuse("block_size", options.block_size, "multiples of 16");
  }
  if (options.max_model_len < 2) return refuse("max_model_len", options.max_model_len, "at least 2");
  if (options.max_num_seqs < 1) return refuse("max_num_seqs", options.max_num_seqs, "at least 1");
  if (options.max_num_batched_tokens < 1) {
    return refuse("max_num_batched_tokens", options.max_num_batched_tokens, "at least 1");
  }
  if (context.device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("services.rollout.device is \"", context.device, "\"; allowed: \"cpu\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RolloutEngine>> LoadEngine(const RolloutEngineOptions& options,
                                                          const RankContext& context, Ledger* ledger) {
  QUARTET_RETURN_IF_ERROR(CheckOptions(options, context));
  ProcessGroupOptions group_options;
  group_options.rank = context.rank;
  group_options.size = context.world_size;
  group_options.device = context.device;
  group_options.host = context.host;
  group_options.timeout = context.collective_timeout;
  group_options.backend = context.collective_backend;
  group_options.name = "rollout";
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group, MakeProcessGroup(context.store, group_options));
  ShardedModelOptions model_options;
  model_options.head = HeadKind::kVocabulary;
  model_options.zero_stage = options.zero_stage;
  model_options.compute_dtype = options.dtype == "fp32" ? at::kFloat : at::kBFloat16;
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<ShardedModel> model,
                           ShardedModel::Load(options.model, model_options, group.get(), ledger));
  const ModelConfig& config = model->config();
  if (options.max_model_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.max_model_len is ", options.max_model_len,
                                                   "; the model's max_position_embeddings allow at most ",
                                                   config.max_position_embeddings));
  }
  for (const int32_t id : options.stop_token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rollout.stop_token_ids holds ", id, "; allowed: 0 to ", config.vocab_size - 1));
    }
  }
  auto engine = std::make_unique<Engine>(options, ledger, std::move(group), std::move(model));
  QUARTET_RETURN_IF_ERROR(engine->MakeCache());
  return engine;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RolloutEngine>> RolloutEngine::Load(const RolloutEngineOptions& options,
                                                                   const RankContext& context, Ledger* ledger) {
  try {
    return LoadEngine(options, context, ledger);
  } catch (const std::exception& error) {
    return StatusOf(error, "loading the rollout's model", *ledger);
  }
}

}  // namespace quartet
