#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/services.h"
#include "core/rl/options/estimators.h"

namespace quartet {
namespace {

// What stands beside sources' names as "reward/<name>" (orchestrator/loop/experience/experience.cc, batch_sampler.cc).
constexpr absl::string_view kMetrics[] = {
    "mean", "std", "shaped_std", "clipped", "groups_without_signal", "failed", "overlong_penalty"};

constexpr int64_t kLeastCodeMemory = int64_t{64} << 20;

std::string FieldOf(int source, absl::string_view leaf) { return absl::StrCat("reward.source[", source, "].", leaf); }

absl::Status CheckKind(int i, const RewardSource& s) {
  std::vector<std::string> set;
  if (!s.rule().empty()) set.push_back("rule");
  if (!s.model().empty()) set.push_back("model");
  if (!s.remote_url().empty()) set.push_back("remote_url");
  if (!s.command().empty()) set.push_back("command");
  if (!s.code().empty()) set.push_back("code");
  if (set.size() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reward.source[", i, "]: ",
                   set.empty() ? "neither rule nor model, remote_url, command or code is set"
                               : absl::StrCat("both ", absl::StrJoin(set, " and "), " are set"),
                   "; set exactly one of them (--set with nothing behind \"=\" takes one out)"));
}

// Each field that is for some sources only, whether it is set here, and whether it is for this one.
absl::Status CheckEffects(int i, const RewardSource& s) {
  const bool model = !s.model().empty(), remote = !s.remote_url().empty();
  const bool command = !s.command().empty(), code = !s.code().empty();
  const auto rule = [&](absl::string_view name) { return s.rule() == name; };
  const bool judges_texts = !model && !rule("length");
  constexpr absl::string_view kTexts = "remote_url, command, code or a rule other than \"length\"";
  const struct {
    absl::string_view leaf;
    bool set, effective;
    absl::string_view of;
  } fields[] = {
      {"pattern", !s.pattern().empty(), rule("regex") || rule("format"), "rule \"regex\" or \"format\""},
      {"choices", !s.choices().empty(), rule("choice"), "rule \"choice\""},
      {"field", !s.field().empty(), rule("json_field"), "rule \"json_field\""},
      {"min_len", s.has_min_len(), rule("length"), "rule \"length\""},
      {"max_len", s.has_max_len(), rule("length"), "rule \"length\""},
      {"len_buffer", s.has_len_buffer(), rule("length"), "rule \"length\""},
      {"dtype", !s.dtype().empty(), model, "model"},
      {"zero_stage", s.has_zero_stage(), model, "model"},
      {"offload_param", s.has_offload_param(), model, "model"},
      {"value_head_prefix", !s.value_head_prefix().empty(), model, "model"},
      {"normalize_reward", s.has_normalize_reward(), model, "model"},
      {"api_key_file", !s.api_key_file().empty(), remote, "remote_url"},
      {"max_batch_size", s.has_max_batch_size(), remote || command, "remote_url or command"},
      {"command_folder", !s.command_folder().empty(), command, "command"},
      {"code_score", !s.code_score().empty(), code, "code"},
      {"workers", s.has_workers(), remote || command || code, "remote_url, command or code"},
      {"timeout_seconds", s.has_timeout_seconds(), remote || command || code, "remote_url, command or code"},
      {"max_tries", s.has_max_tries(), remote || command || code, "remote_url, command or code"},
      {"token_rewards", s.token_rewards(), remote || command, "remote_url or command"},
      {"memory_limit_bytes", s.has_memory_limit_bytes(), command || code, "command or code"},
      {"reasoning_delimiter", !s.reasoning_delimiter().empty(), judges_texts, kTexts},
      {"gate", s.gate(), judges_texts, kTexts},
  };
  for (const auto& field : fields) {
    if (field.set && !field.effective) {
      return NoEffect(FieldOf(i, field.leaf), absl::StrCat("it is read only where the source has ", field.of));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRule(int i, const RewardSource& s) {
  const bool pattern = s.rule() == "regex" || s.rule() == "format";
  if (pattern && s.pattern().empty()) {
    return Missing(FieldOf(i, "pattern"), absl::StrCat("rule \"", s.rule(), "\" needs a regular expression"));
  }
  if (s.rule() == "json_field" && s.field().empty()) {
    return Missing(FieldOf(i, "field"), "rule \"json_field\" needs the place of the value, such as \"answer\"");
  }
  if (s.rule() == "choice") {
    std::set<char> choices;
    for (const char choice : s.choices()) {
      const bool letter = choice >= 'A' && choice <= 'Z', digit = choice >= '0' && choice <= '9';
      if ((!letter && !digit) || !choices.insert(choice).second) {
        return Bad(FieldOf(i, "choices"), absl::StrCat("\"", s.choices(), "\""),
                   "it must be capital letters or digits, each once");
      }
    }
  }
  if (s.rule() == "length") {
    QUARTET_RETURN_IF_ERROR(Integer(FieldOf(i, "max_len"), s.max_len(), s.min_len(), kMaxTokens));
  }
  return absl::OkStatus();
}

absl::Status CheckUrls(int i, const RewardSource& s) {
  bool http = false, grpc = false;
  for (const std::string& url : s.remote_url()) {
    const size_t end = url.find("://");
    const absl::string_view scheme = absl::string_view(url).substr(0, end == std::string::npos ? 0 : end);
    const bool is_http = scheme == "http" || scheme == "https", is_grpc = scheme == "grpc" || scheme == "grpcs";
    if ((!is_http && !is_grpc) || url.size() <= end + 3) {
      return Bad(FieldOf(i, "remote_url"), absl::StrCat("\"", url, "\""),
                 "it must be http://..., https://..., grpc://host:port or grpcs://host:port");
    }
    http |= is_http;
    grpc |= is_grpc;
  }
  if (http && grpc) {
    return absl::InvalidArgumentError(
        absl::StrCat(FieldOf(i, "remote_url"), ": HTTP and gRPC servers cannot take turns; make two sources of them"));
  }
  return absl::OkStatus();
}

absl::Status CheckWork(int i, const RewardSource& s) {
  const bool code = !s.code().empty();
  if (code || s.memory_limit_bytes() != 0) {
    return Integer(FieldOf(i, "memory_limit_bytes"), s.memory_limit_bytes(), kLeastCodeMemory);
  }
  return absl::OkStatus();
}

// Its metrics are "reward/<name>" and "reward/<name>/<figure>".
absl::Status CheckName(int i, const RewardSource& s) {
  const std::string shown = absl::StrCat("\"", s.name(), "\"");
  if (absl::StrContains(s.name(), '/')) return Bad(FieldOf(i, "name"), shown, "it must be without \"/\"");
  if (std::find(std::begin(kMetrics), std::end(kMetrics), s.name()) == std::end(kMetrics)) return absl::OkStatus();
  return Bad(FieldOf(i, "name"), shown,
             absl::StrCat("the metric reward/", s.name(), " is another; taken are ", absl::StrJoin(kMetrics, ", ")));
}

absl::Status CheckSource(int i, const RewardSource& s) {
  QUARTET_RETURN_IF_ERROR(CheckName(i, s));
  QUARTET_RETURN_IF_ERROR(CheckKind(i, s));
  QUARTET_RETURN_IF_ERROR(CheckEffects(i, s));
  std::set<std::string> only;
  for (const std::string& source : s.only()) {
    if (source.empty() || !only.insert(source).second) {
      return Bad(FieldOf(i, "only"), absl::StrCat("\"", source, "\""),
                 "it must be names of sources of prompts (data.source_key), each once");
    }
  }
  if (s.gate() && s.weight() != 1) {
    return Bad(FieldOf(i, "weight"), absl::StrCat(s.weight()),
               "it must be 1 of a gate, which multiplies the others' sum");
  }
  if (s.token_rewards()) {
    const auto refused = [&](absl::string_view leaf, absl::string_view why) {
      return Bad(FieldOf(i, "token_rewards"), "true", absl::StrCat("it must be false with ", FieldOf(i, leaf), why));
    };
    if (s.gate()) return refused("gate", ", whose value is one number");
    if (!s.reasoning_delimiter().empty()) {
      return refused("reasoning_delimiter", ", with which the source is not told the whole answer");
    }
  }
  if (!s.rule().empty()) return CheckRule(i, s);
  if (!s.remote_url().empty()) QUARTET_RETURN_IF_ERROR(CheckUrls(i, s));
  return CheckWork(i, s);
}

// That what sources say of tokens reaches them.
absl::Status CheckTokenRewards(const RunConfig& c) {
  const auto& sources = c.reward().source();
  const auto found = std::ranges::find_if(sources, [](const RewardSource& s) { return s.token_rewards(); });
  if (found == sources.end()) return absl::OkStatus();
  const std::string field = FieldOf(static_cast<int>(found - sources.begin()), "token_rewards");
  const AlgorithmConfig& a = c.algorithm();
  if (!EstimatorOf(a).takes_token_rewards()) {
    std::vector<std::string> takers;
    for (const AdvantageEstimator& estimator : AdvantageEstimators()) {
      if (estimator.takes_token_rewards()) takers.push_back(absl::StrCat("\"", std::string(estimator.name), "\""));
    }
    return Bad(field, "true",
               absl::StrCat("it must be false with algorithm.advantage_estimator \"", a.advantage_estimator(),
                            "\", which compares answers by one number each; those that take rewards of tokens are ",
                            absl::StrJoin(takers, ", ")));
  }
  // Most tokens have none.
  if (a.reward_clip_min() > 0) {
    return Bad("algorithm.reward_clip_min", absl::StrCat(a.reward_clip_min()),
               absl::StrCat("it must be at most 0 with ", field, ": each token's reward is clamped, and many are 0"));
  }
  if (a.reward_clip_max() < 0) {
    return Bad("algorithm.reward_clip_max", absl::StrCat(a.reward_clip_max()),
               absl::StrCat("it must be at least 0 with ", field, ": each token's reward is clamped, and many are 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReward(const RunConfig& c) {
  const RewardConfig& w = c.reward();
  std::set<std::string> names;
  bool any_model = false, any_added = w.source().empty() || HasAgent(c);
  for (int i = 0; i < w.source_size(); ++i) {
    any_added |= !w.source(i).gate();
    QUARTET_RETURN_IF_ERROR(CheckSource(i, w.source(i)));
    any_model |= !w.source(i).model().empty();
    if (!names.insert(w.source(i).name()).second) {
      return Bad(FieldOf(i, "name"), absl::StrCat("\"", w.source(i).name(), "\""),
                 "another source has this name already; set name");
    }
  }
  if (!any_added) {
    return absl::InvalidArgumentError("reward.source: all are gates, and there is no sum that they multiply");
  }
  QUARTET_RETURN_IF_ERROR(CheckTokenRewards(c));
  if (!any_model) {
    constexpr char kNoModel[] = "no reward.source is a model";
    if (w.has_micro_rollout_batch_size()) return NoEffect("reward.micro_rollout_batch_size", kNoModel);
    if (w.has_max_tokens_per_micro_batch()) return NoEffect("reward.max_tokens_per_micro_batch", kNoModel);
    return absl::OkStatus();
  }
  if (w.max_tokens_per_micro_batch() == 0) return absl::OkStatus();
  if (w.has_micro_rollout_batch_size()) return BothLimits("reward", "micro_rollout_batch_size");
  return TokenBudget("reward.max_tokens_per_micro_batch", w.max_tokens_per_micro_batch(), "actor.max_len",
                     c.actor().max_len());
}

}  // namespace quartet
