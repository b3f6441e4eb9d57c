#include "viewer/page/kept_samples.h"

#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "core/run_folder/records/record_fields.h"
#include "core/run_folder/records/sample_texts.h"
#include "viewer/page/json_text.h"

namespace quartet {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string Cut(std::string text) {
  constexpr size_t kEnd = KeptSamples::kText / 4;
  if (text.size() <= KeptSamples::kText + 2 * kEnd) return text;
  const size_t head = WholeCharacters(text, KeptSamples::kText), tail = WholeCharacters(text, text.size() - kEnd);
  return absl::StrCat(text.substr(0, head), " [... ", tail - head, " bytes left out ...] ", text.substr(tail));
}

// Of `sample`, as much as of a text: all that a span costs counts.
std::vector<std::pair<std::string, double>> SpansOf(const nlohmann::json& sample) {
  constexpr size_t kOfASpan = 12;
  const auto list = [&](const char* name) {
    const auto found = sample.find(name);
    return found != sample.end() && found->is_array() ? *found : nlohmann::json::array();
  };
  const nlohmann::json texts = list("token_texts"), rewards = list("token_rewards");
  std::vector<std::pair<std::string, double>> spans;
  if (texts.size() != rewards.size()) return spans;
  size_t bytes = 0;
  bool begins = true;
  for (size_t t = 0; t < texts.size(); ++t) {
    if (bytes > KeptSamples::kText) {
      spans.emplace_back(absl::StrCat(" [... ", texts.size() - t, " tokens left out]"), 0);
      break;
    }
    if (begins) spans.emplace_back("", 0);
    if (texts[t].is_string()) spans.back().first += texts[t].get_ref<const std::string&>();
    if (rewards[t].is_number()) spans.back().second = rewards[t].get<double>();
    bytes += (begins ? kOfASpan : 0) + (texts[t].is_string() ? texts[t].get_ref<const std::string&>().size() : 0);
    begins = spans.back().second != 0;
  }
  return spans;
}

std::vector<SampleSequence> SequencesOf(const nlohmann::json& sample) {
  std::vector<SampleSequence> sequences;
  const auto found = sample.find("sequences");
  if (found == sample.end() || !found->is_array()) return sequences;
  for (const nlohmann::json& spans : *found) {
    SampleSequence& sequence = sequences.emplace_back();
    for (const nlohmann::json& span : spans) {
      if (!span.is_object()) continue;
      const auto trained = span.find("trained");
      sequence.push_back(
          {TextIn(span, "text"), trained != span.end() && trained->is_boolean() && trained->get<bool>()});
    }
  }
  CutToFit(KeptSamples::kSequences, &sequences);
  return sequences;
}

}  // namespace

void KeptSamples::Add(const nlohmann::json& sample) {
  if (!sample.is_object() || !sample.contains("step") || !sample["step"].is_number_integer()) return;
  const int64_t step = sample["step"].get<int64_t>() + 1;
  ++total_;
  if (step != latest_) {
    // The latest step is there while it is that, whatever the stride.
    if (latest_ >= 0 && place_.contains(latest_) && place_[latest_] % stride_ != 0) {
      for (const Sample& old : by_step_[latest_]) bytes_ -= old.bytes;
      by_step_.erase(latest_);
      place_.erase(latest_);
    }
    latest_ = step;
    place_[step] = steps_++;
  }
  Sample kept = {.prompt = Cut(TextIn(sample, "prompt")),
                 .response = Cut(TextIn(sample, "response")),
                 .label = Cut(TextIn(sample, "label")),
                 .finish = TextIn(sample, "finish_reason"),
                 .reward = NumberIn(sample, "reward", kNone),
                 .kl = NumberIn(sample, "kl", kNone)};
  if (const auto parts = sample.find("parts"); parts != sample.end() && parts->is_object()) {
    for (const auto& [name, value] : parts->items()) kept.parts[name] = value.is_number() ? value.get<double>() : kNone;
  }
  constexpr size_t kOther = 60;  // names' places, numbers
  kept.tokens = SpansOf(sample);
  kept.bytes = kept.prompt.size() + kept.response.size() + kept.label.size() + kOther;
  for (const auto& [text, reward] : kept.tokens) kept.bytes += text.size() + kOther;
  kept.sequences = SequencesOf(sample);
  for (const SampleSequence& sequence : kept.sequences) {
    for (const SampleSpan& span : sequence) kept.bytes += span.text.size() + kOther;
  }
  bytes_ += kept.bytes;
  by_step_[step].push_back(std::move(kept));
  Thin();
}

void KeptSamples::Thin() {
  while (bytes_ > kBytes && by_step_.size() > 2) {
    stride_ *= 2;
    for (auto it = by_step_.begin(); it != by_step_.end();) {
      if (it->first == latest_ || place_[it->first] % stride_ == 0) {
        ++it;
        continue;
      }
      for (const Sample& old : it->second) bytes_ -= old.bytes;
      place_.erase(it->first);
      it = by_step_.erase(it);
    }
  }
}

void KeptSamples::AppendJson(std::string* out) const {
  JsonList all("{", out);
  all.Number("total", static_cast<double>(total_));
  all.Number("steps", static_cast<double>(steps_));
  const auto list = [&](std::string_view key, const auto& append) {
    JsonList values("[", all.Next(key));
    for (const auto& [step, samples] : by_step_) {
      for (const Sample& sample : samples) append(step, sample, values.Next());
    }
  };
  const auto texts = [&](std::string_view key, std::string Sample::*text) {
    list(key, [text](int64_t, const Sample& sample, std::string* to) { AppendJsonText(sample.*text, to); });
  };
  list("step", [](int64_t step, const Sample&, std::string* to) { absl::StrAppend(to, step); });
  texts("prompt", &Sample::prompt);
  texts("response", &Sample::response);
  texts("label", &Sample::label);
  texts("finish", &Sample::finish);
  list("reward", [](int64_t, const Sample& sample, std::string* to) { AppendJsonNumber(sample.reward, to); });
  list("kl", [](int64_t, const Sample& sample, std::string* to) { AppendJsonNumber(sample.kl, to); });
  list("tokens", [](int64_t, const Sample& sample, std::string* to) {
    if (sample.tokens.empty()) {
      absl::StrAppend(to, "null");
      return;
    }
    JsonList spans("[", to);
    for (const auto& [text, reward] : sample.tokens) {
      JsonList span("[", spans.Next());
      AppendJsonText(text, span.Next());
      AppendJsonNumber(reward, span.Next());
    }
  });
  list("sequences", [](int64_t, const Sample& sample, std::string* to) {
    if (sample.sequences.empty()) {
      absl::StrAppend(to, "null");
      return;
    }
    JsonList sequences("[", to);
    for (const SampleSequence& sequence : sample.sequences) {
      JsonList spans("[", sequences.Next());
      for (const auto& [text, trained] : sequence) {
        JsonList span("[", spans.Next());
        AppendJsonText(text, span.Next());
        AppendJsonNumber(trained ? 1 : 0, span.Next());
      }
    }
  });
  std::set<std::string> names;
  for (const auto& [step, samples] : by_step_) {
    for (const Sample& sample : samples) {
      for (const auto& [name, value] : sample.parts) names.insert(name);
    }
  }
  JsonList parts("{", all.Next("parts"));
  for (const std::string& name : names) {
    JsonList values("[", parts.Next(name));
    for (const auto& [step, samples] : by_step_) {
      for (const Sample& sample : samples) {
        const auto found = sample.parts.find(name);
        AppendJsonNumber(found == sample.parts.end() ? kNone : found->second, values.Next());
      }
    }
  }
}

}  // namespace quartet
