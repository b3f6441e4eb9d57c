#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/services.h"

namespace quartet {
namespace {

// Sources judge the last answer of an episode, of which the agent has made the others.
absl::Status CheckSourcesBesideAgent(const RewardConfig& reward) {
  for (int i = 0; i < reward.source_size(); ++i) {
    const RewardSource& source = reward.source(i);
    const std::string field = absl::StrCat("reward.source[", i, "].");
    if (source.token_rewards()) {
      return Bad(
          field + "token_rewards", "true",
          "it must be false with agent: a source is told an episode's last answer, and not what was drawn before");
    }
    if (source.rule() == "length") {
      return Bad(field + "rule", "\"length\"",
                 "with agent an episode has several answers; let the agent's reward depend on what it asked for");
    }
    if (source.name() == "agent") {
      return Bad(field + "name", "\"agent\"", "with agent the metric reward/agent is what the agent says");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAgent(const RunConfig& c) {
  if (!c.has_agent()) return absl::OkStatus();
  if (!HasAgent(c)) {
    return Missing("agent.command", "it names the program that talks with the policy: \"python3 agent.py\"");
  }
  if (!c.data().apply_chat_template()) {
    return Bad("data.apply_chat_template", "false",
               "with agent it must be true: an agent sends messages, and the chat template makes prompts of them");
  }
  const AlgorithmConfig& a = c.algorithm();
  if (a.overlong_buffer_len() > 0 && a.overlong_penalty_factor() > 0) {
    return Bad("algorithm.overlong_buffer_len", absl::StrCat(a.overlong_buffer_len()),
               "it must be 0 with agent: an episode has several answers, each of which may have "
               "rollout.generate_max_len tokens; let the agent's reward depend on what it asked for");
  }
  if (c.agent().processes() > c.rollout().max_calls()) {
    return Bad(
        "agent.processes", absl::StrCat(c.agent().processes()),
        absl::StrCat("each process waits for an answer at the same time: it must be at most rollout.max_calls = ",
                     c.rollout().max_calls()));
  }
  return CheckSourcesBesideAgent(c.reward());
}

}  // namespace quartet
