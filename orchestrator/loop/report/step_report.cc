#include "orchestrator/loop/report/step_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/run_folder/records/sample_texts.h"
#include "core/tokenizer/token_texts.h"
#include "orchestrator/answers/answer.h"

namespace quartet {
namespace {

constexpr int64_t kSamplesPerStep = 4;
constexpr size_t kSequenceBytes = 64 << 10;  // of a sample

SampleSequence SpansOf(const TokenSequence& tokens, const Tokenizer& tokenizer) {
  const std::vector<std::string> texts = TokenTexts(tokenizer, {tokens.ids().begin(), tokens.ids().end()}, 0);
  SampleSequence spans;
  for (int t = 0; t < tokens.ids_size(); ++t) {
    const bool trained = tokens.action_mask(t);
    if (spans.empty() || spans.back().trained != trained) spans.push_back({.trained = trained});
    spans.back().text += texts[t];
  }
  return spans;
}

// Whether the policy has drawn tokens in one go, and behind the row's prompt, where agents may ask otherwise: then
// prompt and response are all that there is to see.
bool IsOneAnswer(const Experience& e) {
  const auto& mask = e.last_sequence().action_mask();
  const auto& ids = e.last_sequence().ids();
  const auto first = std::ranges::find(mask, true), end = std::find(first, mask.end(), false);
  return e.sequences.size() == 1 && std::find(end, mask.end(), true) == mask.end() &&
         std::equal(ids.begin(), ids.begin() + (first - mask.begin()), e.prompt->ids.begin(), e.prompt->ids.end());
}

}  // namespace

absl::Status AddServiceMetrics(Services& services, Metrics* metrics) {
  for (ServiceClient* client : services.all()) {
    QUARTET_ASSIGN_OR_RETURN(const ServiceInfo info, client->GetInfo());
    std::map<std::string, int64_t> peaks;
    for (const RankInfo& rank : info.ranks()) {
      if (!rank.cpu_kernels().empty()) metrics->Set("kernels/" + rank.cpu_kernels(), 1);
      for (const MemoryUse& use : rank.memory()) {
        int64_t& peak = peaks[use.tier() == "host" ? "host/" + use.category() : use.category()];
        peak = std::max(peak, use.peak_bytes());
      }
      for (const MemoryTotal& total : rank.memory_totals()) {
        if (total.tier() == "host" && total.peak_bytes() == 0) continue;
        int64_t& peak = peaks[total.tier() == "host" ? "host/total" : "total"];
        peak = std::max(peak, total.peak_bytes());
      }
      peaks["process"] = std::max(peaks["process"], rank.peak_rss_bytes());
    }
    for (const auto& [category, bytes] : peaks) {
      metrics->Set(absl::StrCat("memory/", client->service(), "/", category), static_cast<double>(bytes));
    }
    for (const auto& [name, value] : info.metrics()) metrics->Set(name, value);
  }
  return absl::OkStatus();
}

std::vector<SampleRecord> PickSamples(int64_t step, const std::vector<Experience>& batch, bool has_rewards,
                                      const Tokenizer& tokenizer) {
  std::vector<SampleRecord> samples;
  const int64_t count = std::min<int64_t>(kSamplesPerStep, static_cast<int64_t>(batch.size()));
  for (int64_t i = 0; i < count; ++i) {
    const Experience& e = batch[i * batch.size() / count];
    SampleRecord& sample = samples.emplace_back();
    sample.step = step;
    sample.prompt = e.prompt->text;
    sample.response = e.response;
    sample.label = e.prompt->label;
    if (has_rewards) sample.reward = e.reward;
    sample.parts = e.reward_parts;
    sample.token_rewards = e.token_rewards;
    for (const TokenSequence& tokens : e.sequences) {
      if (e.token_rewards.empty()) break;
      for (std::string& text : ActionTexts(tokens, tokenizer)) sample.token_texts.push_back(std::move(text));
    }
    if (!IsOneAnswer(e)) {
      for (const TokenSequence& tokens : e.sequences) sample.sequences.push_back(SpansOf(tokens, tokenizer));
      CutToFit(kSequenceBytes, &sample.sequences);
    }
    sample.kl = BatchKl({e});
    sample.finish_reason = e.truncated ? "length" : "stop";
  }
  return samples;
}

void AddSourceMetrics(const std::vector<Experience>& batch, size_t sources, bool has_rewards, Metrics* metrics) {
  if (sources < 2) return;
  struct Sums {
    double answers = 0, reward = 0, tokens = 0;
  };
  std::map<std::string, Sums> by_source;
  for (const Experience& e : batch) {
    Sums& sums = by_source[e.prompt->metrics_source];
    ++sums.answers;
    sums.reward += e.reward;
    sums.tokens += static_cast<double>(e.action_tokens());
  }
  for (const auto& [source, sums] : by_source) {
    const std::string prefix = absl::StrCat("source/", source, "/");
    if (has_rewards) metrics->Set(prefix + "reward", sums.reward / sums.answers);
    metrics->Set(prefix + "response_length", sums.tokens / sums.answers);
    metrics->Set(prefix + "share", sums.answers / static_cast<double>(batch.size()));
  }
}

std::string StepTableHead() {
  return absl::StrFormat("%5s %8s %9s %7s %8s | %8s %7s %8s %7s %7s %7s %7s", "step", "reward", "kl", "length", "diff",
                         "generate", "score", "forwards", "update", "sync", "other", "step s");
}

std::string StepTableLine(int64_t steps_done, const Metrics& metrics, const std::string& left) {
  const auto value = [&metrics](const char* name) { return metrics.Get(name).value_or(0); };
  const std::optional<double> kl = metrics.Get("kl/mean"), reward = metrics.Get("reward/mean");
  const auto five_digits = [](double x) { return std::round(x * 1e5) / 1e5 + 0.0; };  // no "-0.00000"
  // What a step waits for, one thing after the other, so that they add up.
  const double generate = value("time/generate"), score = value("time/score"), forwards = value("time/forwards"),
               update = std::max(value("time/policy_update"), value("time/critic_update")),
               sync = value("time/weight_sync"), whole = value("time/step");
  const double other = std::max(0.0, whole - generate - score - forwards - update - sync);
  return absl::StrFormat("%5d %8s %9s %7.1f %8.1e | %8.2f %7.2f %8.2f %7.2f %7.2f %7.2f %7.2f%s", steps_done,
                         reward.has_value() ? absl::StrFormat("%8.4f", *reward) : "-",
                         kl.has_value() ? absl::StrFormat("%9.5f", five_digits(*kl)) : "-",
                         value("response_length/mean"), value("rollout/log_prob_diff_mean"), generate, score, forwards,
                         update, sync, other, whole, left);
}

}  // namespace quartet
