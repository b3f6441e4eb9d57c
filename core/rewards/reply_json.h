// JSON of rewards, as commands and remote servers speak it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rewards/reward.h"

namespace quartet {

// {"query", "prompt", "response", "label", "row", "source", "truncated"}, for PrintExactJson; `with_tokens`: also
// "token_ids" and "token_texts"; of an agent's conversation also "messages".
nlohmann::json ToJson(const Answer& answer, bool with_tokens = false);
// The other fields of its prompt's row, an object of ParseExactJson.
nlohmann::json RowOf(const Answer& answer);
// A list, which is empty where there are none.
nlohmann::json MessagesOf(const Answer& answer);

// `reply` as a value of `type`, an object or an array; `shape` says in the error what it should be. INTERNAL says what
// is wrong with it. A number that JSON has no word for (NaN) is a text of it, which is no number to those who read on.
absl::StatusOr<nlohmann::json> ParseReply(std::string_view reply, nlohmann::json::value_t type, std::string_view shape);

// {"reward": number, "token_rewards": [number...]?, "score": number?, "extra_logs": {name: number}?}; with
// token_rewards the reward may be left out. What is null counts as not there. `of_tokens` is the answer, where its
// tokens may have rewards; else null. INTERNAL says what is wrong with it, or, where it is {"error": text}, that text.
absl::StatusOr<Reward> ReadReward(const nlohmann::json& object, const Answer* of_tokens = nullptr);
// A list of finite numbers; `what` is named in the error (INTERNAL).
absl::StatusOr<std::vector<float>> ReadFiniteList(const nlohmann::json& value, std::string_view what);

// A finite number that fits into a float; `what` is named in the error (INTERNAL).
absl::StatusOr<float> ReadFinite(const nlohmann::json& value, std::string_view what);

}  // namespace quartet
