#include "core/config/run_config.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/config/gpu_memory.h"
#include "core/config/text_override.h"
#include "core/service/wire/address.h"

namespace quartet {
namespace {

constexpr char kConfigText[] =
#include "core/config/run_config_text.inc"
    ;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxRanks = 65536;
// Below this, sampling is greedy and has no log-probabilities to train on.
constexpr double kGreedyTemperature = 1e-5;

// Keeps the first error of a parse, as file:line:column, counted from 1.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(const std::string& path) : path_(path) {}
  void AddError(int line, int column, const std::string& message) override {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(path_, ":", line + 1, ":", column + 1, ": ", message));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  absl::Status status_;
};

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not allowed; ", allowed));
}

absl::Status NoEffect(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, " has no effect: ", why));
}

absl::Status OneOf(absl::string_view field, const std::string& value,
                   std::initializer_list<absl::string_view> allowed) {
  for (absl::string_view a : allowed) {
    if (value == a) return absl::OkStatus();
  }
  std::vector<std::string> quoted;
  for (absl::string_view a : allowed) quoted.push_back(absl::StrCat("\"", a, "\""));
  return Bad(field, absl::StrCat("\"", value, "\""), absl::StrCat("allowed: ", absl::StrJoin(quoted, ", ")));
}

absl::Status Dtype(absl::string_view field, const std::string& value) {
  if (value == "fp16" || value == "float16" || value == "half") {
    return Bad(field, absl::StrCat("\"", value, "\""),
               "fp16 is not supported, its range is too small for training without loss scaling: use \"bf16\" or "
               "\"fp32\"");
  }
  return OneOf(field, value, {"bf16", "fp32"});
}

absl::Status Stage(absl::string_view field, int value, std::initializer_list<int> allowed) {
  for (int a : allowed) {
    if (value == a) return absl::OkStatus();
  }
  return Bad(field, absl::StrCat(value), absl::StrCat("allowed: ", absl::StrJoin(allowed, ", ")));
}

absl::Status Integer(absl::string_view field, int64_t value, int64_t low,
                     int64_t high = std::numeric_limits<int64_t>::max()) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Bad(field, absl::StrCat(value),
             high == std::numeric_limits<int64_t>::max() ? absl::StrCat("it must be at least ", low)
                                                         : absl::StrCat("allowed: ", low, " to ", high));
}

// low <= value <= high; with `open_low`, low < value. NaN is in no range.
absl::Status Real(absl::string_view field, double value, double low, double high, bool open_low = false) {
  if ((open_low ? value > low : value >= low) && value <= high && std::isfinite(value)) return absl::OkStatus();
  const std::string lower = absl::StrCat(open_low ? "greater than " : "at least ", low);
  return Bad(field, absl::StrCat(value),
             high == kInfinity ? absl::StrCat("it must be ", lower)
                               : absl::StrCat("it must be ", lower, " and at most ", high));
}

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

void FillTrainer(TrainerConfig* t, double learning_rate, int max_len) {
  QUARTET_DEFAULT(t, zero_stage, 3);
  QUARTET_DEFAULT_TEXT(t, dtype, "bf16");
  QUARTET_DEFAULT(t, learning_rate, learning_rate);
  QUARTET_DEFAULT_TEXT(t, lr_scheduler, "cosine");
  QUARTET_DEFAULT(t, lr_warmup_ratio, 0.03);
  QUARTET_DEFAULT(t, min_lr_ratio, 0.1);
  QUARTET_DEFAULT(t, adam_beta1, 0.9);
  QUARTET_DEFAULT(t, adam_beta2, 0.95);
  QUARTET_DEFAULT(t, adam_eps, 1e-8);
  QUARTET_DEFAULT(t, l2, 0);
  QUARTET_DEFAULT(t, max_norm, 1);
  QUARTET_DEFAULT(t, max_tokens_per_micro_batch, 0);
  if (t->max_tokens_per_micro_batch() == 0) {
    QUARTET_DEFAULT(t, micro_train_batch_size, 1);
    QUARTET_DEFAULT(t, micro_rollout_batch_size, t->micro_train_batch_size());
  }
  QUARTET_DEFAULT(t, gradient_checkpointing, true);
  QUARTET_DEFAULT(t, max_len, max_len);
  QUARTET_DEFAULT(t, allow_zero_learning_rate, false);
  QUARTET_DEFAULT(t, shard_size, 0);
  QUARTET_DEFAULT(t, adam_offload, false);
  QUARTET_DEFAULT(t, offload_param, false);
  QUARTET_DEFAULT(t, activation_offload, false);
  QUARTET_DEFAULT(t, no_sync, false);
  QUARTET_DEFAULT(t, ema_decay, 0);
}

void FillPlacement(ServicePlacement* p, absl::string_view listen) {
  QUARTET_DEFAULT_TEXT(p, listen, std::string(listen));
  QUARTET_DEFAULT(p, ranks, 1);
  QUARTET_DEFAULT_TEXT(p, device, "cpu");
  QUARTET_DEFAULT(p, threads, 0);
  QUARTET_DEFAULT(p, collective_timeout_seconds, 300);
  QUARTET_DEFAULT(p, device_memory_budget, 0);
  QUARTET_DEFAULT(p, host_memory_budget, 0);
  QUARTET_DEFAULT_TEXT(p, collective_backend, "auto");
  QUARTET_DEFAULT(p, max_call_items, int64_t{1} << 20);
  QUARTET_DEFAULT(p, max_call_bytes, int64_t{1} << 30);
  QUARTET_DEFAULT(p, max_calls_bytes, int64_t{4} << 30);
}

// 1 where it cannot be told, which the checks then find.
int PlacedGpus(const GpuPlacement& p, const ClusterConfig& cluster) {
  const int64_t nodes = p.nodes().empty() ? cluster.num_nodes() : p.nodes_size();
  const int64_t gpus = p.gpus().empty() ? cluster.num_gpus_per_node() : p.gpus_size();
  return nodes > 0 && gpus > 0 && nodes * gpus <= kMaxRanks ? static_cast<int>(nodes * gpus) : 1;
}

// Every default that the comments of proto/run_config.proto give, in its order.
void FillDefaults(RunConfig* c) {
  QUARTET_DEFAULT_TEXT(c, run_dir,
                       absl::StrCat("runs/", absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone())));
  QUARTET_DEFAULT(c, seed, 42);

  DataConfig* d = c->mutable_data();
  QUARTET_DEFAULT_TEXT(d, input_key, "prompt");
  QUARTET_DEFAULT_TEXT(d, label_key, "label");
  QUARTET_DEFAULT(d, apply_chat_template, false);
  QUARTET_DEFAULT(d, prompt_max_len, 1024);
  QUARTET_DEFAULT(d, max_samples, 0);

  RolloutConfig* r = c->mutable_rollout();
  QUARTET_DEFAULT(r, rollout_batch_size, 128);
  QUARTET_DEFAULT(r, n_samples_per_prompt, 1);
  QUARTET_DEFAULT(r, generate_max_len, 1024);
  QUARTET_DEFAULT(r, temperature, 1);
  QUARTET_DEFAULT(r, top_p, 1);
  QUARTET_DEFAULT(r, top_k, -1);
  QUARTET_DEFAULT_TEXT(r, dtype, "bf16");
  QUARTET_DEFAULT(r, zero_stage, 0);
  if (!r->has_gpu_memory_utilization()) {
    QUARTET_DEFAULT(r, kv_cache_bytes, int64_t{1} << 30);
  }
  QUARTET_DEFAULT(r, block_size, 16);
  // Both lengths are checked before their sum is used for anything.
  const int64_t both = int64_t{d->prompt_max_len()} + r->generate_max_len();
  const int max_len = both > 0 && both <= 2 * kMaxTokens ? static_cast<int>(both) : 1;
  QUARTET_DEFAULT(r, max_model_len, max_len);
  QUARTET_DEFAULT(r, max_num_seqs, 256);
  QUARTET_DEFAULT(r, max_num_batched_tokens, 2048);
  QUARTET_DEFAULT(r, max_waiting, 65536);
  QUARTET_DEFAULT(r, max_calls, 1024);
  QUARTET_DEFAULT(r, tensor_parallel_size, 1);
  QUARTET_DEFAULT(r, enforce_eager, false);
  QUARTET_DEFAULT_TEXT(r, pretrain, c->actor().pretrain());
  if (r->has_http()) {
    QUARTET_DEFAULT_TEXT(r->mutable_http(), served_model_name, LastPart(r->pretrain()));
    QUARTET_DEFAULT(r->mutable_http(), max_bodies_bytes, int64_t{256} << 20);
  }

  AlgorithmConfig* a = c->mutable_algorithm();
  QUARTET_DEFAULT_TEXT(a, advantage_estimator, "gae");
  QUARTET_DEFAULT(a, gamma, 1);
  QUARTET_DEFAULT(a, lambd, 1);
  QUARTET_DEFAULT(a, eps_clip, 0.2f);
  QUARTET_DEFAULT(a, eps_clip_low, a->eps_clip());
  QUARTET_DEFAULT(a, eps_clip_high, a->eps_clip());
  QUARTET_DEFAULT(a, dual_clip, 0);
  QUARTET_DEFAULT(a, value_clip, 0.2f);
  KlConfig* k = a->mutable_kl();
  QUARTET_DEFAULT(k, init_kl_coef, 0.01f);
  QUARTET_DEFAULT_TEXT(k, kl_estimator, "k1");
  QUARTET_DEFAULT(k, kl_target, 0);
  QUARTET_DEFAULT(k, kl_horizon, 10000);
  QUARTET_DEFAULT(a, reward_clip_min, -10);
  QUARTET_DEFAULT(a, reward_clip_max, 10);
  QUARTET_DEFAULT_TEXT(a, advantage_normalization, "whiten");
  QUARTET_DEFAULT_TEXT(a, loss_aggregation, "token_mean");
  QUARTET_DEFAULT_TEXT(a, old_log_prob_source, "trainer");
  QUARTET_DEFAULT(a, max_epochs, 1);

  FillTrainer(c->mutable_actor(), 1e-6, max_len);
  FillTrainer(c->mutable_critic(), 9e-6, max_len);

  // Without a KL penalty there is no reference model, and nothing of it is filled in.
  if (k->init_kl_coef() > 0) {
    ReferenceConfig* f = c->mutable_reference();
    QUARTET_DEFAULT_TEXT(f, pretrain, c->actor().pretrain());
    QUARTET_DEFAULT_TEXT(f, dtype, c->actor().dtype());
    QUARTET_DEFAULT(f, zero_stage, 3);
    QUARTET_DEFAULT(f, max_tokens_per_micro_batch, c->actor().max_tokens_per_micro_batch());
  }

  RewardConfig* w = c->mutable_reward();
  for (RewardSource& s : *w->mutable_source()) {
    QUARTET_DEFAULT_TEXT(&s, name, s.rule().empty() ? "model" : s.rule());
    QUARTET_DEFAULT(&s, weight, 1);
    if (!s.model().empty()) {
      QUARTET_DEFAULT_TEXT(&s, dtype, "bf16");
      QUARTET_DEFAULT(&s, zero_stage, 3);
    }
  }
  QUARTET_DEFAULT(w, max_tokens_per_micro_batch, 0);
  if (w->max_tokens_per_micro_batch() == 0) QUARTET_DEFAULT(w, micro_rollout_batch_size, 8);

  TrainConfig* t = c->mutable_train();
  QUARTET_DEFAULT(t, max_steps, 0);
  QUARTET_DEFAULT(t, num_episodes, 1);
  const int64_t sequences = int64_t{r->rollout_batch_size()} * r->n_samples_per_prompt();
  const bool countable = sequences > 0 && sequences <= std::numeric_limits<int32_t>::max();
  QUARTET_DEFAULT(t, train_batch_size, countable ? static_cast<int32_t>(sequences) : 1);
  QUARTET_DEFAULT(t, save_steps, 0);
  QUARTET_DEFAULT(t, call_timeout_seconds, 600);
  QUARTET_DEFAULT(t, max_log_prob_diff_mean, 0.5f);
  QUARTET_DEFAULT(t, save_optimizer, t->save_steps() > 0);
  QUARTET_DEFAULT(t, load_checkpoint, false);
  QUARTET_DEFAULT(t, max_ckpt_num, 3);

  SftConfig* s = c->mutable_sft();
  QUARTET_DEFAULT_TEXT(s, input_key, "prompt");
  QUARTET_DEFAULT_TEXT(s, output_key, "response");
  QUARTET_DEFAULT(s, batch_size, 32);
  QUARTET_DEFAULT(s, max_steps, 0);
  QUARTET_DEFAULT(s, max_epochs, 1);
  QUARTET_DEFAULT(s, learning_rate, 1e-4);

  EvalConfig* e = c->mutable_eval();
  QUARTET_DEFAULT(e, eval_steps, 0);
  QUARTET_DEFAULT(e, max_samples, 0);
  QUARTET_DEFAULT(e, temperature, 0);

  if (c->has_cluster()) {
    ClusterConfig* h = c->mutable_cluster();
    QUARTET_DEFAULT(h, num_nodes, 1);
    QUARTET_DEFAULT(h, num_gpus_per_node, 8);
    QUARTET_DEFAULT(h, host_memory_bytes, 0);
    QUARTET_DEFAULT(h, intra_node_gbps, 0);
    QUARTET_DEFAULT(h, inter_node_gbps, 0);
  }

  ServicesConfig* v = c->mutable_services();
  for (const GpuPlacement& p : c->placement()) {
    if (!ServiceProgram(p.service()).ok()) continue;
    QUARTET_DEFAULT(MutablePlacementOf(c, p.service()), ranks, PlacedGpus(p, c->cluster()));
  }
  FillPlacement(v->mutable_rollout(), "127.0.0.1:50051");
  FillPlacement(v->mutable_policy_trainer(), "127.0.0.1:50052");
  FillPlacement(v->mutable_critic_trainer(), "127.0.0.1:50053");
  FillPlacement(v->mutable_scorer(), "127.0.0.1:50054");
}

#undef QUARTET_DEFAULT
#undef QUARTET_DEFAULT_TEXT

// What does nothing in a combination is refused where it was set to something else than its default: the resolved
// configuration, which names every default, must stay readable.

absl::Status CheckData(const DataConfig& d) {
  QUARTET_RETURN_IF_ERROR(Integer("data.prompt_max_len", d.prompt_max_len(), 1, kMaxTokens));
  QUARTET_RETURN_IF_ERROR(Integer("data.max_samples", d.max_samples(), 0));
  return OneOf("data.label_extract", d.label_extract(), {"", "after_####"});
}

absl::Status CheckHttp(const HttpConfig& h) {
  if (h.listen().empty()) {
    return absl::InvalidArgumentError("rollout.http.listen is not set; it is host:port, such as 127.0.0.1:8000");
  }
  absl::StatusOr<HostPort> listen = ParseHostPort(h.listen());
  if (!listen.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.http.listen: ", listen.status().message()));
  }
  QUARTET_RETURN_IF_ERROR(Integer("rollout.http.max_bodies_bytes", h.max_bodies_bytes(), int64_t{16} << 20));
  if (h.cert_file().empty() != h.key_file().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.http.", h.cert_file().empty() ? "cert_file" : "key_file",
                                                   " is not set; set both cert_file and key_file, or neither"));
  }
  if (IsLoopback(listen->host) || !(h.api_key_file().empty() || h.key_file().empty())) return absl::OkStatus();
  return Bad(
      "rollout.http.listen", absl::StrCat("\"", h.listen(), "\""),
      absl::StrCat("an address that other machines can reach needs api_key_file, cert_file and key_file, of which ",
                   h.api_key_file().empty() ? "api_key_file" : "cert_file and key_file",
                   h.api_key_file().empty() ? " is" : " are", " not set; or listen on 127.0.0.1"));
}

absl::Status CheckRollout(const RolloutConfig& r) {
  QUARTET_RETURN_IF_ERROR(Integer("rollout.rollout_batch_size", r.rollout_batch_size(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.n_samples_per_prompt", r.n_samples_per_prompt(), 1));
  const int64_t sequences = int64_t{r.rollout_batch_size()} * r.n_samples_per_prompt();
  if (sequences > std::numeric_limits<int32_t>::max()) {
    return Bad("rollout.rollout_batch_size * rollout.n_samples_per_prompt", absl::StrCat(sequences),
               absl::StrCat("at most ", std::numeric_limits<int32_t>::max()));
  }
  QUARTET_RETURN_IF_ERROR(Integer("rollout.generate_max_len", r.generate_max_len(), 1, kMaxTokens));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.min_tokens", r.min_tokens(), 0, r.generate_max_len()));
  if (!(r.temperature() >= kGreedyTemperature) || !std::isfinite(r.temperature())) {
    return Bad(
        "rollout.temperature", absl::StrCat(r.temperature()),
        "training samples need a temperature of at least 1e-5 (below it decoding is greedy; eval.temperature may "
        "be 0)");
  }
  QUARTET_RETURN_IF_ERROR(Real("rollout.top_p", r.top_p(), 0, 1, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.top_k", r.top_k(), -1));
  QUARTET_RETURN_IF_ERROR(Dtype("rollout.dtype", r.dtype()));
  QUARTET_RETURN_IF_ERROR(Stage("rollout.zero_stage", r.zero_stage(), {0, 3}));
  if (r.has_kv_cache_bytes()) QUARTET_RETURN_IF_ERROR(Integer("rollout.kv_cache_bytes", r.kv_cache_bytes(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.block_size", r.block_size(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_model_len", r.max_model_len(), 2, 2 * kMaxTokens));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_num_seqs", r.max_num_seqs(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_num_batched_tokens", r.max_num_batched_tokens(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_waiting", r.max_waiting(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_calls", r.max_calls(), 1, 1 << 14));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.tensor_parallel_size", r.tensor_parallel_size(), 1, kMaxRanks));
  if (r.tensor_parallel_size() > 1 && r.zero_stage() != 0) {
    return Bad("rollout.tensor_parallel_size", absl::StrCat(r.tensor_parallel_size()),
               absl::StrCat("rollout.zero_stage is ", r.zero_stage(),
                            ", which gathers whole matrices on every rank; with zero_stage 0 above 1 is allowed"));
  }
  for (int32_t id : r.stop_token_ids()) QUARTET_RETURN_IF_ERROR(Integer("rollout.stop_token_ids", id, 0));
  return r.has_http() ? CheckHttp(r.http()) : absl::OkStatus();
}

absl::Status CheckAlgorithm(const AlgorithmConfig& a) {
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.advantage_estimator", a.advantage_estimator(), {"gae"}));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.gamma", a.gamma(), 0, 1));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.lambd", a.lambd(), 0, 1));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.eps_clip", a.eps_clip(), 0, kInfinity, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.eps_clip_low", a.eps_clip_low(), 0, 1, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.eps_clip_high", a.eps_clip_high(), 0, kInfinity, /*open_low=*/true));
  if (a.dual_clip() != 0 && !(a.dual_clip() > 1 && std::isfinite(a.dual_clip()))) {
    return Bad("algorithm.dual_clip", absl::StrCat(a.dual_clip()), "it must be 0 (off) or greater than 1");
  }
  QUARTET_RETURN_IF_ERROR(Real("algorithm.value_clip", a.value_clip(), 0, kInfinity));

  const KlConfig& k = a.kl();
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.init_kl_coef", k.init_kl_coef(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.kl.kl_estimator", k.kl_estimator(), {"k1", "k2", "k3"}));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.kl_target", k.kl_target(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.kl.kl_horizon", k.kl_horizon(), 0, kInfinity, /*open_low=*/true));
  if (k.init_kl_coef() == 0) {
    constexpr char kNoKl[] = "algorithm.kl.init_kl_coef is 0, so there is no KL penalty";
    if (k.kl_target() != 0) return NoEffect("algorithm.kl.kl_target", kNoKl);
    if (k.kl_estimator() != "k1") return NoEffect("algorithm.kl.kl_estimator", kNoKl);
  }
  if (k.kl_target() == 0 && k.kl_horizon() != 10000) {
    return NoEffect("algorithm.kl.kl_horizon", "algorithm.kl.kl_target is 0, so the coefficient does not adapt");
  }

  QUARTET_RETURN_IF_ERROR(Real("algorithm.reward_clip_min", a.reward_clip_min(), -kInfinity, kInfinity));
  QUARTET_RETURN_IF_ERROR(Real("algorithm.reward_clip_max", a.reward_clip_max(), -kInfinity, kInfinity));
  if (!(a.reward_clip_min() < a.reward_clip_max())) {
    return Bad("algorithm.reward_clip_min", absl::StrCat(a.reward_clip_min()),
               absl::StrCat("it must be below algorithm.reward_clip_max (", a.reward_clip_max(), ")"));
  }
  QUARTET_RETURN_IF_ERROR(
      OneOf("algorithm.advantage_normalization", a.advantage_normalization(), {"whiten", "center", "none"}));
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.loss_aggregation", a.loss_aggregation(), {"token_mean", "sequence_mean"}));
  QUARTET_RETURN_IF_ERROR(OneOf("algorithm.old_log_prob_source", a.old_log_prob_source(), {"trainer", "rollout"}));
  return Integer("algorithm.max_epochs", a.max_epochs(), 1);
}

// Micro-batches are filled by tokens or by sequences.
absl::Status BothLimits(absl::string_view section, absl::string_view sequences) {
  return absl::InvalidArgumentError(
      absl::StrCat(section, ".", sequences, " and ", section, ".max_tokens_per_micro_batch are both set; drop ",
                   section, ".", sequences, " to fill micro-batches up to a number of tokens, or ", section,
                   ".max_tokens_per_micro_batch to have a number of sequences in each"));
}

absl::Status TokenBudget(absl::string_view field, int64_t value, absl::string_view longest_field, int64_t longest) {
  if (value >= longest) return absl::OkStatus();
  return Bad(field, absl::StrCat(value),
             absl::StrCat("a sequence of ", longest_field, " (", longest,
                          ") tokens would fit in no micro-batch: it must be at least that, or 0 to count sequences"));
}

// Where a trainer's state is, and when it is exchanged.
absl::Status CheckSharding(const std::string& name, const TrainerConfig& t) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat(name, ".", leaf); };
  const std::string stage = absl::StrCat(field("zero_stage"), " is ", t.zero_stage());
  QUARTET_RETURN_IF_ERROR(Integer(field("shard_size"), t.shard_size(), 0));
  if (t.zero_stage() == 0) {
    if (t.shard_size() != 0) return NoEffect(field("shard_size"), absl::StrCat(stage, ", so nothing is sharded"));
    if (t.no_sync()) return NoEffect(field("no_sync"), absl::StrCat(stage, ", which reduces once a step anyway"));
    if (t.adam_offload()) {
      return Bad(field("adam_offload"), "true",
                 absl::StrCat(stage, ", where every rank would update the whole model on its host; it needs 2 or 3"));
    }
  }
  if (t.offload_param() && t.zero_stage() != 3) {
    return Bad(field("offload_param"), "true",
               absl::StrCat(stage, ", where all parameters stay on the device; it needs 3"));
  }
  if (t.offload_param() && !t.adam_offload()) {
    return Bad(field("offload_param"), "true",
               absl::StrCat("the optimizer, which updates the parameters, would stay on the device: set ",
                            field("adam_offload"), " too"));
  }
  if (t.activation_offload() && !t.gradient_checkpointing()) {
    return NoEffect(field("activation_offload"),
                    absl::StrCat(field("gradient_checkpointing"), " is false, so no block's input is kept by itself"));
  }
  if (!(t.ema_decay() >= 0 && t.ema_decay() < 1)) {
    return Bad(field("ema_decay"), absl::StrCat(t.ema_decay()), "it must be at least 0 and below 1");
  }
  return absl::OkStatus();
}

absl::Status CheckTrainer(const std::string& name, const TrainerConfig& t) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat(name, ".", leaf); };
  QUARTET_RETURN_IF_ERROR(Stage(field("zero_stage"), t.zero_stage(), {0, 2, 3}));
  QUARTET_RETURN_IF_ERROR(Dtype(field("dtype"), t.dtype()));
  QUARTET_RETURN_IF_ERROR(Real(field("learning_rate"), t.learning_rate(), 0, kInfinity));
  if (t.learning_rate() == 0 && !t.allow_zero_learning_rate()) {
    return Bad(field("learning_rate"), "0",
               absl::StrCat("nothing would be learned; if that is meant (a baseline), set ",
                            field("allow_zero_learning_rate"), ": true"));
  }
  if (t.learning_rate() != 0 && t.allow_zero_learning_rate()) {
    return NoEffect(field("allow_zero_learning_rate"), absl::StrCat(field("learning_rate"), " is not 0"));
  }
  QUARTET_RETURN_IF_ERROR(OneOf(field("lr_scheduler"), t.lr_scheduler(), {"constant", "cosine"}));
  if (!(t.lr_warmup_ratio() >= 0 && t.lr_warmup_ratio() < 1)) {
    return Bad(field("lr_warmup_ratio"), absl::StrCat(t.lr_warmup_ratio()), "it must be at least 0 and below 1");
  }
  QUARTET_RETURN_IF_ERROR(Real(field("min_lr_ratio"), t.min_lr_ratio(), 0, 1));
  if (t.lr_scheduler() == "constant" && t.min_lr_ratio() != 0.1) {
    return NoEffect(field("min_lr_ratio"), absl::StrCat(field("lr_scheduler"), " is \"constant\""));
  }
  for (const auto& [leaf, beta] : {std::pair("adam_beta1", t.adam_beta1()), std::pair("adam_beta2", t.adam_beta2())}) {
    if (!(beta >= 0 && beta < 1)) {
      return Bad(field(leaf), absl::StrCat(beta), "it must be at least 0 and below 1");
    }
  }
  QUARTET_RETURN_IF_ERROR(Real(field("adam_eps"), t.adam_eps(), 0, kInfinity, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Real(field("l2"), t.l2(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(Real(field("max_norm"), t.max_norm(), 0, kInfinity));
  QUARTET_RETURN_IF_ERROR(CheckSharding(name, t));
  QUARTET_RETURN_IF_ERROR(Integer(field("max_len"), t.max_len(), 2, 2 * kMaxTokens));
  if (t.max_tokens_per_micro_batch() == 0) {
    QUARTET_RETURN_IF_ERROR(Integer(field("micro_train_batch_size"), t.micro_train_batch_size(), 1));
    return Integer(field("micro_rollout_batch_size"), t.micro_rollout_batch_size(), 1);
  }
  if (t.has_micro_train_batch_size()) return BothLimits(name, "micro_train_batch_size");
  if (t.has_micro_rollout_batch_size()) return BothLimits(name, "micro_rollout_batch_size");
  return TokenBudget(field("max_tokens_per_micro_batch"), t.max_tokens_per_micro_batch(), field("max_len"),
                     t.max_len());
}

absl::Status CheckReference(const RunConfig& c) {
  if (c.algorithm().kl().init_kl_coef() == 0) {
    if (c.has_reference() && c.reference().ByteSizeLong() > 0) {
      return NoEffect(c.reference().pretrain().empty() ? "reference" : "reference.pretrain",
                      "algorithm.kl.init_kl_coef is 0, so no reference model is loaded");
    }
    return absl::OkStatus();
  }
  QUARTET_RETURN_IF_ERROR(Dtype("reference.dtype", c.reference().dtype()));
  QUARTET_RETURN_IF_ERROR(Stage("reference.zero_stage", c.reference().zero_stage(), {0, 3}));
  const int64_t budget = c.reference().max_tokens_per_micro_batch();
  if (budget == 0 && c.actor().max_tokens_per_micro_batch() == 0) return absl::OkStatus();
  if (budget == 0) {
    return Bad(
        "reference.max_tokens_per_micro_batch", "0",
        "actor.max_tokens_per_micro_batch is set, so that there is no number of sequences to go by; leave it out "
        "to take the actor's");
  }
  return TokenBudget("reference.max_tokens_per_micro_batch", budget, "actor.max_len", c.actor().max_len());
}

absl::Status CheckReward(const RunConfig& c) {
  const RewardConfig& w = c.reward();
  std::set<std::string> names;
  bool any_model = false;
  for (int i = 0; i < w.source_size(); ++i) {
    const RewardSource& s = w.source(i);
    const auto field = [i](absl::string_view leaf) { return absl::StrCat("reward.source[", i, "].", leaf); };
    if (s.rule().empty() == s.model().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("reward.source[", i,
                       "]: ", s.rule().empty() ? "neither rule nor model is set" : "both rule and model are set",
                       "; set exactly one of them"));
    }
    QUARTET_RETURN_IF_ERROR(Real(field("weight"), s.weight(), -kInfinity, kInfinity));
    if (s.weight() == 0) return NoEffect(absl::StrCat("reward.source[", i, "]"), "its weight is 0");
    if (!s.rule().empty()) {
      QUARTET_RETURN_IF_ERROR(OneOf(field("rule"), s.rule(), {"exact_match", "number"}));
      if (!s.dtype().empty()) return NoEffect(field("dtype"), "a rule has no model");
      if (s.has_zero_stage()) return NoEffect(field("zero_stage"), "a rule has no model");
    } else {
      any_model = true;
      QUARTET_RETURN_IF_ERROR(Dtype(field("dtype"), s.dtype()));
      QUARTET_RETURN_IF_ERROR(Stage(field("zero_stage"), s.zero_stage(), {0, 3}));
    }
    if (!names.insert(s.name()).second) {
      return Bad(field("name"), absl::StrCat("\"", s.name(), "\""), "another source has this name already; set name");
    }
  }
  constexpr char kNoModel[] = "no reward.source is a model";
  if (w.max_tokens_per_micro_batch() == 0) {
    QUARTET_RETURN_IF_ERROR(Integer("reward.micro_rollout_batch_size", w.micro_rollout_batch_size(), 1));
    if (any_model || w.micro_rollout_batch_size() == 8) return absl::OkStatus();
    return NoEffect("reward.micro_rollout_batch_size", kNoModel);
  }
  if (!any_model) return NoEffect("reward.max_tokens_per_micro_batch", kNoModel);
  if (w.has_micro_rollout_batch_size()) return BothLimits("reward", "micro_rollout_batch_size");
  return TokenBudget("reward.max_tokens_per_micro_batch", w.max_tokens_per_micro_batch(), "actor.max_len",
                     c.actor().max_len());
}

absl::Status CheckTrain(const RunConfig& c) {
  const TrainConfig& t = c.train();
  QUARTET_RETURN_IF_ERROR(Integer("train.max_steps", t.max_steps(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("train.num_episodes", t.num_episodes(), 1));
  if (t.max_steps() > 0 && t.num_episodes() != 1) return NoEffect("train.num_episodes", "train.max_steps is set");
  QUARTET_RETURN_IF_ERROR(Integer("train.train_batch_size", t.train_batch_size(), 1));
  const int64_t sequences = int64_t{c.rollout().rollout_batch_size()} * c.rollout().n_samples_per_prompt();
  if (sequences % t.train_batch_size() != 0) {
    return Bad(
        "train.train_batch_size", absl::StrCat(t.train_batch_size()),
        absl::StrCat("it must divide rollout.rollout_batch_size * rollout.n_samples_per_prompt = ",
                     c.rollout().rollout_batch_size(), " * ", c.rollout().n_samples_per_prompt(), " = ", sequences));
  }
  QUARTET_RETURN_IF_ERROR(Integer("train.save_steps", t.save_steps(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("train.max_ckpt_num", t.max_ckpt_num(), 0));
  if (t.save_steps() == 0 && t.max_ckpt_num() != 3) {
    return NoEffect("train.max_ckpt_num", "train.save_steps is 0, so there is only the checkpoint at the end");
  }
  QUARTET_RETURN_IF_ERROR(Integer("train.call_timeout_seconds", t.call_timeout_seconds(), 1));
  return Real("train.max_log_prob_diff_mean", t.max_log_prob_diff_mean(), 0, kInfinity, /*open_low=*/true);
}

absl::Status CheckSftAndEval(const SftConfig& s, const EvalConfig& e) {
  QUARTET_RETURN_IF_ERROR(Integer("sft.batch_size", s.batch_size(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("sft.max_steps", s.max_steps(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("sft.max_epochs", s.max_epochs(), 1));
  if (s.max_steps() > 0 && s.max_epochs() != 1) return NoEffect("sft.max_epochs", "sft.max_steps is set");
  QUARTET_RETURN_IF_ERROR(Real("sft.learning_rate", s.learning_rate(), 0, kInfinity, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Integer("eval.eval_steps", e.eval_steps(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("eval.max_samples", e.max_samples(), 0));
  QUARTET_RETURN_IF_ERROR(Real("eval.temperature", e.temperature(), 0, kInfinity));
  if (e.data().empty()) {
    if (e.eval_steps() != 0) return NoEffect("eval.eval_steps", "eval.data is empty");
    if (e.max_samples() != 0) return NoEffect("eval.max_samples", "eval.data is empty");
    if (e.temperature() != 0) return NoEffect("eval.temperature", "eval.data is empty");
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(const std::string& name, const ServicePlacement& p) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat("services.", name, ".", leaf); };
  const size_t colon = p.listen().rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(p.listen().substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return Bad(field("listen"), absl::StrCat("\"", p.listen(), "\""),
               "expected host:port with a port from 0 to 65535, such as \"127.0.0.1:50051\"");
  }
  QUARTET_RETURN_IF_ERROR(Integer(field("ranks"), p.ranks(), 1, kMaxRanks));
  QUARTET_RETURN_IF_ERROR(OneOf(field("device"), p.device(), {"cpu", "cuda"}));
  QUARTET_RETURN_IF_ERROR(Integer(field("threads"), p.threads(), 0, 4096));
  QUARTET_RETURN_IF_ERROR(Integer(field("device_memory_budget"), p.device_memory_budget(), 0));
  QUARTET_RETURN_IF_ERROR(Integer(field("host_memory_budget"), p.host_memory_budget(), 0));
  QUARTET_RETURN_IF_ERROR(Integer(field("max_call_items"), p.max_call_items(), 1));
  QUARTET_RETURN_IF_ERROR(Integer(field("max_call_bytes"), p.max_call_bytes(), 1, p.max_calls_bytes()));
  QUARTET_RETURN_IF_ERROR(OneOf(field("collective_backend"), p.collective_backend(), {"auto", "gloo", "shm"}));
  if (p.collective_backend() != "auto" && p.device() != "cpu") {
    return NoEffect(field("collective_backend"), absl::StrCat("ranks on device \"", p.device(), "\" use NCCL"));
  }
  return Integer(field("collective_timeout_seconds"), p.collective_timeout_seconds(), 1);
}

// Which services hold anything in host memory beside their device: trainers what is offloaded and the average of the
// weights, a policy trainer on CUDA also the weights that it publishes, a rollout there those that are staged.
absl::Status CheckHostBudgets(const RunConfig& c) {
  const auto check = [](const std::string& name, const ServicePlacement& p, bool holds) {
    if (p.host_memory_budget() == 0 || holds) return absl::OkStatus();
    return NoEffect(absl::StrCat("services.", name, ".host_memory_budget"),
                    absl::StrCat("this service holds nothing in host memory beside its device (\"", p.device(),
                                 "\"); use device_memory_budget"));
  };
  const auto offloads = [](const TrainerConfig& t) {
    return t.adam_offload() || t.activation_offload() || t.ema_decay() != 0;
  };
  QUARTET_RETURN_IF_ERROR(check("rollout", c.services().rollout(), c.services().rollout().device() == "cuda"));
  QUARTET_RETURN_IF_ERROR(check("policy_trainer", c.services().policy_trainer(),
                                c.services().policy_trainer().device() == "cuda" || offloads(c.actor())));
  QUARTET_RETURN_IF_ERROR(check("critic_trainer", c.services().critic_trainer(), offloads(c.critic())));
  return check("scorer", c.services().scorer(), false);
}

absl::Status CheckCluster(const ClusterConfig& h) {
  QUARTET_RETURN_IF_ERROR(Integer("cluster.num_nodes", h.num_nodes(), 1, kMaxRanks));
  QUARTET_RETURN_IF_ERROR(Integer("cluster.num_gpus_per_node", h.num_gpus_per_node(), 1, kMaxRanks / h.num_nodes()));
  if (!h.gpu().empty()) {
    if (GpuMemoryBytes(h.gpu()) == 0) {
      return Bad("cluster.gpu", absl::StrCat("\"", h.gpu(), "\""),
                 absl::StrCat("allowed: ", absl::StrJoin(KnownGpus(), ", "), "; or set cluster.gpu_memory_bytes"));
    }
    if (h.has_gpu_memory_bytes() && h.gpu_memory_bytes() != GpuMemoryBytes(h.gpu())) {
      return Bad("cluster.gpu_memory_bytes", absl::StrCat(h.gpu_memory_bytes()),
                 absl::StrCat("cluster.gpu is \"", h.gpu(), "\", which has ", GpuMemoryBytes(h.gpu()),
                              "; set only one of the two"));
    }
  }
  if (h.has_gpu_memory_bytes()) QUARTET_RETURN_IF_ERROR(Integer("cluster.gpu_memory_bytes", h.gpu_memory_bytes(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("cluster.host_memory_bytes", h.host_memory_bytes(), 0));
  QUARTET_RETURN_IF_ERROR(Real("cluster.intra_node_gbps", h.intra_node_gbps(), 0, kInfinity));
  return Real("cluster.inter_node_gbps", h.inter_node_gbps(), 0, kInfinity);
}

absl::Status CheckUtilization(const RunConfig& c) {
  const RolloutConfig& r = c.rollout();
  if (!r.has_gpu_memory_utilization()) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(Real("rollout.gpu_memory_utilization", r.gpu_memory_utilization(), 0, 1, /*open_low=*/true));
  if (r.has_kv_cache_bytes()) return NoEffect("rollout.kv_cache_bytes", "rollout.gpu_memory_utilization is set");
  if (c.services().rollout().device() != "cuda") {
    return NoEffect("rollout.gpu_memory_utilization",
                    absl::StrCat("services.rollout.device is \"", c.services().rollout().device(),
                                 "\"; use rollout.kv_cache_bytes"));
  }
  return absl::OkStatus();
}

// Where no forward is recorded.
absl::Status CheckEager(const RunConfig& c) {
  const RolloutConfig& r = c.rollout();
  if (!r.enforce_eager()) return absl::OkStatus();
  const std::string& device = c.services().rollout().device();
  const auto no_effect = [](const std::string& why) {
    return NoEffect("rollout.enforce_eager", absl::StrCat(why, ", where no CUDA graphs are recorded"));
  };
  if (device != "cuda") return no_effect(absl::StrCat("services.rollout.device is \"", device, "\""));
  if (r.dtype() != "bf16") return no_effect(absl::StrCat("rollout.dtype is \"", r.dtype(), "\""));
  if (r.zero_stage() != 0) return no_effect(absl::StrCat("rollout.zero_stage is ", r.zero_stage()));
  if (r.tensor_parallel_size() > 1) {
    return no_effect(absl::StrCat("rollout.tensor_parallel_size is ", r.tensor_parallel_size()));
  }
  return absl::OkStatus();
}

// That `service`, with device "cuda", has a GPU for each rank.
absl::Status CheckGpus(const RunConfig& c, const std::string& service) {
  const ServicePlacement& s = PlacementOf(c, service);
  if (s.device() != "cuda") return absl::OkStatus();
  const int64_t all = int64_t{c.cluster().num_nodes()} * c.cluster().num_gpus_per_node();
  if (s.ranks() > all) {
    return Bad(absl::StrCat("services.", service, ".ranks"), absl::StrCat(s.ranks()),
               absl::StrCat("each rank needs a GPU, and the cluster has ", c.cluster().num_nodes(), " x ",
                            c.cluster().num_gpus_per_node(), " = ", all));
  }
  return absl::OkStatus();
}

absl::Status CheckPlacements(const RunConfig& c) {
  if (!c.has_cluster()) {
    return c.placement().empty() ? absl::OkStatus() : NoEffect("placement", "cluster is not set");
  }
  QUARTET_RETURN_IF_ERROR(CheckCluster(c.cluster()));
  std::set<std::string> services;
  for (int i = 0; i < c.placement_size(); ++i) {
    const GpuPlacement& p = c.placement(i);
    const auto field = [i](absl::string_view leaf) { return absl::StrCat("placement[", i, "].", leaf); };
    QUARTET_RETURN_IF_ERROR(
        OneOf(field("service"), p.service(), {"rollout", "policy_trainer", "critic_trainer", "scorer"}));
    if (!services.insert(p.service()).second) {
      return Bad(field("service"), absl::StrCat("\"", p.service(), "\""), "it has an entry already");
    }
    const ServicePlacement& s = PlacementOf(c, p.service());
    if (s.device() != "cuda") {
      return NoEffect(absl::StrCat("placement[", i, "]"),
                      absl::StrCat("services.", p.service(), ".device is \"", s.device(), "\""));
    }
    std::set<int> nodes, gpus;
    for (const int node : p.nodes()) {
      QUARTET_RETURN_IF_ERROR(Integer(field("nodes"), node, 0, c.cluster().num_nodes() - 1));
      if (!nodes.insert(node).second) return Bad(field("nodes"), absl::StrCat(node), "it is named twice");
    }
    for (const int gpu : p.gpus()) {
      QUARTET_RETURN_IF_ERROR(Integer(field("gpus"), gpu, 0, c.cluster().num_gpus_per_node() - 1));
      if (!gpus.insert(gpu).second) return Bad(field("gpus"), absl::StrCat(gpu), "it is named twice");
    }
    if (s.ranks() != PlacedGpus(p, c.cluster())) {
      return Bad(absl::StrCat("services.", p.service(), ".ranks"), absl::StrCat(s.ranks()),
                 absl::StrCat("placement[", i, "] gives it ", PlacedGpus(p, c.cluster()), " GPUs, one a rank"));
    }
  }
  for (const char* service : {"rollout", "policy_trainer", "critic_trainer", "scorer"}) {
    QUARTET_RETURN_IF_ERROR(CheckGpus(c, service));
  }
  return absl::OkStatus();
}

absl::Status CheckAll(const RunConfig& c) {
  QUARTET_RETURN_IF_ERROR(CheckData(c.data()));
  QUARTET_RETURN_IF_ERROR(CheckRollout(c.rollout()));
  QUARTET_RETURN_IF_ERROR(CheckAlgorithm(c.algorithm()));
  QUARTET_RETURN_IF_ERROR(CheckTrainer("actor", c.actor()));
  QUARTET_RETURN_IF_ERROR(CheckTrainer("critic", c.critic()));
  QUARTET_RETURN_IF_ERROR(CheckReference(c));
  QUARTET_RETURN_IF_ERROR(CheckReward(c));
  QUARTET_RETURN_IF_ERROR(CheckTrain(c));
  QUARTET_RETURN_IF_ERROR(CheckSftAndEval(c.sft(), c.eval()));
  QUARTET_RETURN_IF_ERROR(CheckPlacement("rollout", c.services().rollout()));
  QUARTET_RETURN_IF_ERROR(CheckPlacement("policy_trainer", c.services().policy_trainer()));
  QUARTET_RETURN_IF_ERROR(CheckPlacement("critic_trainer", c.services().critic_trainer()));
  QUARTET_RETURN_IF_ERROR(CheckPlacement("scorer", c.services().scorer()));
  QUARTET_RETURN_IF_ERROR(CheckHostBudgets(c));
  QUARTET_RETURN_IF_ERROR(CheckPlacements(c));
  QUARTET_RETURN_IF_ERROR(CheckUtilization(c));
  QUARTET_RETURN_IF_ERROR(CheckEager(c));
  const TlsConfig& tls = c.tls();
  const int files = !tls.ca_file().empty() + !tls.cert_file().empty() + !tls.key_file().empty();
  if (files != 0 && files != 3) {
    return absl::InvalidArgumentError(absl::StrCat("tls: ",
                                                   tls.ca_file().empty()     ? "ca_file"
                                                   : tls.cert_file().empty() ? "cert_file"
                                                                             : "key_file",
                                                   " is not set; set all of ca_file, cert_file and key_file, or none"));
  }
  return absl::OkStatus();
}

// `eps_clip` is what the two sides default to, so this is looked at before defaults are filled in. A resolved
// configuration has all three; eps_clip is refused only where it decides nothing.
absl::Status CheckClipOverlap(const AlgorithmConfig& a) {
  if (a.has_eps_clip() && a.has_eps_clip_low() && a.has_eps_clip_high() && a.eps_clip() != a.eps_clip_low() &&
      a.eps_clip() != a.eps_clip_high()) {
    // The default is what resolving itself writes there.
    if (a.eps_clip() == 0.2f) return absl::OkStatus();
    return NoEffect("algorithm.eps_clip", "algorithm.eps_clip_low and algorithm.eps_clip_high are both set");
  }
  return absl::OkStatus();
}

void ResolvePath(const std::string& base_folder, std::string* path) {
  if (path->empty() || path->front() == '/') return;
  *path = ResolveUserPath(base_folder.empty() ? *path : absl::StrCat(base_folder, "/", *path));
}

void ResolvePaths(const std::string& base_folder, RunConfig* c) {
  ResolvePath(base_folder, c->mutable_run_dir());
  if (!c->data().prompt_data().empty()) ResolvePath(base_folder, c->mutable_data()->mutable_prompt_data());
  for (std::string* path : {c->mutable_rollout()->mutable_pretrain(), c->mutable_actor()->mutable_pretrain(),
                            c->mutable_critic()->mutable_pretrain(), c->mutable_actor()->mutable_load_checkpoint(),
                            c->mutable_critic()->mutable_load_checkpoint(), c->mutable_sft()->mutable_data(),
                            c->mutable_eval()->mutable_data()}) {
    ResolvePath(base_folder, path);
  }
  if (c->has_reference()) ResolvePath(base_folder, c->mutable_reference()->mutable_pretrain());
  for (RewardSource& s : *c->mutable_reward()->mutable_source()) ResolvePath(base_folder, s.mutable_model());
  if (c->rollout().has_http()) {
    HttpConfig* http = c->mutable_rollout()->mutable_http();
    for (std::string* path : {http->mutable_api_key_file(), http->mutable_cert_file(), http->mutable_key_file()}) {
      ResolvePath(base_folder, path);
    }
  }
  if (c->has_tls()) {
    for (std::string* path : {c->mutable_tls()->mutable_ca_file(), c->mutable_tls()->mutable_cert_file(),
                              c->mutable_tls()->mutable_key_file()}) {
      ResolvePath(base_folder, path);
    }
  }
}

absl::Status Missing(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is not set; ", what));
}

constexpr char kModelFolder[] = "it names a Hugging Face folder (config.json, model.safetensors, tokenizer.json)";

}  // namespace

absl::Status ApplyOverride(std::string_view override_text, RunConfig* config) {
  return SetFieldFromText(std::string(override_text), config);
}

absl::StatusOr<RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides,
                                        const std::string& base_folder) {
  RunConfig config;
  if (!path.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadFile(ResolveUserPath(path)));
    FirstError error(path);
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&error);
    if (!parser.ParseFromString(text, &config)) {
      return error.status().ok() ? absl::InvalidArgumentError(absl::StrCat(path, ": not a RunConfig in text format"))
                                 : error.status();
    }
  }
  for (const std::string& o : overrides) QUARTET_RETURN_IF_ERROR(ApplyOverride(o, &config));
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&config, base_folder));
  return config;
}

absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder) {
  QUARTET_RETURN_IF_ERROR(CheckClipOverlap(config->algorithm()));
  if (config->train().load_checkpoint() && config->run_dir().empty()) {
    return Missing("run_dir", "train.load_checkpoint continues the run that is in it");
  }
  FillDefaults(config);
  QUARTET_RETURN_IF_ERROR(CheckAll(*config));
  ResolvePaths(base_folder, config);
  return absl::OkStatus();
}

absl::Status CheckFor(const RunConfig& config, Program program) {
  const bool ppo = program == Program::kPpo;
  if ((ppo || program == Program::kPolicyTrainer || program == Program::kSft) && config.actor().pretrain().empty()) {
    return Missing("actor.pretrain", kModelFolder);
  }
  if ((ppo || program == Program::kRollout) && config.rollout().pretrain().empty()) {
    return Missing("rollout.pretrain (or actor.pretrain)", kModelFolder);
  }
  if ((ppo || program == Program::kCriticTrainer) && config.critic().pretrain().empty()) {
    return Missing("critic.pretrain", kModelFolder);
  }
  if (ppo || program == Program::kScorer) {
    const bool reference = config.algorithm().kl().init_kl_coef() > 0;
    if (reference && config.reference().pretrain().empty()) {
      return Missing("reference.pretrain (or actor.pretrain)",
                     absl::StrCat(kModelFolder, "; or set algorithm.kl.init_kl_coef to 0 to do without a reference"));
    }
    if (ppo && config.reward().source().empty()) {
      return Missing("reward.source", "for example: reward { source { rule: \"exact_match\" } }");
    }
    if (!reference && config.reward().source().empty()) {
      return Missing("reward.source", "without it and with algorithm.kl.init_kl_coef 0 the scorer has nothing to do");
    }
  }
  if (ppo) {
    if (config.data().prompt_data().empty()) return Missing("data.prompt_data", "it names a JSONL file of prompts");
    const int longest = config.data().prompt_max_len() + config.rollout().generate_max_len();
    for (const auto& [field, value] : {std::pair("rollout.max_model_len", config.rollout().max_model_len()),
                                       std::pair("actor.max_len", config.actor().max_len()),
                                       std::pair("critic.max_len", config.critic().max_len())}) {
      if (value < longest) {
        return Bad(field, absl::StrCat(value),
                   absl::StrCat("it must be at least data.prompt_max_len + rollout.generate_max_len = ", longest));
      }
    }
  }
  if (program == Program::kSft && config.train().load_checkpoint()) {
    return NoEffect("train.load_checkpoint",
                    "fine-tuning does not continue; actor.load_checkpoint starts from a state");
  }
  if (program == Program::kSft && config.sft().data().empty()) {
    return Missing("sft.data", "it names a JSONL file of prompts and responses");
  }
  return absl::OkStatus();
}

absl::StatusOr<Program> ServiceProgram(std::string_view service) {
  if (service == "rollout") return Program::kRollout;
  if (service == "policy_trainer") return Program::kPolicyTrainer;
  if (service == "critic_trainer") return Program::kCriticTrainer;
  if (service == "scorer") return Program::kScorer;
  return absl::InvalidArgumentError(absl::StrCat("there is no service '", std::string(service),
                                                 "'; there are rollout, policy_trainer, critic_trainer and scorer"));
}

ServicePlacement* MutablePlacementOf(RunConfig* config, std::string_view service) {
  ServicesConfig* services = config->mutable_services();
  if (service == "rollout") return services->mutable_rollout();
  if (service == "policy_trainer") return services->mutable_policy_trainer();
  if (service == "critic_trainer") return services->mutable_critic_trainer();
  return services->mutable_scorer();
}

const ServicePlacement& PlacementOf(const RunConfig& config, std::string_view service) {
  const ServicesConfig& services = config.services();
  if (service == "rollout") return services.rollout();
  if (service == "policy_trainer") return services.policy_trainer();
  if (service == "critic_trainer") return services.critic_trainer();
  return services.scorer();
}

std::string PrintRunConfig(const RunConfig& config) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(config, &text);
  return text;
}

std::string_view DescribeRunConfig() { return kConfigText; }

}  // namespace quartet
