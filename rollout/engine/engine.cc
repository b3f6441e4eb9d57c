#include "rollout/engine/engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/division.h"
#include "core/base/fail_point.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/stopwatch.h"
#include "core/base/trace.h"
#include "core/comm/agreement.h"
#include "core/comm/process_group.h"
#include "core/field_rules/field_rules.h"
#include "core/generation/sampling_params.h"
#include "core/memory/accounted_tensor.h"
#include "core/memory/block_cache.h"
#include "core/memory/catch_exceptions.h"
#include "core/rank/rank_setup.h"
#include "core/zero/sharded/sharded_model.h"
#include "rollout/engine/budget_measurement.h"
#include "rollout/engine/cache/cache_budget.h"
#include "rollout/engine/cache/kv_cache.h"
#include "rollout/engine/duration_counter.h"
#include "rollout/engine/engine_options.h"
#include "rollout/engine/forward_pass.h"
#include "rollout/engine/graphs/graph_recorder.h"
#include "rollout/engine/loaded_model.h"
#include "rollout/engine/rate_meter.h"
#include "rollout/engine/row_sampling.h"
#include "rollout/engine/running_call.h"
#include "rollout/engine/scheduling/scheduler.h"
#include "rollout/engine/share_exchange.h"
#include "rollout/engine/weights/engine_weights.h"

namespace quartet {
namespace {

class Engine : public RolloutEngine {
 public:
  // `options` say a length; with `fits_length` a shorter one serves where the cache has no room for it.
  Engine(const RolloutConfig& options, bool fits_length, const Tokenizer* tokenizer, const PlannedDevice& planned,
         Ledger* ledger, EngineGroups groups, std::unique_ptr<ShardedModel> model)
      : options_(options),
        fits_length_(fits_length),
        tokenizer_(tokenizer),
        planned_(planned),
        max_model_len_(options.max_model_len()),
        ledger_(ledger),
        groups_(std::move(groups)),
        weights_(std::move(model)),
        lockstep_(options.zero_stage() == 3 && groups_.all->size() > 1),
        vocabulary_(tokenizer == nullptr ? config().vocab_size : tokenizer->vocab_size()) {
    // What is never drawn ends nothing.
    for (const int64_t id : config().eos_token_ids) {
      if (id < vocabulary_) eos_token_ids_.push_back(id);
    }
    if (options.tensor_parallel_size() > 1) exchange_.emplace(config(), groups_.of_shares(), device());
    ForwardOptions forward;
    forward.max_num_seqs = std::min(options.max_num_seqs(), options.max_num_batched_tokens());
    forward.max_model_len = options.max_model_len();
    if (!options.enforce_eager()) forward.new_recorder = GraphRecordersFor(device());
    forward_.emplace(std::move(forward), &weights_, exchange_.has_value() ? &*exchange_ : nullptr, ledger);
    rows_.emplace(config().vocab_size, vocabulary_, exchange_.has_value() ? &*exchange_ : nullptr, ledger);
  }

  absl::Status MakeCache() {
    const KvCacheShape shape{.layout = {options_.block_size(), config().num_key_value_heads, config().head_dim},
                             .layers = config().num_hidden_layers,
                             .dtype = weights_.model().options().compute_dtype,
                             .format = CacheFormatFor(device())};
    const int64_t block_bytes = shape.block_bytes();
    int64_t cache_bytes = options_.kv_cache_bytes();
    if (options_.gpu_memory_utilization() > 0) {
      QUARTET_ASSIGN_OR_RETURN(cache_bytes, BudgetedCacheBytes(shape));
    }
    const int64_t blocks_a_sequence = CeilDivide(max_model_len_, options_.block_size());
    const int64_t spare = forward_->spare_blocks();
    const int64_t blocks = std::min(cache_bytes / block_bytes - spare, options_.max_num_seqs() * blocks_a_sequence);
    if (blocks < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rollout.kv_cache_bytes is ", options_.kv_cache_bytes(), "; one block of ", options_.block_size(),
          " tokens takes ", block_bytes, " bytes", spare > 0 ? ", and recorded forwards need one more" : ""));
    }
    if (fits_length_) max_model_len_ = std::min(max_model_len_, blocks * options_.block_size());
    make_cache_ = [=, this] {
      forward_->TakeCache(shape, blocks);
      forward_->Record();
    };
    const Stopwatch making;
    make_cache_();
    const double seconds = making.Seconds();
    scheduler_.emplace(SchedulerOptions{.num_blocks = blocks,
                                        .block_size = options_.block_size(),
                                        .max_num_seqs = options_.max_num_seqs(),
                                        .max_num_batched_tokens = options_.max_num_batched_tokens(),
                                        .max_model_len = max_model_len_});
    if (device().is_meta()) return absl::OkStatus();
    QUARTET_LOG(kInfo) << "KV cache: " << blocks << " blocks of " << options_.block_size() << " tokens, "
                       << blocks * block_bytes / (1 << 20) << " MiB; sequences of at most " << max_model_len_
                       << " tokens";
    if (const DecodeGraphs* graphs = forward_->graphs(); graphs != nullptr) {
      QUARTET_LOG(kInfo) << "Decoding by graphs: " << graphs->sizes().size() << " recorded for up to "
                         << graphs->sizes().back() << " sequences, with the cache in " << seconds << " s, "
                         << graphs->bytes() / (1 << 20) << " MiB";
    } else if (device().is_cuda() && !options_.enforce_eager()) {
      QUARTET_LOG(kInfo)
          << "Decoding by graphs: none; they need the whole model on each rank, bf16, and heads that the "
             "attention's kernel takes";
    }
    return absl::OkStatus();
  }

  absl::Status Check(const SamplingParams& sampling) const override {
    return CheckSamplingParams(sampling, vocab_size(), tokenizer_ != nullptr);
  }

  absl::Status Check(const SamplingParams& sampling, const GenerationTask& task) const override {
    QUARTET_RETURN_IF_ERROR(
        Prefixed(absl::StrCat("prompt ", task.prompt_index),
                 scheduler_->CheckFits(static_cast<int64_t>(task.ids.size()), sampling.max_new_tokens())));
    return CheckPrompt(sampling, task.prompt_index, task.ids, vocab_size());
  }

  void Add(const GenerationTask& task) override {
    auto call = calls_.find(task.call);
    if (call == calls_.end()) {
      std::vector<int32_t> stops(options_.stop_token_ids().begin(), options_.stop_token_ids().end());
      if (!task.sampling->ignore_eos()) stops.insert(stops.end(), eos_token_ids().begin(), eos_token_ids().end());
      call = calls_.emplace(task.call, RunningCall(task, stops, tokenizer_)).first;
    }
    call->second.sequences += task.samples;
    scheduler_->Add(task.call, task.prompt_index, task.ids, task.first_sample, task.samples,
                    /*finds_prefix=*/!task.sampling->has_prompt_logprobs());
  }

  void Cancel(uint64_t call) override {
    scheduler_->Cancel(call);
    calls_.erase(call);
    UpdateStats();
    EndReuse();
  }

  std::vector<GeneratedSequence> Abort(uint64_t call) override {
    std::vector<GeneratedSequence> aborted;
    for (const auto& sequence : scheduler_->Cancel(call)) {
      aborted.push_back(calls_.at(call).Describe(*sequence, GeneratedSequence::ABORTED));
    }
    Cancel(call);
    return aborted;
  }

  bool idle() const override { return scheduler_->idle(); }

  absl::StatusOr<StepAgreement> AgreeOnStep(int64_t batches) override {
    StepAgreement agreed = {batches, idle()};
    if (!lockstep_ && !exchange_.has_value()) return agreed;
    try {
      agreed = AgreeOn(agreed, groups_.of_shares(), device());
      if (agreed.idle) reuse_.reset();
      return agreed;
    } catch (const std::exception& error) {
      return StatusOf(error, "generation", *ledger_);
    }
  }

  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    std::vector<EngineEvent> events;
    QUARTET_CHECK(forward_->has_cache()) << "a step of an engine that sleeps";
    QUARTET_CHECK(weights_.held()) << "a step of an engine without weights";
    try {
      if (const absl::Status failed = FailPoint("rollout.step"); !failed.ok())
        throw std::runtime_error(failed.ToString());
      const Stopwatch whole_step;
      const ScheduledStep step = scheduler_->Schedule();
      const bool computes = lockstep_ || !step.chunks.empty();
      if (!computes && step.first_draws.empty()) return events;
      const TraceScope span("engine step, sequences: ", static_cast<int>(step.chunks.size()));
      if (!reuse_.has_value()) reuse_.emplace();
      for (const BlockCopy& copy : step.copies) forward_->Copy(copy);
      std::map<uint64_t, absl::Status> failed;
      const std::vector<PromptToken> prompt_tokens = PromptTokensIn(step.chunks);
      std::vector<int64_t> prompt_rows;
      for (const PromptToken& token : prompt_tokens) prompt_rows.push_back(token.row);
      at::Tensor logits_NV;
      if (computes) {
        logits_NV = forward_->Run(step.chunks, prompt_rows, [&](size_t first, size_t count, const at::Tensor& logits) {
          Score(absl::MakeConstSpan(prompt_tokens).subspan(first, count), logits, &failed);
        });
      }
      std::vector<Draw> draws;
      int64_t row = 0;
      const auto keep_row = [&] {
        const MemoryScope scope(ledger_, MemoryCategory::kLogits);
        return std::make_shared<const at::Tensor>(RowSampling::CopyOfRow(logits_NV, row));
      };
      for (const ScheduledChunk& chunk : step.chunks) {
        // What was generated before a preemption is computed again, but not drawn.
        prefill_tokens_ += chunk.count - (chunk.last && chunk.first >= chunk.sequence->prompt_len ? 1 : 0);
        for (Sequence* sequence : scheduler_->Computed(chunk, keep_row)) draws.push_back({sequence, row});
        if (chunk.last) ++row;
      }
      held_places_ += scheduler_->blocks_in_use() * options_.block_size();
      empty_places_ += scheduler_->empty_places();
      Extend(draws, logits_NV, step.first_draws, std::move(failed), &events);
      ++steps_;
      meter_.Add(whole_step.Seconds(), prefill_tokens_, generated_tokens_);
    } catch (const std::exception& error) {
      while (!calls_.empty()) Cancel(calls_.begin()->first);
      return StatusOf(error, "generation", *ledger_);
    }
    UpdateStats();
    EndReuse();
    return events;
  }

  void Sleep(bool release_weights) override {
    scheduler_->PreemptAll();
    forward_->DropCache();
    weights_.ReleaseSpare();
    if (release_weights) weights_.Release();
    reuse_.reset();
    GiveBackFreedBlocks();
    UpdateStats();
  }

  absl::StatusOr<std::optional<uint64_t>> Wake() override {
    std::optional<uint64_t> hash;
    if (forward_->has_cache()) return hash;
    const bool had_weights = has_weights();
    const absl::Status status = CatchExceptions("taking memory again after sleep", *ledger_, [&]() -> absl::Status {
      if (!has_weights() && ReadsAgain()) {
        QUARTET_ASSIGN_OR_RETURN(const uint64_t read, weights_.ReadAgain());
        if (adapters() != nullptr) hash = read;
      }
      make_cache_();
      return absl::OkStatus();
    });
    if (status.ok()) return hash;
    Sleep(/*release_weights=*/!had_weights);
    return status;
  }

  bool has_weights() const override { return weights_.held(); }
  const AdapterConfig* adapters() const override { return config().lora.has_value() ? &*config().lora : nullptr; }
  uint64_t base_hash() const override { return weights_.model().folder_hash(); }
  int64_t model_parameters() const override {
    int64_t parameters = 0;
    for (const ParameterGroup& group : weights_.model().layout().groups) {
      for (const ParameterSpec& tensor : group.parameters) parameters += tensor.stored_numel();
    }
    return parameters;
  }

  const std::vector<ParameterSpec>& tensors() const override { return weights_.tensors(); }
  Dtype resident_dtype() const override {
    return weights_.model().options().compute_dtype == at::kFloat ? Dtype::kF32 : Dtype::kBF16;
  }

  std::unique_ptr<WeightStaging> NewStaging() override { return weights_.NewStaging(); }
  void ReserveStaging() override { weights_.ReserveStaging(); }

  void Commit(std::unique_ptr<WeightStaging> staging, uint64_t version) override {
    weights_.Use(*staging);
    // Only where the weights had been given back: else the new ones lie where the old ones did.
    const absl::Status recorded = CatchExceptions("recording forwards", *ledger_, [this] {
      forward_->Record();
      return absl::OkStatus();
    });
    if (!recorded.ok()) QUARTET_LOG(kWarning) << recorded << "; decoding goes on without";
    scheduler_->FlushPrefixes();
    for (auto& [id, call] : calls_) call.prompts.ForgetParts();
    version_ = version;
  }

  uint64_t version() const override { return version_; }
  int64_t max_model_len() const override { return max_model_len_; }
  int64_t vocab_size() const override { return vocabulary_; }
  const std::vector<int64_t>& eos_token_ids() const override { return eos_token_ids_; }

  EngineStats stats() const override {
    const std::lock_guard lock(stats_mutex_);
    return stats_;
  }

  void DescribeDevice(RankInfo* info) const override { quartet::DescribeDevice(device(), info); }

 private:
  const ModelConfig& config() const { return weights_.model().config(); }
  at::Device device() const { return weights_.model().options().device; }

  // Once nothing is left to generate. Ranks in lockstep go on for the others, and agree when that is (AgreeOnStep).
  void EndReuse() {
    if (!lockstep_ && idle()) reuse_.reset();
  }

  // What rollout.gpu_memory_utilization leaves for the cache, the least that any rank found: a prompt that fits into
  // the leader's cache fits into all. Collective.
  absl::StatusOr<int64_t> BudgetedCacheBytes(const KvCacheShape& shape) {
    // A sequence's, where it is known how long they are.
    const int64_t least_blocks = fits_length_ ? 1 : CeilDivide(max_model_len_, options_.block_size());
    const absl::StatusOr<CacheBudget> budget =
        MeasureCacheBudget(options_, planned_, shape, least_blocks, device(), &*forward_, ledger_);
    if (!budget.ok() && (lockstep_ || exchange_.has_value())) {
      // The others may be in a collective of the forward: what they agree by would be taken for it.
      groups_.Leave(absl::StrCat("it failed to measure its cache: ", budget.status().message()));
      return budget.status();
    }
    absl::StatusOr<int64_t> bytes = budget.ok() ? CacheBytesWithin(*budget) : budget.status();
    if (groups_.all->size() == 1) return bytes;
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(*groups_.all, bytes.status(), device()));
    if (device().is_meta()) return bytes;
    std::vector<int64_t> least = {-*bytes};
    const at::Tensor of_all = at::from_blob(least.data(), {1}, at::kLong).to(device());
    groups_.all->AllReduceMax(of_all)->Wait();
    return -of_all.item<int64_t>();
  }

  void UpdateStats() {
    const std::lock_guard lock(stats_mutex_);
    stats_.set_steps(steps_);
    stats_.set_replayed(forward_->replays());
    stats_.set_running(scheduler_->running());
    stats_.set_waiting(scheduler_->waiting());
    stats_.set_blocks(scheduler_->num_blocks());
    stats_.set_blocks_in_use(scheduler_->blocks_in_use());
    stats_.set_held_places(held_places_);
    stats_.set_empty_places(empty_places_);
    stats_.set_preemptions(scheduler_->preemptions());
    stats_.set_prefill_tokens(prefill_tokens_);
    stats_.set_generated_tokens(generated_tokens_);
    stats_.set_admitted_tokens(scheduler_->admitted_tokens());
    stats_.set_cached_tokens(scheduler_->cached_tokens());
    int64_t sent = 0, received = 0;
    for (int kind = 0; kind < kCollectiveKinds; ++kind) {
      const CommVolume volume = groups_.of_shares()->volume(static_cast<CollectiveKind>(kind));
      sent += volume.sent_bytes;
      received += volume.received_bytes;
    }
    stats_.set_sent_bytes(sent);
    stats_.set_received_bytes(received);
    stats_.set_prefill_tokens_per_second(meter_.prefill_rate());
    stats_.set_generated_tokens_per_second(meter_.generated_rate());
    to_first_token_.WriteTo(stats_.mutable_to_first_token());
    between_tokens_.WriteTo(stats_.mutable_between_tokens());
  }

  // How many tokens of its prompt need no score (any more).
  int64_t KnownPromptTokens(const Sequence& sequence) const {
    const RunningCall& call = calls_.at(sequence.call);
    return call.sampling().has_prompt_logprobs() ? call.prompts.next(sequence.prompt_index) : sequence.prompt_len;
  }

  // The tokens of prompts that need one.
  std::vector<PromptToken> PromptTokensIn(const std::vector<ScheduledChunk>& chunks) const {
    std::vector<PromptToken> tokens;
    int64_t row = 0;
    for (const ScheduledChunk& chunk : chunks) {
      const int64_t known = KnownPromptTokens(*chunk.sequence);
      for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i, ++row) {
        if (i + 1 >= known && i + 1 < chunk.sequence->prompt_len) tokens.push_back({chunk.sequence, i + 1, row});
      }
    }
    return tokens;
  }

  // Takes down the log-probabilities of tokens of prompts, from a row of logits each.
  void Score(absl::Span<const PromptToken> tokens, const at::Tensor& logits, std::map<uint64_t, absl::Status>* failed) {
    std::vector<absl::StatusOr<SampledToken>> scored = rows_->Score(tokens, logits, calls_);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Sequence& sequence = *tokens[i].sequence;
      absl::Status taken = calls_.at(sequence.call)
                               .prompts.Take(sequence.prompt_index, sequence.prompt_len, tokens[i].position, version_,
                                             std::move(scored[i]));
      if (!taken.ok()) failed->emplace(sequence.call, std::move(taken));
    }
  }

  // Draws the next tokens, and gives away the sequences that end with them and the calls that `failed`, in order: all
  // ranks must cancel in the same.
  void Extend(std::vector<Draw> draws, const at::Tensor& logits, const std::vector<FirstDraws>& first_draws,
              std::map<uint64_t, absl::Status> failed, std::vector<EngineEvent>* events) {
    const TraceScope span("sample");
    std::vector<absl::StatusOr<SampledToken>> drawn = rows_->DrawAll(draws, logits, calls_);
    for (const FirstDraws& first : first_draws) {
      std::vector<Draw> of_row;
      for (Sequence* sequence : first.sequences) of_row.push_back({sequence, 0});
      std::vector<absl::StatusOr<SampledToken>> some =
          rows_->DrawAll(of_row, *static_cast<const at::Tensor*>(first.row.get()), calls_);
      draws.insert(draws.end(), of_row.begin(), of_row.end());
      drawn.insert(drawn.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
    const auto now = std::chrono::steady_clock::now();
    for (size_t i = 0; i < draws.size(); ++i) {
      const Sequence& sequence = *draws[i].sequence;
      if (failed.contains(sequence.call)) continue;
      if (calls_.at(sequence.call).sampling().max_new_tokens() == 0) {
        End(draws[i].sequence, GeneratedSequence::LENGTH, events);
      } else if (!drawn[i].ok()) {
        failed.emplace(sequence.call, Prefixed(absl::StrCat("prompt ", sequence.prompt_index, ", sample ",
                                                            sequence.sample, ", token ", sequence.ids.size()),
                                               drawn[i].status()));
      } else {
        Append(draws[i].sequence, *std::move(drawn[i]), now, events);
      }
    }
    for (auto& [call, status] : failed) {
      Cancel(call);
      events->push_back({call, std::move(status)});
    }
  }

  void Append(Sequence* sequence, SampledToken token, std::chrono::steady_clock::time_point now,
              std::vector<EngineEvent>* events) {
    const RunningCall& call = calls_.at(sequence->call);
    const std::chrono::duration<double> since = now - std::exchange(sequence->last_token, now);
    (sequence->log_probs.empty() ? to_first_token_ : between_tokens_).Add(since.count());
    const auto ended = call.Append(std::move(token), version_, sequence);
    ++generated_tokens_;
    if (auto tokens = call.Streamed(*sequence)) events->push_back({sequence->call, *std::move(tokens)});
    if (ended.has_value()) End(sequence, *ended, events);
  }

  void End(Sequence* sequence, GeneratedSequence::FinishReason reason, std::vector<EngineEvent>* events) {
    const auto call = calls_.find(sequence->call);
    events->push_back({call->first, call->second.Describe(*sequence, reason)});
    scheduler_->Finish(sequence);
    if (--call->second.sequences == 0) calls_.erase(call);
  }

  const RolloutConfig options_;
  const bool fits_length_;
  const Tokenizer* const tokenizer_;
  const PlannedDevice planned_;
  int64_t max_model_len_;  // tokens; as it is once there is a cache
  Ledger* const ledger_;
  const EngineGroups groups_;
  EngineWeights weights_;
  const bool lockstep_;
  const int64_t vocabulary_;  // token ids that there are, of the model's vocab_size
  std::vector<int64_t> eos_token_ids_;
  std::optional<ShareExchange> exchange_;  // tensor-parallel
  std::optional<ReuseScope> reuse_;        // from the first forward to the last, and not in sleep
  std::optional<ForwardPass> forward_;     // without a cache while the engine sleeps
  std::function<void()> make_cache_;
  std::optional<Scheduler> scheduler_;
  std::optional<RowSampling> rows_;
  std::atomic<uint64_t> version_ = 0;
  RowSampling::Calls calls_;  // that have sequences
  int64_t steps_ = 0;
  int64_t prefill_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  int64_t held_places_ = 0;
  int64_t empty_places_ = 0;
  RateMeter meter_;
  DurationCounter to_first_token_, between_tokens_;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // guarded by stats_mutex_
};

}  // namespace

absl::StatusOr<std::unique_ptr<RolloutEngine>> RolloutEngine::Load(const RolloutConfig& options,
                                                                   const RankContext& context, Ledger* ledger,
                                                                   const Tokenizer* tokenizer,
                                                                   const PlannedDevice& planned,
                                                                   const std::optional<LoraOptions>& lora) {
  try {
    RolloutConfig filled = options;
    FillRules(&filled);
    QUARTET_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(filled, context, ledger, tokenizer, lora));
    auto engine = std::make_unique<Engine>(loaded.options, /*fits_length=*/filled.max_model_len() == 0, tokenizer,
                                           planned, ledger, std::move(loaded.groups), std::move(loaded.model));
    QUARTET_RETURN_IF_ERROR(engine->MakeCache());
    return engine;
  } catch (const std::exception& error) {
    return StatusOf(error, "loading the rollout's model", *ledger);
  }
}

}  // namespace quartet
