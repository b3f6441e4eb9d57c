#include "core/config/resolving/defaults.h"

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
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/eval_sets.h"
#include "core/config/placement.h"
#include "core/config/services.h"
#include "core/field_rules/field_rules.h"
#include "core/model/lora_options.h"
#include "core/rl/options/estimators.h"
#include "core/rl/options/policy_losses.h"

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

// What every configuration has; the others are there where somebody asks for them.
void AddSections(RunConfig* c) {
  c->mutable_data();
  c->mutable_rollout();
  AlgorithmConfig* a = c->mutable_algorithm();
  a->mutable_kl();
  a->mutable_importance_correction();
  a->mutable_dynamic_sampling();
  c->mutable_actor();
  c->mutable_critic();
  c->mutable_reference();
  c->mutable_reward();
  c->mutable_train();
  c->mutable_eval();
  for (const std::string& service : kServiceNames) MutablePlacementOf(c, service);
}

// Micro-batches are filled by tokens unless sequences are counted: by `sequences`, which is whether a field that counts
// them is set.
template <typename Section>
void FillMicroBatchTokens(const RunConfig& config, bool sequences, int max_len, Section* section) {
  QUARTET_DEFAULT(section, max_tokens_per_micro_batch, sequences ? 0 : DefaultMicroBatchTokens(config, max_len));
}

void FillTrainer(const RunConfig& config, int max_len, TrainerConfig* t) {
  QUARTET_DEFAULT(t, max_len, max_len);
  FillMicroBatchTokens(config, t->has_micro_train_batch_size() || t->has_micro_rollout_batch_size(), t->max_len(), t);
  if (t->max_tokens_per_micro_batch() == 0) {
    QUARTET_DEFAULT(t, micro_train_batch_size, t->has_micro_rollout_batch_size() ? t->micro_rollout_batch_size() : 1);
    QUARTET_DEFAULT(t, micro_rollout_batch_size, t->micro_train_batch_size());
  }
}

void FillAlgorithm(int generate_max_len, AlgorithmConfig* a) {
  constexpr AdvantageEstimator kUnknown;  // which is refused later
  const AdvantageEstimator* const found = FindEstimator(a->advantage_estimator());
  const AdvantageEstimator& estimator = found == nullptr ? kUnknown : *found;
  QUARTET_DEFAULT(a, critic_epochs, a->max_epochs());
  QUARTET_DEFAULT_TEXT(a, advantage_normalization, std::string(estimator.normalization));

  const PolicyLossTraits* const known = FindPolicyLoss(a->policy_loss());
  const PolicyLossTraits loss = known == nullptr ? PolicyLossTraits() : *known;
  QUARTET_DEFAULT(a, eps_clip_low, a->eps_clip());
  QUARTET_DEFAULT(a, eps_clip_high, a->eps_clip());
  QUARTET_DEFAULT_TEXT(
      a, loss_aggregation,
      std::string(estimator.loss_aggregation.empty() ? loss.loss_aggregation : estimator.loss_aggregation));
  QUARTET_DEFAULT(a, loss_constant, generate_max_len);
  // The share that the buffer has in DAPO.
  QUARTET_DEFAULT(a, overlong_buffer_len, a->overlong_penalty_factor() != 0 ? std::max(1, generate_max_len / 5) : 0);
  QUARTET_DEFAULT(a, overlong_penalty_factor, 1);
  KlConfig* k = a->mutable_kl();
  QUARTET_DEFAULT_TEXT(k, kl_estimator, k->use_kl_loss() ? "k3" : "k1");
}

// Of n answers.
void FillK(int n, google::protobuf::RepeatedField<int32_t>* k) {
  if (!k->empty()) return;
  k->Add(1);
  if (n > 1) k->Add(n);
}

void FillEval(const DataConfig& d, EvalConfig* e) {
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
  if (s->rule() == "choice") QUARTET_DEFAULT_TEXT(s, choices, "ABCD");
  if (s->rule() == "length") {
    QUARTET_DEFAULT(s, min_len, 0);
    QUARTET_DEFAULT(s, max_len, generate_max_len);
    QUARTET_DEFAULT(s, len_buffer, 1);
  }
  if (!s->model().empty()) {
    QUARTET_DEFAULT_TEXT(s, dtype, "bf16");
    QUARTET_DEFAULT(s, zero_stage, 3);
    QUARTET_DEFAULT(s, offload_param, false);
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

// More would take memory, and start at the same time, for little.
constexpr int64_t kMostProcesses = 64;

void FillAgent(const RolloutConfig& r, AgentConfig* a) {
  const int64_t episodes = int64_t{r.over_sampling_batch_size()} * r.n_samples_per_prompt();
  const int64_t processes = std::min<int64_t>({episodes, r.max_calls(), kMostProcesses});
  QUARTET_DEFAULT(a, processes, static_cast<int32_t>(std::max<int64_t>(processes, 1)));
}

void FillPlacement(ServicePlacement* p, absl::string_view listen, int64_t largest_call) {
  QUARTET_DEFAULT_TEXT(p, listen, std::string(listen));
  QUARTET_DEFAULT(p, ranks, 1);
  QUARTET_DEFAULT(p, max_call_bytes, std::max(kMostCallBytes, largest_call));
  QUARTET_DEFAULT(p, max_calls_bytes, 4 * p->max_call_bytes());
}

}  // namespace

std::vector<const Need*> FillDefaults(Program program, RunConfig* c) {
  AddSections(c);
  const bool sizes_cache = c->rollout().has_kv_cache_bytes() || c->rollout().has_gpu_memory_utilization();
  FillRules(c);
  FillDefaultsOf(program, c);
  QUARTET_DEFAULT_TEXT(c, run_dir,
                       absl::StrCat("runs/", absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone())));

  DataConfig* d = c->mutable_data();
  QUARTET_DEFAULT(d, label_required, d->label_key() != "label");

  RolloutConfig* r = c->mutable_rollout();
  QUARTET_DEFAULT(r, over_sampling_batch_size, r->rollout_batch_size());
  if (c->has_agent()) FillAgent(*r, c->mutable_agent());
  // Both lengths are checked before their sum is used for anything.
  const int64_t both = LongestSequence(*c);
  const int max_len = both > 0 && both <= 2 * kMaxTokens ? static_cast<int>(both) : 1;
  // People who talk to the policy have other lengths than the run.
  QUARTET_DEFAULT(r, max_model_len, r->has_http() ? 0 : max_len);
  QUARTET_DEFAULT_TEXT(r, pretrain, c->actor().pretrain());
  if (r->has_http()) QUARTET_DEFAULT_TEXT(r->mutable_http(), served_model_name, ServedName(*c));

  FillAlgorithm(r->generate_max_len(), c->mutable_algorithm());

  FillTrainer(*c, max_len, c->mutable_actor());
  FillTrainer(*c, max_len, c->mutable_critic());
  ReferenceConfig* f = c->mutable_reference();
  const bool lora = c->actor().has_lora();
  for (TrainerConfig* trainer : {c->mutable_actor(), c->mutable_critic()}) {
    if (trainer->has_lora()) SettleTargets(trainer->mutable_lora());
  }
  if (!lora) QUARTET_DEFAULT_TEXT(f, pretrain, c->actor().pretrain());
  QUARTET_DEFAULT_TEXT(f, dtype, c->actor().dtype());
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
  QUARTET_DEFAULT(t, save_optimizer, t->save_steps() > 0 || t->save_on_sigterm());

  FillEval(*d, c->mutable_eval());

  ServicesConfig* v = c->mutable_services();
  for (const std::string& service : kServiceNames) {
    QUARTET_DEFAULT_TEXT(MutablePlacementOf(c, service), device, v->device());
  }
  const bool alike = v->policy_trainer().device() != "cuda" && v->rollout().device() != "cuda" &&
                     r->tensor_parallel_size() == 1 && r->dtype() == c->actor().dtype();
  QUARTET_DEFAULT(t, max_log_prob_diff_mean, lora && alike ? 1e-3F : 0.5F);
  // On a cluster's GPUs a service has one rank on each that it is placed on: all of them, where nothing else is said.
  for (const std::string& service : kServiceNames) {
    if (const ServicePlacement& p = PlacementOf(*c, service); p.has_num_nodes() || p.has_num_gpus_per_node()) {
      QUARTET_DEFAULT(MutablePlacementOf(c, service), ranks, RanksAskedFor(p));
    }
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
  // What is refused later has no places.
  const bool can_be_placed = CheckRules("", *c).ok() && CheckServices(*c).ok() && CheckPlacements(*c).ok();
  if (!sizes_cache && can_be_placed && RolloutHasGpusAlone(program, *c)) {
    r->set_gpu_memory_utilization(kUtilizationOfOwnGpus);
  }
  return ClearIdle(c);
}

#undef QUARTET_DEFAULT
#undef QUARTET_DEFAULT_TEXT

}  // namespace quartet
