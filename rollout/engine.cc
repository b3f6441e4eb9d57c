// T tokens of one forward, D hidden, V vocabulary, N rows of logits.

#include "rollout/engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/logging.h"
#include "core/base/meta_device.h"
#include "core/base/parallel.h"
#include "core/base/status_macros.h"
#include "core/comm/agreement.h"
#include "core/comm/process_group.h"
#include "core/model/decoder.h"
#include "core/model/row_padding.h"
#include "core/model/vocabulary_head.h"
#include "core/training/rank_device.h"
#include "core/zero/accounted_tensor.h"
#include "core/zero/catch_exceptions.h"
#include "core/zero/sharded_model.h"
#include "rollout/cache_budget.h"
#include "rollout/kv_cache.h"
#include "rollout/prompt_log_probs.h"
#include "rollout/rate_meter.h"
#include "rollout/sampler.h"
#include "rollout/sampling_params.h"
#include "rollout/scheduler.h"
#include "rollout/share_exchange.h"
#include "rollout/weight_order.h"

namespace quartet {
namespace {

// Of one prompt, so that its message stays well below what gRPC takes.
constexpr int64_t kMostPromptLogProbs = int64_t{1} << 18;

// Accounted by the model, as parameters.
class Staging : public WeightStaging {
 public:
  Staging(const ShardedModel& model, const std::vector<int32_t>& first_tensor)
      : model_(model), buffers_(model.NewStagedBuffers()) {
    for (const ResidentPiece& piece : model.pieces()) {
      const at::Tensor& buffer = buffers_[piece.group];
      char* data = nullptr;
      if (!buffer.is_meta()) {
        data = static_cast<char*>(buffer.mutable_data_ptr()) + piece.shard_offset * buffer.element_size();
      }
      const StridedRange stored = model.layout().groups[piece.group].parameters[piece.parameter].stored_range();
      for (int64_t done = 0; done < piece.count;) {
        const StridedRange part = NextPart(stored, piece.begin + done, piece.count - done);
        char* const part_data = data == nullptr ? nullptr : data + done * buffer.element_size();
        ranges_.push_back({first_tensor[piece.group] + piece.parameter, part, part_data});
        done += part.numel();
      }
    }
  }
  const std::vector<StagedRange>& ranges() const override { return ranges_; }
  void Prepare() override {
    if (model_.stages_apart() || prepared_) return;
    prepared_ = true;
    if (model_.options().zero_stage == 0) {
      whole_ = ArrangeWhole(model_, buffers_);
    } else {
      ArrangePart(model_, buffers_);
    }
  }

  std::vector<at::Tensor>& buffers() { return buffers_; }
  // Views of the buffers, where those are whole, prepared, and will be the resident ones.
  std::optional<WholeWeights>& whole() { return whole_; }

 private:
  const ShardedModel& model_;
  std::vector<at::Tensor> buffers_;
  std::vector<StagedRange> ranges_;
  bool prepared_ = false;
  std::optional<WholeWeights> whole_;
};

// The ranks of the service; those that have shares of the model with this one; and those over which the model is
// sharded: all, but for a share of it, which is whole.
struct EngineGroups {
  std::unique_ptr<ProcessGroup> all;
  std::unique_ptr<ProcessGroup> shares;  // null: all
  std::unique_ptr<ProcessGroup> alone;   // null: all
  ProcessGroup* of_shares() const { return shares == nullptr ? all.get() : shares.get(); }
  ProcessGroup* of_model() const { return alone == nullptr ? all.get() : alone.get(); }
};

class Engine : public RolloutEngine {
 public:
  Engine(const RolloutEngineOptions& options, Ledger* ledger, EngineGroups groups, std::unique_ptr<ShardedModel> model)
      : options_(options),
        ledger_(ledger),
        groups_(std::move(groups)),
        model_(std::move(model)),
        lockstep_(options.zero_stage == 3 && groups_.all->size() > 1) {
    if (options.tensor_parallel_size > 1) {
      exchange_.emplace(model_->config(), groups_.of_shares(), model_->options().device);
      sum_partials_ = [this](const at::Tensor& partial_TD) { exchange_->Sum(partial_TD); };
    }
    for (const ParameterGroup& parameters : model_->layout().groups) {
      first_tensor_.push_back(static_cast<int32_t>(tensors_.size()));
      tensors_.insert(tensors_.end(), parameters.parameters.begin(), parameters.parameters.end());
    }
    samplers_.resize(at::get_num_threads());
    ArrangeResident();
  }

  absl::Status MakeCache() {
    const ModelConfig& config = model_->config();
    const at::Device device = model_->options().device;
    const KvCacheShape shape{.layout = {options_.block_size, config.num_key_value_heads, config.head_dim},
                             .layers = config.num_hidden_layers,
                             .dtype = model_->options().compute_dtype,
                             .format = CacheFormatFor(device)};
    const int64_t block_bytes = shape.block_bytes();
    int64_t cache_bytes = options_.kv_cache_bytes;
    if (options_.gpu_memory_utilization > 0) {
      QUARTET_ASSIGN_OR_RETURN(cache_bytes, BudgetedCacheBytes(shape));
    }
    const int64_t blocks_a_sequence = (options_.max_model_len + options_.block_size - 1) / options_.block_size;
    const int64_t blocks = std::min(cache_bytes / block_bytes, options_.max_num_seqs * blocks_a_sequence);
    if (blocks < 1) {
      return absl::InvalidArgumentError(absl::StrCat("rollout.kv_cache_bytes is ", options_.kv_cache_bytes,
                                                     "; one block of ", options_.block_size, " tokens takes ",
                                                     block_bytes, " bytes"));
    }
    make_cache_ = [=, this] { cache_.emplace(shape, blocks, device, ledger_); };
    make_cache_();
    SchedulerOptions scheduler;
    scheduler.num_blocks = blocks;
    scheduler.block_size = options_.block_size;
    scheduler.max_num_seqs = options_.max_num_seqs;
    scheduler.max_num_batched_tokens = options_.max_num_batched_tokens;
    scheduler.max_model_len = options_.max_model_len;
    scheduler_.emplace(scheduler);
    if (device.is_meta()) return absl::OkStatus();
    QUARTET_LOG(kInfo) << "KV cache: " << blocks << " blocks of " << options_.block_size << " tokens, "
                       << blocks * block_bytes / (1 << 20) << " MiB";
    return absl::OkStatus();
  }

  absl::Status Check(const SamplingParams& sampling) const override {
    return CheckSamplingParams(sampling, vocab_size(), options_.watch_stop_strings != nullptr);
  }

  absl::Status Check(const SamplingParams& sampling, const GenerationTask& task) const override {
    const auto told = static_cast<int64_t>(task.ids.size()) * (1 + int64_t{sampling.prompt_logprobs()});
    if (sampling.has_prompt_logprobs() && told > kMostPromptLogProbs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt ", task.prompt_index, ": ", task.ids.size(), " ids with sampling.prompt_logprobs ",
          sampling.prompt_logprobs(), " make ", told, " log-probabilities; allowed: at most ", kMostPromptLogProbs));
    }
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

  void Add(const GenerationTask& task) override {
    CallState& call = calls_[task.call];
    if (call.sampling == nullptr) {
      call.sampling = task.sampling;
      call.rule = MakeSamplingRule(*task.sampling);
      call.stream_tokens = task.stream_tokens;
      call.stops.insert(options_.stop_token_ids.begin(), options_.stop_token_ids.end());
      call.stops.insert(task.sampling->stop_token_ids().begin(), task.sampling->stop_token_ids().end());
      if (!task.sampling->ignore_eos()) call.stops.insert(eos_token_ids().begin(), eos_token_ids().end());
      call.stop_list.assign(call.stops.begin(), call.stops.end());
    }
    call.left += task.samples;
    scheduler_->Add(task.call, task.prompt_index, task.ids, task.first_sample, task.samples,
                    /*finds_prefix=*/!task.sampling->has_prompt_logprobs());
  }

  std::vector<GeneratedSequence> Cancel(uint64_t call) override {
    std::vector<GeneratedSequence> cancelled;
    for (const auto& sequence : scheduler_->Cancel(call)) {
      cancelled.push_back(Describe(*sequence, GeneratedSequence::ABORTED));
    }
    calls_.erase(call);
    UpdateStats();
    return cancelled;
  }

  bool idle() const override { return scheduler_->idle(); }

  absl::StatusOr<StepAgreement> AgreeOnStep(int64_t batches) override {
    StepAgreement agreed = {batches, idle()};
    if (!lockstep_ && !exchange_.has_value()) return agreed;
    ProcessGroup* const group = groups_.of_shares();
    std::vector<int64_t> told(2 * group->size());
    told[2 * group->rank()] = agreed.batches;
    told[2 * group->rank() + 1] = agreed.idle ? 1 : 0;
    try {
      const at::Tensor here = at::from_blob(told.data(), {static_cast<int64_t>(told.size())}, at::kLong);
      const at::Tensor shared = here.to(model_->options().device);
      group->AllGatherInPlace(shared)->Wait();
      here.copy_(shared);
    } catch (const std::exception& error) {
      return StatusOf(error, "generation", *ledger_);
    }
    for (size_t i = 0; i < told.size(); i += 2) {
      agreed.batches = std::min(agreed.batches, told[i]);
      agreed.idle = agreed.idle && told[i + 1] != 0;
    }
    return agreed;
  }

  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    std::vector<EngineEvent> events;
    QUARTET_CHECK(cache_.has_value()) << "a step of an engine that sleeps";
    QUARTET_CHECK(has_weights_) << "a step of an engine without weights";
    try {
      const auto start = std::chrono::steady_clock::now();
      const at::NoGradGuard no_grad;
      const ScheduledStep step = scheduler_->Schedule();
      if (step.chunks.empty() && !lockstep_) return events;
      for (const BlockCopy& copy : step.copies) cache_->Copy(copy);
      std::map<uint64_t, absl::Status> failed;
      const at::Tensor logits_NV = Forward(step.chunks, &failed);
      std::vector<Draw> draws;
      int64_t row = 0;
      for (const ScheduledChunk& chunk : step.chunks) {
        // What was generated before a preemption is computed again, but not drawn.
        prefill_tokens_ += chunk.count - (chunk.last && chunk.first >= chunk.sequence->prompt_len ? 1 : 0);
        for (Sequence* sequence : scheduler_->Computed(chunk)) draws.push_back({sequence, row});
        if (chunk.last) ++row;
      }
      held_places_ += scheduler_->blocks_in_use() * options_.block_size;
      empty_places_ += scheduler_->empty_places();
      Extend(draws, logits_NV, std::move(failed), &events);
      ++steps_;
      meter_.Add(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), prefill_tokens_,
                 generated_tokens_);
    } catch (const std::exception& error) {
      while (!calls_.empty()) Cancel(calls_.begin()->first);
      return StatusOf(error, "generation", *ledger_);
    }
    UpdateStats();
    return events;
  }

  void Sleep(bool release_weights) override {
    scheduler_->PreemptAll();
    cache_.reset();
    if (release_weights) {
      whole_.reset();
      model_->ReleaseResident();
      has_weights_ = false;
    }
    GiveBackFreedBlocks();
    UpdateStats();
  }

  absl::Status Wake() override {
    if (cache_.has_value()) return absl::OkStatus();
    const bool had_weights = has_weights_;
    absl::Status status = CatchExceptions("taking memory again after sleep", *ledger_, [this] {
      if (!has_weights_ && version_ == 0) {
        Staging staging(*model_, first_tensor_);
        QUARTET_RETURN_IF_ERROR(model_->ReadResident(staging.buffers()));
        Use(staging);
      }
      make_cache_();
      return absl::OkStatus();
    });
    if (!status.ok()) Sleep(/*release_weights=*/!had_weights);
    return status;
  }

  bool has_weights() const override { return has_weights_; }

  const std::vector<ParameterSpec>& tensors() const override { return tensors_; }
  Dtype resident_dtype() const override {
    return model_->options().compute_dtype == at::kFloat ? Dtype::kF32 : Dtype::kBF16;
  }

  std::unique_ptr<WeightStaging> NewStaging() override { return std::make_unique<Staging>(*model_, first_tensor_); }

  void Commit(std::unique_ptr<WeightStaging> staging, uint64_t version) override {
    Use(static_cast<Staging&>(*staging));
    scheduler_->FlushPrefixes();
    version_ = version;
  }

  uint64_t version() const override { return version_; }
  int64_t vocab_size() const override { return model_->config().vocab_size; }
  const std::vector<int64_t>& eos_token_ids() const override { return model_->config().eos_token_ids; }

  RolloutEngineStats stats() const override {
    const std::lock_guard lock(stats_mutex_);
    return stats_;
  }

 private:
  struct CallState {
    std::shared_ptr<const SamplingParams> sampling;
    SamplingRule rule;
    absl::flat_hash_set<int32_t> stops;
    std::vector<int32_t> stop_list;  // the same
    bool stream_tokens = false;
    int64_t left = 0;  // sequences
    PromptLogProbs prompts;
  };
  // A token of a sequence's prompt, told from a row of a forward's hidden states: that of the token before it.
  struct PromptToken {
    const Sequence* sequence;
    int64_t position;
    int64_t row;
  };
  // The next token of a sequence, from a row of the logits.
  struct Draw {
    Sequence* sequence;
    int64_t row;
  };

  // What rollout.gpu_memory_utilization leaves for the cache, after a forward of the largest size. Ranks that step
  // together get the least that any of them found. Collective.
  absl::StatusOr<int64_t> BudgetedCacheBytes(const KvCacheShape& shape) {
    const at::Device device = model_->options().device;
    CacheBudget budget;
    budget.utilization = options_.gpu_memory_utilization;
    budget.block_bytes = shape.block_bytes();
    absl::Status status = CatchExceptions("the largest forward", *ledger_, [&] {
      if (device.is_meta()) {
        ledger_->ResetPeaks();
        const int64_t before = ledger_->total(MemoryTier::kDevice);
        MakeLargestForward(shape);
        budget.device_bytes = options_.planned_device_bytes;
        budget.weights_bytes = before;
        budget.forward_bytes = ledger_->peak_total(MemoryTier::kDevice) - before - budget.block_bytes;
        budget.other_bytes = options_.planned_other_bytes;
        return absl::OkStatus();
      }
      ResetPeakTensors(device);
      const int64_t before = ReadDeviceMemory(device).tensors;
      MakeLargestForward(shape);
      GiveBackFreedBlocks();
      const DeviceMemory memory = ReadDeviceMemory(device);
      budget.device_bytes = memory.total;
      budget.weights_bytes = before;
      budget.forward_bytes = memory.peak_tensors - before - budget.block_bytes;
      budget.other_bytes = memory.others;
      return absl::OkStatus();
    });
    absl::StatusOr<int64_t> bytes = status.ok() ? CacheBytesWithin(budget) : status;
    if (groups_.all->size() == 1) return bytes;
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(*groups_.all, bytes.status(), device));
    if (!exchange_.has_value() || device.is_meta()) return bytes;
    std::vector<int64_t> least = {-*bytes};
    const at::Tensor of_all = at::from_blob(least.data(), {1}, at::kLong).to(device);
    groups_.of_shares()->AllReduceMax(of_all)->Wait();
    return -of_all.item<int64_t>();
  }

  // As many tokens as a forward may have, of as many sequences as may run, each at the end of the longest context. All
  // lie in one block of a cache of their own: only the memory matters.
  void MakeLargestForward(const KvCacheShape& shape) {
    const at::NoGradGuard no_grad;
    cache_.emplace(shape, 1, model_->options().device, ledger_);
    constexpr uint64_t kCall = 0;
    calls_[kCall].sampling = std::make_shared<SamplingParams>();
    const int64_t length = options_.max_model_len;
    const int64_t count = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
    int64_t tokens = std::min(options_.max_num_batched_tokens, count * length);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<ScheduledChunk> chunks;
    for (int64_t i = 0; i < count; ++i) {
      Sequence& sequence = *sequences.emplace_back(std::make_unique<Sequence>());
      sequence.call = kCall;
      sequence.prompt_len = length;
      sequence.ids.assign(length, 0);
      sequence.blocks.assign((length + options_.block_size - 1) / options_.block_size, 0);
      const int64_t part = std::min(length, tokens - (count - 1 - i));  // each of the others has one at least
      chunks.push_back({&sequence, length - part, part, /*last=*/true});
      tokens -= part;
    }
    std::map<uint64_t, absl::Status> failed;
    Forward(chunks, &failed);
    calls_.erase(kCall);
    cache_.reset();
  }

  // Puts `staging` in the place of the weights.
  void Use(Staging& staging) {
    staging.Prepare();
    whole_ = std::move(staging.whole());
    model_->PutInUse(std::move(staging.buffers()));
    if (options_.zero_stage == 0 && !whole_.has_value()) ArrangeResident();
    has_weights_ = true;
  }

  void ArrangeResident() {
    std::vector<at::Tensor> buffers;
    for (size_t g = 0; g < model_->layout().groups.size(); ++g) {
      buffers.push_back(model_->resident(static_cast<int>(g)));
    }
    if (options_.zero_stage == 0) {
      whole_ = ArrangeWhole(*model_, buffers);
    } else {
      ArrangePart(*model_, buffers);
    }
  }

  void UpdateStats() {
    const std::lock_guard lock(stats_mutex_);
    stats_.steps = steps_;
    stats_.running = scheduler_->running();
    stats_.waiting = scheduler_->waiting();
    stats_.blocks = scheduler_->num_blocks();
    stats_.blocks_in_use = scheduler_->blocks_in_use();
    stats_.held_places = held_places_;
    stats_.empty_places = empty_places_;
    stats_.preemptions = scheduler_->preemptions();
    stats_.prefill_tokens = prefill_tokens_;
    stats_.generated_tokens = generated_tokens_;
    stats_.admitted_tokens = scheduler_->admitted_tokens();
    stats_.cached_tokens = scheduler_->cached_tokens();
    stats_.sent_bytes = stats_.received_bytes = 0;
    for (int kind = 0; kind < kCollectiveKinds; ++kind) {
      const CommVolume volume = groups_.of_shares()->volume(static_cast<CollectiveKind>(kind));
      stats_.sent_bytes += volume.sent_bytes;
      stats_.received_bytes += volume.received_bytes;
    }
    stats_.prefill_tokens_per_second = meter_.prefill_rate();
    stats_.generated_tokens_per_second = meter_.generated_rate();
  }

  // Logits, fp32 [N, V] (of a share, as its exchange has gathered them), after the last token of each chunk that ends
  // its sequence; undefined where there is none. At stage 3 a rank without chunks takes part in every gather. Takes
  // down what is to be told of prompts; calls for which that fails go to `failed`.
  at::Tensor Forward(const std::vector<ScheduledChunk>& chunks, std::map<uint64_t, absl::Status>* failed) {
    const MemoryScope activations(ledger_, MemoryCategory::kActivations);
    const ParameterLayout& layout = model_->layout();
    const ModelConfig& config = model_->config();
    const auto blocks = static_cast<int>(config.num_hidden_layers);
    const bool work = !chunks.empty();

    std::vector<int64_t> ids;
    std::vector<int64_t> positions;
    std::vector<int64_t> rows;
    std::vector<PromptToken> prompt_tokens;
    for (const ScheduledChunk& chunk : chunks) {
      const int64_t known = KnownPromptTokens(*chunk.sequence);
      for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
        if (i + 1 >= known && i + 1 < chunk.sequence->prompt_len) {
          prompt_tokens.push_back({chunk.sequence, i + 1, static_cast<int64_t>(ids.size())});
        }
        ids.push_back(chunk.sequence->ids[i]);
        positions.push_back(i);
      }
      if (chunk.last) rows.push_back(static_cast<int64_t>(ids.size()) - 1);
    }
    // What is behind the chunks belongs to no sequence.
    ids.resize(PaddedRows(static_cast<int64_t>(ids.size())), 0);
    positions.resize(ids.size(), 0);
    const auto as_tensor = [&](std::vector<int64_t>& values) {
      return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kLong)
          .to(model_->options().device);
    };

    at::Tensor hidden_TD;
    RotaryTable rotary;
    if (work) rotary = MakeRotaryTable(config, as_tensor(positions));
    PagedAttention attention(&*cache_, chunks, config.num_attention_heads);
    const auto finish = [&](const at::Tensor& norm_D, const at::Tensor& head_VD) {
      const auto logits_of = [&](std::vector<int64_t> of_rows) {
        const at::Tensor of_ND =
            RmsNorm(at::index_select(hidden_TD, 0, as_tensor(of_rows)), norm_D, config.rms_norm_eps);
        const MemoryScope logits(ledger_, MemoryCategory::kLogits);
        const at::Tensor logits_NV = VocabularyLogits(of_ND, head_VD);
        return OnHost(exchange_.has_value() ? exchange_->GatherLogits(logits_NV) : logits_NV.contiguous());
      };
      // No more rows at once than sequences may draw from: the logits' memory stays what it is.
      const auto most = static_cast<size_t>(options_.max_num_seqs);
      for (size_t begin = 0; begin < prompt_tokens.size(); begin += most) {
        const auto tokens = absl::MakeConstSpan(prompt_tokens).subspan(begin, most);
        std::vector<int64_t> of_rows;
        for (const PromptToken& token : tokens) of_rows.push_back(token.row);
        Tell(tokens, logits_of(std::move(of_rows)), failed);
      }
      return rows.empty() ? at::Tensor() : logits_of(rows);
    };
    if (whole_.has_value()) {
      if (!work) return {};
      hidden_TD =
          exchange_.has_value() ? exchange_->Embed(whole_->embedding, ids) : Embed(whole_->embedding, as_tensor(ids));
      for (int block = 0; block < blocks; ++block) {
        attention.set_layer(block);
        hidden_TD = DecoderBlock(config, whole_->blocks[block], rotary, attention, hidden_TD, sum_partials_);
      }
      return finish(whole_->norm_D, whole_->head);
    }
    {
      const GatheredGroup group = model_->Gather(0, layout.block_group(0));
      if (work) {
        const std::vector<at::Tensor> tensors = ArrangeGathered(*model_, 0, group);
        hidden_TD = Embed(Find(layout.groups[0], tensors, "model.embed_tokens.weight"), as_tensor(ids));
      }
    }
    for (int block = 0; block < blocks; ++block) {
      const int index = layout.block_group(block);
      const GatheredGroup group =
          model_->Gather(index, block + 1 < blocks ? layout.block_group(block + 1) : layout.head_group);
      if (!work) continue;
      attention.set_layer(block);
      const BlockWeights weights = MakeBlockWeights(layout.groups[index], ArrangeGathered(*model_, index, group));
      hidden_TD = DecoderBlock(config, weights, rotary, attention, hidden_TD);
    }
    const GatheredGroup group = model_->Gather(layout.head_group);
    if (!work) return {};
    const std::vector<at::Tensor> tensors = ArrangeGathered(*model_, layout.head_group, group);
    const ParameterGroup& head = layout.groups[layout.head_group];
    return finish(Find(head, tensors, "model.norm.weight"), Find(head, tensors, HeadName(config)));
  }

  // Where the CPU can read it, once all that it is computed from is done.
  at::Tensor OnHost(const at::Tensor& values) const {
    if (ComputeDevice(values) == at::kCPU) return values;
    const at::Tensor copy = AccountedEmpty(ledger_, MemoryCategory::kLogits, values.numel(), values.scalar_type(),
                                           values.device(), MemoryTier::kHost)
                                .view(values.sizes());
    copy.copy_(values);
    return copy;
  }

  static at::Tensor Find(const ParameterGroup& parameters, const std::vector<at::Tensor>& tensors,
                         const std::string& name) {
    for (size_t i = 0; i < parameters.parameters.size(); ++i) {
      if (parameters.parameters[i].name == name) return tensors[i];
    }
    QUARTET_CHECK(false) << "group '" << parameters.name << "' has no " << name;
    return {};
  }

  // How many tokens of its prompt nothing is to be told of any more.
  int64_t KnownPromptTokens(const Sequence& sequence) const {
    const CallState& call = calls_.at(sequence.call);
    return call.sampling->has_prompt_logprobs() ? call.prompts.next(sequence.prompt_index) : sequence.prompt_len;
  }

  // Takes down the log-probabilities of tokens of prompts, from a row of logits each.
  void Tell(absl::Span<const PromptToken> tokens, const at::Tensor& logits, std::map<uint64_t, absl::Status>* failed) {
    const bool tell = !logits.is_meta();
    std::vector<absl::StatusOr<SampledToken>> told(tokens.size(), SampledToken{});
    at::parallel_for(0, static_cast<int64_t>(tokens.size()), 1, [&](int64_t begin, int64_t end) {
      Sampler& sampler = samplers_[at::get_thread_num()];
      std::vector<float> joined;
      for (int64_t i = begin; i < end && tell; ++i) {
        const CallState& call = calls_.at(tokens[i].sequence->call);
        told[i] = sampler.Tell(Row(logits, i, &joined), call.rule, tokens[i].sequence->ids[tokens[i].position],
                               call.sampling->prompt_logprobs());
      }
    });
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Sequence& sequence = *tokens[i].sequence;
      absl::Status taken =
          calls_.at(sequence.call).prompts.Take(sequence.prompt_index, tokens[i].position, std::move(told[i]));
      if (!taken.ok()) failed->emplace(sequence.call, std::move(taken));
    }
  }

  // One of each of `draws`; for calls that want none, anything.
  std::vector<absl::StatusOr<SampledToken>> DrawAll(const std::vector<Draw>& draws, const at::Tensor& logits) {
    if (draws.empty()) return {};
    std::vector<absl::StatusOr<SampledToken>> drawn(draws.size(), SampledToken{});
    const bool draw = !logits.is_meta();
    at::parallel_for(0, static_cast<int64_t>(draws.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end && draw; ++i) {
        const bool wanted = calls_.at(draws[i].sequence->call).sampling->max_new_tokens() > 0;
        if (wanted && (!exchange_.has_value() || exchange_->IsMine(i))) drawn[i] = DrawToken(draws[i], logits);
      }
    });
    if (exchange_.has_value()) {
      int32_t alternatives = 0;
      for (const Draw& one : draws) {
        alternatives = std::max(alternatives, calls_.at(one.sequence->call).rule.alternatives);
      }
      for (const size_t i : exchange_->ShareDrawn(alternatives, &drawn)) {
        if (!draw) continue;
        drawn[i] = DrawToken(draws[i], logits);  // to say the same of it
        if (drawn[i].ok()) drawn[i] = absl::InternalError("another rank could not draw from the logits");
      }
    }
    return drawn;
  }

  // Draws the next tokens, and gives away the sequences that end with them and the calls that `failed`, in order: all
  // ranks must cancel in the same.
  void Extend(const std::vector<Draw>& draws, const at::Tensor& logits, std::map<uint64_t, absl::Status> failed,
              std::vector<EngineEvent>* events) {
    std::vector<absl::StatusOr<SampledToken>> drawn = DrawAll(draws, logits);
    for (size_t i = 0; i < draws.size(); ++i) {
      const Sequence& sequence = *draws[i].sequence;
      if (failed.contains(sequence.call)) continue;
      if (calls_.at(sequence.call).sampling->max_new_tokens() == 0) {
        End(draws[i].sequence, GeneratedSequence::LENGTH, /*stop_string=*/"", events);
      } else if (!drawn[i].ok()) {
        failed.emplace(sequence.call,
                       absl::Status(drawn[i].status().code(),
                                    absl::StrCat("prompt ", sequence.prompt_index, ", sample ", sequence.sample,
                                                 ", token ", sequence.ids.size(), ": ", drawn[i].status().message())));
      } else {
        Append(draws[i].sequence, *std::move(drawn[i]), events);
      }
    }
    for (auto& [call, status] : failed) {
      Cancel(call);
      events->push_back({call, std::move(status)});
    }
  }

  // On any thread of LibTorch's.
  absl::StatusOr<SampledToken> DrawToken(const Draw& draw, const at::Tensor& logits) {
    const Sequence& sequence = *draw.sequence;
    const CallState& call = calls_.at(sequence.call);
    const absl::Span<const int32_t> ids = sequence.ids;
    SamplingHistory history;
    history.prompt = ids.subspan(0, sequence.prompt_len);
    history.answer = ids.subspan(sequence.prompt_len);
    if (static_cast<int64_t>(history.answer.size()) < call.sampling->min_tokens()) history.forbidden = call.stop_list;
    const uint64_t noise = NoiseKey(call.sampling->seed(), sequence.prompt_index, sequence.sample,
                                    static_cast<int64_t>(sequence.ids.size()));
    std::vector<float> joined;
    return samplers_[at::get_thread_num()].Sample(Row(logits, draw.row, &joined), call.rule, history, noise);
  }

  // A row of logits as Forward gives them, where they are or in `joined`. Any thread.
  absl::Span<const float> Row(const at::Tensor& logits, int64_t row, std::vector<float>* joined) const {
    if (exchange_.has_value()) {
      exchange_->CopyRow(logits, row, joined);
      return *joined;
    }
    return absl::MakeConstSpan(logits.const_data_ptr<float>() + row * vocab_size(), vocab_size());
  }

  void Append(Sequence* sequence, SampledToken token, std::vector<EngineEvent>* events) {
    const CallState& call = calls_.at(sequence->call);
    sequence->ids.push_back(token.id);
    sequence->log_probs.push_back(token.log_prob);
    sequence->sampled_log_probs.push_back(token.sampled_log_prob);
    sequence->versions.push_back(version_);
    ++generated_tokens_;
    if (call.stream_tokens) {
      GeneratedTokens tokens;
      tokens.set_prompt_index(sequence->prompt_index);
      tokens.set_sample(sequence->sample);
      tokens.add_ids(token.id);
      tokens.add_log_probs(token.log_prob);
      if (call.rule.alternatives > 0) DescribeAlternatives(token.alternatives, tokens.add_alternatives());
      if (sequence->log_probs.size() == 1) call.prompts.Describe(sequence->prompt_index, &tokens);
      events->push_back({sequence->call, std::move(tokens)});
    }
    if (call.rule.alternatives > 0) sequence->alternatives.push_back(std::move(token.alternatives));
    const std::string* stop_string = ReadText(call, token.id, sequence);
    const bool stopped = call.stops.contains(token.id) || stop_string != nullptr;
    if (!stopped && static_cast<int64_t>(sequence->log_probs.size()) < call.sampling->max_new_tokens()) return;
    End(sequence, stopped ? GeneratedSequence::STOP : GeneratedSequence::LENGTH,
        stop_string == nullptr ? "" : *stop_string, events);
  }

  void End(Sequence* sequence, GeneratedSequence::FinishReason reason, const std::string& stop_string,
           std::vector<EngineEvent>* events) {
    GeneratedSequence out = Describe(*sequence, reason);
    out.set_stop_string(stop_string);
    events->push_back({sequence->call, std::move(out)});
    const auto state = calls_.find(sequence->call);
    scheduler_->Finish(sequence);
    if (--state->second.left == 0) calls_.erase(state);
  }

  // The stop string that ends the sequence with its newest token, or null.
  const std::string* ReadText(const CallState& call, int32_t token, Sequence* sequence) const {
    if (call.sampling->stop().empty()) return nullptr;
    if (sequence->stop_watcher == nullptr) {
      sequence->stop_watcher =
          options_.watch_stop_strings({call.sampling->stop().begin(), call.sampling->stop().end()});
    }
    const std::string* found = sequence->stop_watcher->Read(token);
    return static_cast<int64_t>(sequence->log_probs.size()) > call.sampling->min_tokens() ? found : nullptr;
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
    out.mutable_policy_versions()->Add(sequence.versions.begin(), sequence.versions.end());
    for (const auto& of_token : sequence.alternatives) DescribeAlternatives(of_token, out.add_alternatives());
    calls_.at(sequence.call).prompts.Describe(sequence.prompt_index, &out);
    return out;
  }

  const RolloutEngineOptions options_;
  Ledger* const ledger_;
  const EngineGroups groups_;
  const std::unique_ptr<ShardedModel> model_;
  const bool lockstep_;
  std::optional<ShareExchange> exchange_;  // tensor-parallel
  SumPartials sum_partials_;               // likewise, else empty
  std::optional<WholeWeights> whole_;      // where every rank holds the whole model: views of the model's memory
  std::vector<ParameterSpec> tensors_;
  std::vector<int32_t> first_tensor_;  // of each group
  std::optional<KvCache> cache_;       // none while the engine sleeps
  std::function<void()> make_cache_;
  std::optional<Scheduler> scheduler_;
  std::vector<Sampler> samplers_;  // one a thread
  std::atomic<uint64_t> version_ = 0;
  std::atomic<bool> has_weights_ = true;
  absl::flat_hash_map<uint64_t, CallState> calls_;  // that have sequences
  int64_t steps_ = 0;
  int64_t prefill_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  int64_t held_places_ = 0;
  int64_t empty_places_ = 0;
  RateMeter meter_;
  mutable std::mutex stats_mutex_;
  RolloutEngineStats stats_;  // guarded by stats_mutex_
};

absl::Status CheckOptions(const RolloutEngineOptions& options, const RankContext& context) {
  const auto refuse = [](const char* field, const auto& value, const auto& allowed) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.", field, " is ", value, "; allowed: ", allowed));
  };
  if (options.dtype != "bf16" && options.dtype != "fp32") {
    return refuse("dtype", absl::StrCat("\"", options.dtype, "\""), "\"bf16\", \"fp32\"");
  }
  if (options.zero_stage != 0 && options.zero_stage != 3) return refuse("zero_stage", options.zero_stage, "0, 3");
  if (options.tensor_parallel_size < 1 || context.world_size % options.tensor_parallel_size != 0) {
    std::string divisors = "1";
    for (int size = 2; size <= context.world_size; ++size) {
      if (context.world_size % size == 0) absl::StrAppend(&divisors, ", ", size);
    }
    return refuse("tensor_parallel_size", options.tensor_parallel_size,
                  absl::StrCat(divisors, " (the divisors of services.rollout.ranks, ", context.world_size, ")"));
  }
  if (options.tensor_parallel_size > 1 && options.zero_stage != 0) {
    return refuse("tensor_parallel_size", options.tensor_parallel_size, "1 with rollout.zero_stage 3");
  }
  if (options.block_size < 1 || options.block_size % PagedCacheLayout::kBlockSizeMultiple != 0) {
    return refuse("block_size", options.block_size, "multiples of 16");
  }
  if (options.max_model_len < 2) return refuse("max_model_len", options.max_model_len, "at least 2");
  if (options.max_num_seqs < 1) return refuse("max_num_seqs", options.max_num_seqs, "at least 1");
  if (options.max_num_batched_tokens < 1) {
    return refuse("max_num_batched_tokens", options.max_num_batched_tokens, "at least 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RolloutEngine>> LoadEngine(const RolloutEngineOptions& options,
                                                          const RankContext& context, Ledger* ledger) {
  QUARTET_RETURN_IF_ERROR(CheckOptions(options, context));
  QUARTET_ASSIGN_OR_RETURN(const at::Device device, EnterDeviceOf(context));
  ProcessGroupOptions group_options;
  group_options.rank = context.rank;
  group_options.size = context.world_size;
  group_options.device = context.device;
  group_options.host = context.host;
  group_options.timeout = context.collective_timeout;
  group_options.backend = context.collective_backend;
  group_options.name = "rollout";
  EngineGroups groups;
  QUARTET_ASSIGN_OR_RETURN(groups.all, MakeProcessGroup(context.store, group_options));
  ShardedModelOptions model_options;
  model_options.head = HeadKind::kVocabulary;
  model_options.zero_stage = options.zero_stage;
  model_options.compute_dtype = options.dtype == "fp32" ? at::kFloat : at::kBFloat16;
  model_options.device = device;
  if (options.tensor_parallel_size > 1) {
    ProcessGroupOptions alone;
    alone.device = context.device;
    QUARTET_ASSIGN_OR_RETURN(groups.alone, MakeProcessGroup(nullptr, alone));
    const int engine = context.rank / options.tensor_parallel_size;
    model_options.tensor_parallel = {context.rank % options.tensor_parallel_size, options.tensor_parallel_size};
    if (options.tensor_parallel_size < context.world_size) {
      ProcessGroupOptions shares = group_options;
      shares.rank = model_options.tensor_parallel.rank;
      shares.size = options.tensor_parallel_size;
      shares.name = absl::StrCat("rollout/engine_", engine);
      for (int r = 0; r < shares.size; ++r) shares.rank_names.push_back(engine * shares.size + r);
      QUARTET_ASSIGN_OR_RETURN(groups.shares, MakeProcessGroup(context.store, shares));
    }
  }
  auto loaded = ShardedModel::Load(options.model, model_options, groups.of_model(), ledger);
  // A share meets nobody while it is loaded.
  if (groups.alone != nullptr) {
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(*groups.all, loaded.status(), model_options.device));
  }
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<ShardedModel> model, std::move(loaded));
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
  auto engine = std::make_unique<Engine>(options, ledger, std::move(groups), std::move(model));
  QUARTET_RETURN_IF_ERROR(engine->MakeCache());
  return engine;
}

}  // namespace

RolloutEngineOptions RolloutOptions(const RolloutConfig& config) {
  RolloutEngineOptions options;
  options.model = config.pretrain();
  options.dtype = config.dtype();
  options.zero_stage = config.zero_stage();
  options.tensor_parallel_size = config.tensor_parallel_size();
  options.kv_cache_bytes = config.kv_cache_bytes();
  options.gpu_memory_utilization = config.gpu_memory_utilization();
  options.block_size = config.block_size();
  options.max_model_len = config.max_model_len();
  options.max_num_seqs = config.max_num_seqs();
  options.max_num_batched_tokens = config.max_num_batched_tokens();
  options.stop_token_ids.assign(config.stop_token_ids().begin(), config.stop_token_ids().end());
  return options;
}

absl::StatusOr<std::unique_ptr<RolloutEngine>> RolloutEngine::Load(const RolloutEngineOptions& options,
                                                                   const RankContext& context, Ledger* ledger) {
  try {
    return LoadEngine(options, context, ledger);
  } catch (const std::exception& error) {
    return StatusOf(error, "loading the rollout's model", *ledger);
  }
}

}  // namespace quartet
