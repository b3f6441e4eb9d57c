#include "core/config/defaults.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/batches/micro_batches.h"
#include "core/config/batches/updates.h"
#include "core/config/checks/conditions.h"
#include "core/config/eval_sets.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/rl/estimators.h"
#include "core/rl/policy_losses.h"
#include "core/zero/optimizer/optimizer_options.h"

namespace quartet {
namespace {

#define QUARTET_DEFAULT(message, field, value) \
  if (!(message)->has_##field()) (message)->set_##field(value)
#define QUARTET_DEFAULT_TEXT(message, field, value) \
  if ((message)->field().empty()) (message)->set_##field(value)

// Of a path.
std::string LastPart(absl::string_view path) {
  while (absl::ConsumeSuffix(&path, "/")) {
  }
  return std::string(path.substr(path.rfind('/') + 1));
}

// What HTTP's clients call the policy: by the run that trains it, or by the folder of a model that is served as it is.
// Of a run's checkpoint, RUN/checkpoints/step_N/policy, the run and the step.
std::string ServedName(const RunConfig& c) {
  if (!c.actor().pretrain().empty()) return LastPart(c.run_dir());
  const std::vector<absl::string_view> parts = absl::StrSplit(c.rollout().pretrain(), '/', absl::SkipEmpty());
  const size_t n = parts.size();
  if (n >= 4 && parts[n - 1] == "policy" && parts[n - 3] == "checkpoints") {
    return absl::StrCat(parts[n - 4], "/", parts[n - 2]);
  }
  return LastPart(c.rollout().pretrain());
}

// Micro-batches are filled by tokens unless sequences are counted: by `sequences`, which is whether a field that counts
// them is set.
template <typename Section>
void FillMicroBatchTokens(const RunConfig& config, bool sequences, int max_len, Section* section) {
  QUARTET_DEFAULT(section, max_tokens_per_micro_batch, sequences ? 0 : DefaultMicroBatchTokens(config, max_len));
}

void FillTrainer(const RunConfig& config, double learning_rate, int max_len, TrainerConfig* t) {
  QUARTET_DEFAULT(t, zero_stage, 3);
  QUARTET_DEFAULT_TEXT(t, dtype, "bf16");
  FillOptimizer(t);
  if (IsScaleFree(*t)) QUARTET_DEFAULT(t, learning_rate, learning_rate);
  QUARTET_DEFAULT_TEXT(t, lr_scheduler, "cosine");
  QUARTET_DEFAULT(t, lr_warmup_ratio, 0.03);
  QUARTET_DEFAULT(t, min_lr_ratio, 0.1);
  QUARTET_DEFAULT(t, weight_decay, 0);
  QUARTET_DEFAULT(t, max_norm, 1);
  QUARTET_DEFAULT(t, gradient_checkpointing, true);
  QUARTET_DEFAULT(t, max_len, max_len);
  FillMicroBatchTokens(config, t->has_micro_train_batch_size() || t->has_micro_rollout_batch_size(), t->max_len(), t);
  if (t->max_tokens_per_micro_batch() == 0) {
    QUARTET_DEFAULT(t, micro_train_batch_size, t->has_micro_rollout_batch_size() ? t->micro_rollout_batch_size() : 1);
    QUARTET_DEFAULT(t, micro_rollout_batch_size, t->micro_train_batch_size());
  }
  QUARTET_DEFAULT(t, allow_zero_learning_rate, false);
  QUARTET_DEFAULT(t, shard_size, 0);
  QUARTET_DEFAULT(t, adam_offload, false);
  QUARTET_DEFAULT(t, offload_param, false);
  QUARTET_DEFAULT(t, activation_offload, false);
  QUARTET_DEFAULT(t, no_sync, false);
  QUARTET_DEFAULT(t, ema_decay, 0);
}

void FillImportanceCorrection(ImportanceCorrectionConfig* i) {
  QUARTET_DEFAULT_TEXT(i, mode, "off");
  QUARTET_DEFAULT_TEXT(i, gating, "ratio");
  QUARTET_DEFAULT(i, threshold_low, 0);
  QUARTET_DEFAULT(i, threshold_high, 2);
}

void FillAlgorithm(int generate_max_len, AlgorithmConfig* a) {
  QUARTET_DEFAULT_TEXT(a, advantage_estimator, "gae");
  constexpr AdvantageEstimator kUnknown;  // which is refused later
  const AdvantageEstimator* const found = FindEstimator(a->advantage_estimator());
  const AdvantageEstimator& estimator = found == nullptr ? kUnknown : *found;
  QUARTET_DEFAULT(a, gamma, 1);
  QUARTET_DEFAULT(a, max_epochs, 1);
  QUARTET_DEFAULT(a, lambd, 1);
  QUARTET_DEFAULT(a, value_clip, 0.2f);
  QUARTET_DEFAULT(a, critic_epochs, a->max_epochs());
  QUARTET_DEFAULT(a, critic_warmup_steps, 0);
  QUARTET_DEFAULT(a, group_std_eps, 1e-9);
  QUARTET_DEFAULT_TEXT(a, group_std_scale, "group");
  QUARTET_DEFAULT_TEXT(a, group_baseline, "mean");
  QUARTET_DEFAULT_TEXT(a, reward_clip_placement, "after_baseline");
  QUARTET_DEFAULT_TEXT(a, advantage_normalization, std::string(estimator.normalization));
  QUARTET_DEFAULT_TEXT(a, whitening_variance, "population");

  QUARTET_DEFAULT_TEXT(a, policy_loss, "ppo");
  const PolicyLossTraits* const known = FindPolicyLoss(a->policy_loss());
  const PolicyLossTraits loss = known == nullptr ? PolicyLossTraits() : *known;
  QUARTET_DEFAULT(a, eps_clip, 0.2f);
  QUARTET_DEFAULT(a, eps_clip_low, a->eps_clip());
  QUARTET_DEFAULT(a, eps_clip_high, a->eps_clip());
  QUARTET_DEFAULT(a, dual_clip, 0);
  QUARTET_DEFAULT(a, entropy_coef, 0);
  QUARTET_DEFAULT(a, entropy_after_temperature, false);
  QUARTET_DEFAULT_TEXT(
      a, loss_aggregation,
      std::string(estimator.loss_aggregation.empty() ? loss.loss_aggregation : estimator.loss_aggregation));
  QUARTET_DEFAULT(a, loss_constant, generate_max_len);
  QUARTET_DEFAULT_TEXT(a, old_log_prob_source, "auto");
  FillImportanceCorrection(a->mutable_importance_correction());

  KlConfig* k = a->mutable_kl();
  QUARTET_DEFAULT(k, init_kl_coef, 0.01f);
  QUARTET_DEFAULT(k, use_kl_loss, false);
  QUARTET_DEFAULT_TEXT(k, kl_estimator, k->use_kl_loss() ? "k3" : "k1");
  QUARTET_DEFAULT_TEXT(k, kl_clamp, "all");
  QUARTET_DEFAULT_TEXT(k, kl_gradient, "estimator");
  QUARTET_DEFAULT_TEXT(k, kl_placement, "token");
  QUARTET_DEFAULT(k, kl_target, 0);
  QUARTET_DEFAULT(k, kl_horizon, 10000);
  QUARTET_DEFAULT_TEXT(k, kl_mean, "token");

  QUARTET_DEFAULT(a, reward_clip_min, -10);
  QUARTET_DEFAULT(a, reward_clip_max, 10);
  DynamicSamplingConfig* d = a->mutable_dynamic_sampling();
  QUARTET_DEFAULT_TEXT(d, filter, "none");
  QUARTET_DEFAULT(d, range_low, 0);
  QUARTET_DEFAULT(d, range_high, 1);
  QUARTET_DEFAULT(d, max_num_gen_batches, 10);
  QUARTET_DEFAULT(a, overlong_buffer_len, 0);
  QUARTET_DEFAULT(a, overlong_penalty_factor, 1);
  QUARTET_DEFAULT(a, overlong_filtering, false);
}

// Of n answers.
void FillK(int n, google::protobuf::RepeatedField<int32_t>* k) {
  if (!k->empty()) return;
  k->Add(1);
  if (n > 1) k->Add(n);
}

void FillEval(const DataConfig& d, EvalConfig* e) {
  QUARTET_DEFAULT(e, eval_steps, 0);
  QUARTET_DEFAULT(e, max_samples, 0);
  QUARTET_DEFAULT(e, temperature, 0);
  QUARTET_DEFAULT(e, top_p, 1);
  QUARTET_DEFAULT(e, n_samples_per_prompt, 1);
  for (EvalSet& s : *e->mutable_set()) {
    QUARTET_DEFAULT_TEXT(&s, name, StemOf(s.data()));
    QUARTET_DEFAULT_TEXT(&s, input_key, d.input_key());
    QUARTET_DEFAULT_TEXT(&s, label_key, d.label_key());
    QUARTET_DEFAULT_TEXT(&s, label_extract, d.label_extract());
    QUARTET_DEFAULT(&s, max_samples, e->max_samples());
    QUARTET_DEFAULT(&s, temperature, e->temperature());
    QUARTET_DEFAULT(&s, top_p, e->top_p());
    QUARTET_DEFAULT(&s, n_samples_per_prompt, e->n_samples_per_prompt());
    if (s.k().empty()) *s.mutable_k() = e->k();  // empty where nothing is said there either
    FillK(s.n_samples_per_prompt(), s.mutable_k());
  }
  FillK(e->n_samples_per_prompt(), e->mutable_k());
}

void FillSource(RewardSource* s, int generate_max_len) {
  const bool remote = !s->remote_url().empty(), command = !s->command().empty(), code = !s->code().empty();
  QUARTET_DEFAULT_TEXT(s, name,
                       !s->rule().empty() ? s->rule()
                       : remote           ? "remote"
                       : command          ? "command"
                       : code             ? "code"
                                          : "model");
  QUARTET_DEFAULT(s, weight, 1);
  if (s->rule() == "choice") QUARTET_DEFAULT_TEXT(s, choices, "ABCD");
  if (s->rule() == "length") {
    QUARTET_DEFAULT(s, min_len, 0);
    QUARTET_DEFAULT(s, max_len, generate_max_len);
    QUARTET_DEFAULT(s, len_buffer, 1);
  }
  if (!s->model().empty()) {
    QUARTET_DEFAULT_TEXT(s, dtype, "bf16");
    QUARTET_DEFAULT(s, zero_stage, 3);
    QUARTET_DEFAULT(s, normalize_reward, false);
  }
  if (remote) {
    QUARTET_DEFAULT(s, max_batch_size, 64);
    QUARTET_DEFAULT(s, workers, 4);
  }
  if (code) QUARTET_DEFAULT_TEXT(s, code_score, "all");
  if (remote || command || code) QUARTET_DEFAULT(s, timeout_seconds, remote ? 180 : command ? 30 : 10);
  if (remote || command || code) QUARTET_DEFAULT(s, max_tries, remote ? 5 : 2);
  if (command || code) QUARTET_DEFAULT(s, memory_limit_bytes, code ? int64_t{1} << 30 : 0);
}

void FillPlacement(ServicePlacement* p, absl::string_view listen, int64_t largest_call) {
  QUARTET_DEFAULT_TEXT(p, listen, std::string(listen));
  QUARTET_DEFAULT(p, ranks, 1);
  QUARTET_DEFAULT(p, threads, 0);
  QUARTET_DEFAULT(p, collective_timeout_seconds, 300);
  QUARTET_DEFAULT(p, device_memory_budget, 0);
  QUARTET_DEFAULT(p, host_memory_budget, 0);
  QUARTET_DEFAULT_TEXT(p, collective_backend, "auto");
  QUARTET_DEFAULT(p, max_call_items, int64_t{1} << 20);
  QUARTET_DEFAULT(p, max_call_bytes, std::max(int64_t{1} << 30, largest_call));
  QUARTET_DEFAULT(p, max_calls_bytes, 4 * p->max_call_bytes());
}

}  // namespace

int PlacedGpus(const GpuPlacement& p, const ClusterConfig& cluster) {
  const int64_t nodes = p.nodes().empty() ? cluster.num_nodes() : p.nodes_size();
  const int64_t gpus = p.gpus().empty() ? cluster.num_gpus_per_node() : p.gpus_size();
  return nodes > 0 && gpus > 0 && nodes * gpus <= kMaxRanks ? static_cast<int>(nodes * gpus) : 1;
}

// In the order of proto/run_config.proto.
std::vector<const Need*> FillDefaults(RunConfig* c) {
  QUARTET_DEFAULT_TEXT(c, run_dir,
                       absl::StrCat("runs/", absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone())));
  QUARTET_DEFAULT(c, seed, 42);

  DataConfig* d = c->mutable_data();
  QUARTET_DEFAULT_TEXT(d, input_key, "prompt");
  QUARTET_DEFAULT_TEXT(d, label_key, "label");
  QUARTET_DEFAULT(d, label_required, d->label_key() != "label");
  QUARTET_DEFAULT_TEXT(d, source_key, "data_source");
  QUARTET_DEFAULT_TEXT(d, input_template, "{}");
  QUARTET_DEFAULT(d, apply_chat_template, false);
  QUARTET_DEFAULT(d, prompt_max_len, 1024);
  QUARTET_DEFAULT(d, filter_overlong_prompts, true);
  QUARTET_DEFAULT(d, skip_malformed, false);
  QUARTET_DEFAULT(d, checked_rows, 100000);
  QUARTET_DEFAULT(d, shuffle, true);
  QUARTET_DEFAULT(d, max_samples, 0);

  RolloutConfig* r = c->mutable_rollout();
  QUARTET_DEFAULT(r, rollout_batch_size, 128);
  QUARTET_DEFAULT(r, n_samples_per_prompt, 1);
  QUARTET_DEFAULT(r, over_sampling_batch_size, r->rollout_batch_size());
  QUARTET_DEFAULT(r, generate_max_len, 1024);
  QUARTET_DEFAULT(r, temperature, 1);
  QUARTET_DEFAULT(r, top_p, 1);
  QUARTET_DEFAULT(r, top_k, -1);
  QUARTET_DEFAULT_TEXT(r, dtype, "bf16");
  QUARTET_DEFAULT(r, zero_stage, 0);
  QUARTET_DEFAULT(r, kv_cache_bytes, int64_t{1} << 30);
  QUARTET_DEFAULT(r, block_size, 16);
  // Both lengths are checked before their sum is used for anything.
  const int64_t both = int64_t{d->prompt_max_len()} + r->generate_max_len();
  const int max_len = both > 0 && both <= 2 * kMaxTokens ? static_cast<int>(both) : 1;
  // People who talk to the policy have other lengths than the run.
  QUARTET_DEFAULT(r, max_model_len, r->has_http() ? 0 : max_len);
  QUARTET_DEFAULT(r, max_num_seqs, 256);
  QUARTET_DEFAULT(r, max_num_batched_tokens, 2048);
  QUARTET_DEFAULT(r, max_waiting, 65536);
  QUARTET_DEFAULT(r, max_calls, 1024);
  QUARTET_DEFAULT(r, tensor_parallel_size, 1);
  QUARTET_DEFAULT(r, enforce_eager, false);
  QUARTET_DEFAULT_TEXT(r, pretrain, c->actor().pretrain());
  if (r->has_http()) {
    QUARTET_DEFAULT_TEXT(r->mutable_http(), served_model_name, ServedName(*c));
    QUARTET_DEFAULT(r->mutable_http(), max_bodies_bytes, int64_t{256} << 20);
  }

  FillAlgorithm(r->generate_max_len(), c->mutable_algorithm());

  FillTrainer(*c, 1e-6, max_len, c->mutable_actor());
  FillTrainer(*c, 9e-6, max_len, c->mutable_critic());
  ReferenceConfig* f = c->mutable_reference();
  QUARTET_DEFAULT_TEXT(f, pretrain, c->actor().pretrain());
  QUARTET_DEFAULT_TEXT(f, dtype, c->actor().dtype());
  QUARTET_DEFAULT(f, zero_stage, 3);
  QUARTET_DEFAULT(f, max_tokens_per_micro_batch, c->actor().max_tokens_per_micro_batch());

  RewardConfig* w = c->mutable_reward();
  bool any_model = false;
  for (RewardSource& s : *w->mutable_source()) {
    FillSource(&s, r->generate_max_len());
    any_model |= !s.model().empty();
  }
  if (!w->source().empty()) QUARTET_DEFAULT_TEXT(w, on_error, "stop");
  // Rules have no micro-batches.
  if (any_model) {
    FillMicroBatchTokens(*c, w->has_micro_rollout_batch_size(), c->actor().max_len(), w);
    if (w->max_tokens_per_micro_batch() == 0) QUARTET_DEFAULT(w, micro_rollout_batch_size, 8);
  }

  TrainConfig* t = c->mutable_train();
  QUARTET_DEFAULT(t, max_steps, 0);
  QUARTET_DEFAULT(t, num_episodes, 1);
  const int64_t sequences = SequencesPerBatch(*c);
  const bool countable = sequences > 0 && sequences <= std::numeric_limits<int32_t>::max();
  if (!t->has_updates_per_batch()) {
    QUARTET_DEFAULT(t, train_batch_size, countable ? static_cast<int32_t>(sequences) : 1);
  }
  if (t->has_updates_per_batch() && !t->has_critic_train_batch_size()) {
    QUARTET_DEFAULT(t, critic_updates_per_batch, t->updates_per_batch());
  } else if (!t->has_critic_updates_per_batch()) {
    QUARTET_DEFAULT(t, critic_train_batch_size, t->train_batch_size());
  }
  QUARTET_DEFAULT(t, save_steps, 0);
  QUARTET_DEFAULT(t, call_timeout_seconds, 600);
  QUARTET_DEFAULT(t, max_log_prob_diff_mean, 0.5f);
  QUARTET_DEFAULT(t, save_optimizer, t->save_steps() > 0);
  QUARTET_DEFAULT(t, load_checkpoint, false);
  QUARTET_DEFAULT(t, allow_changed_run, false);
  QUARTET_DEFAULT(t, max_ckpt_num, 3);

  SftConfig* s = c->mutable_sft();
  QUARTET_DEFAULT_TEXT(s, input_key, "prompt");
  QUARTET_DEFAULT_TEXT(s, output_key, "response");
  QUARTET_DEFAULT(s, batch_size, 32);
  QUARTET_DEFAULT(s, max_steps, 0);
  QUARTET_DEFAULT(s, max_epochs, 1);
  if (IsScaleFree(c->actor())) QUARTET_DEFAULT(s, learning_rate, 1e-4);
  QUARTET_DEFAULT(s, multiturn, false);

  // The learning rate has another default in each program (ResolveFor).
  PreferenceConfig* p = c->mutable_preference();
  QUARTET_DEFAULT(p, eval_steps, 0);
  QUARTET_DEFAULT_TEXT(p, input_key, "prompt");
  QUARTET_DEFAULT_TEXT(p, chosen_key, "chosen");
  QUARTET_DEFAULT_TEXT(p, rejected_key, "rejected");
  QUARTET_DEFAULT_TEXT(p, loss, "sigmoid");
  QUARTET_DEFAULT(p, beta, 0.1f);
  QUARTET_DEFAULT(p, label_smoothing, 0);
  QUARTET_DEFAULT(p, batch_size, 32);
  QUARTET_DEFAULT(p, max_epochs, 1);
  QUARTET_DEFAULT(p, max_steps, 0);

  FillEval(*d, c->mutable_eval());

  if (c->has_cluster()) {
    ClusterConfig* h = c->mutable_cluster();
    QUARTET_DEFAULT(h, num_nodes, 1);
    QUARTET_DEFAULT(h, num_gpus_per_node, 8);
    QUARTET_DEFAULT(h, host_memory_bytes, 0);
    QUARTET_DEFAULT(h, intra_node_gbps, 0);
    QUARTET_DEFAULT(h, inter_node_gbps, 0);
  }

  ServicesConfig* v = c->mutable_services();
  QUARTET_DEFAULT_TEXT(v, device, "cpu");
  for (const std::string& service : kServiceNames) {
    QUARTET_DEFAULT_TEXT(MutablePlacementOf(c, service), device, v->device());
  }
  // On a cluster's GPUs a service has one rank on each that it is placed on: all of them, where nothing else is said.
  for (const std::string& service : kServiceNames) {
    if (!c->has_cluster() || PlacementOf(*c, service).device() != "cuda") continue;
    const auto placed = std::find_if(c->placement().begin(), c->placement().end(),
                                     [&](const GpuPlacement& p) { return p.service() == service; });
    const int gpus = PlacedGpus(placed == c->placement().end() ? GpuPlacement() : *placed, c->cluster());
    QUARTET_DEFAULT(MutablePlacementOf(c, service), ranks, gpus);
  }
  const int64_t largest_call = LargestCallBytes(*c);
  FillPlacement(v->mutable_rollout(), "127.0.0.1:50051", largest_call);
  FillPlacement(v->mutable_policy_trainer(), "127.0.0.1:50052", largest_call);
  FillPlacement(v->mutable_critic_trainer(), "127.0.0.1:50053", largest_call);
  FillPlacement(v->mutable_scorer(), "127.0.0.1:50054", largest_call);
  return ClearIdle(c);
}

#undef QUARTET_DEFAULT
#undef QUARTET_DEFAULT_TEXT

}  // namespace quartet
