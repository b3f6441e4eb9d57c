// Rewards by servers of the user's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/rewards/reward.h"

namespace quartet {

// Longer replies are refused.
inline constexpr int kMostReplyBytes = 64 << 20;

struct RemoteOptions {
  std::vector<std::string> urls;                // of one kind, at least one; asked in turn
  std::string api_key;                          // "": none
  absl::Duration timeout = absl::Seconds(180);  // of a request
  // Of requests over HTTP that take longer the log says so, once a minute.
  absl::Duration slow = absl::Seconds(5);
  bool token_rewards = false;  // they are told the tokens, and may give each a reward
};

// OpenRLHF's remote reward protocol over HTTP: POST {"query": [text...], "prompts": [...], "labels": [...]}, reply
// {"rewards": [number...], "scores": [number...]?, "extra_logs": {name: [number...]}?}, where of one answer the lists
// may be plain numbers. A reward that is null is an error of its answer. With RemoteOptions::token_rewards also
// {"token_ids": [[id...]...], "token_texts": [[text...]...]}, and {"token_rewards": [[number...]...]?}, where a list
// that is null counts as not there. Proxies of the environment are not used.
std::unique_ptr<RewardFunction> NewHttpRemote(RemoteOptions options);

// RewardModel of proto/reward.proto. "grpc://host:port" in plain text; "grpcs://host:port" over TLS, where the
// machine's certificate authorities vouch for the server.
std::unique_ptr<RewardFunction> NewGrpcRemote(const RemoteOptions& options);

}  // namespace quartet
