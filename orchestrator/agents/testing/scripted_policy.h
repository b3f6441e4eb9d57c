// A policy that draws what a test tells it to.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/agents/testing/template_tokenizer.h"
#include "proto/rollout.pb.h"

namespace quartet {

// What is drawn behind the text of a prompt; or an error.
using Say = std::function<absl::StatusOr<std::string>(const std::string& prompt, const std::stop_token& give_up)>;

// Thread safe.
class ScriptedPolicy {
 public:
  // The tokenizer is of TemplateTokenizer. Without `say` it draws words that follow from the seed.
  explicit ScriptedPolicy(const Tokenizer* tokenizer, Say say = {}) : tokenizer_(*tokenizer), say_(std::move(say)) {}

  absl::StatusOr<GeneratedSequence> Generate(const GenerateHeader& header, const Prompt& prompt,
                                             const std::stop_token& give_up) {
    {
      const std::lock_guard lock(mutex_);
      headers_.push_back(header);
    }
    absl::StatusOr<std::string> text = absl::StrFormat("the %x", header.sampling().seed());
    if (say_) text = say_(tokenizer_.Decode({prompt.ids().begin(), prompt.ids().end()}, false), give_up);
    if (!text.ok()) return text.status();
    return Draw(header, prompt, *text);
  }
  std::vector<GenerateHeader> headers() const {
    const std::lock_guard lock(mutex_);
    return headers_;
  }

 private:
  // Letter by letter, which is not how it is encoded, up to where it has to end.
  GeneratedSequence Draw(const GenerateHeader& header, const Prompt& prompt, const std::string& text) const {
    std::vector<int32_t> ids;
    for (const char letter : text) {
      const std::vector<int32_t> one = tokenizer_.Encode(std::string(1, letter), false).value();
      ids.insert(ids.end(), one.begin(), one.end());
    }
    ids.push_back(kTemplateEnds[0]);
    GeneratedSequence sequence;
    const bool cut = ids.size() > static_cast<size_t>(header.sampling().max_new_tokens());
    if (cut) ids.resize(header.sampling().max_new_tokens());
    sequence.set_finish_reason(cut ? GeneratedSequence::LENGTH : GeneratedSequence::STOP);
    *sequence.mutable_tokens()->mutable_ids() = prompt.ids();
    for (const int32_t id : ids) {
      sequence.mutable_tokens()->add_ids(id);
      sequence.add_log_probs(-1);
      sequence.add_sampled_log_probs(-0.5F);
      sequence.add_policy_versions(header.policy_version());
    }
    return sequence;
  }

  const Tokenizer& tokenizer_;
  const Say say_;
  mutable std::mutex mutex_;
  std::vector<GenerateHeader> headers_;  // guarded by mutex_
};

}  // namespace quartet
