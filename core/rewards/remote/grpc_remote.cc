#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/rewards/remote/in_parts.h"
#include "core/rewards/remote/remote.h"
#include "core/rewards/token_rewards.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"
#include "proto/reward.grpc.pb.h"

namespace quartet {
namespace {

// Longer requests are refused by servers that are not told otherwise.
constexpr size_t kUsualMostRequestBytes = 4 << 20;

constexpr absl::Duration kLook = absl::Seconds(2);

struct Server {
  std::string url;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<RewardModel::Stub> stub;
};

Server Connect(const std::string& url) {
  absl::string_view address = url;
  const bool tls = absl::ConsumePrefix(&address, "grpcs://");
  if (!tls) absl::ConsumePrefix(&address, "grpc://");
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostReplyBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Of its own, so that no other server of this process shares its fate.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  Server server = {
      .url = url,
      .channel = grpc::CreateCustomChannel(
          std::string(address),
          tls ? grpc::SslCredentials(grpc::SslCredentialsOptions()) : grpc::InsecureChannelCredentials(), arguments),
      .stub = nullptr};
  server.stub = RewardModel::NewStub(server.channel);
  return server;
}

// `of_tokens`: as ReadReward's.
absl::StatusOr<Reward> Read(const RewardResult& result, const Answer* of_tokens) {
  if (!result.error().empty()) return absl::InternalError(result.error());
  // Of others 0 cannot be told from nothing: what they were built with sends neither.
  if (of_tokens != nullptr && !result.has_reward() && result.token_rewards().empty() && of_tokens->tokens > 0) {
    return absl::InternalError(
        "the result has neither reward nor token_rewards; a reward of 0 is one that is set (optional in "
        "proto/reward.proto)");
  }
  Reward reward;
  reward.value = result.reward();
  if (result.has_score()) reward.score = result.score();
  for (const auto& [name, value] : result.extra_logs()) reward.extra_logs[name] = value;
  const auto check = [](const std::string& name, float value) {
    return std::isfinite(value) ? absl::OkStatus() : absl::InternalError(absl::StrCat(name, " is ", value));
  };
  QUARTET_RETURN_IF_ERROR(check("reward", reward.value));
  if (!result.token_rewards().empty()) {
    if (of_tokens == nullptr) return UnexpectedTokenRewards();
    for (int t = 0; t < result.token_rewards_size(); ++t) {
      QUARTET_RETURN_IF_ERROR(check(absl::StrCat("token_rewards[", t, "]"), result.token_rewards(t)));
    }
    const std::optional<float> said = result.has_reward() ? std::optional<float>(result.reward()) : std::nullopt;
    QUARTET_RETURN_IF_ERROR(
        SetTokenRewards(*of_tokens, {result.token_rewards().begin(), result.token_rewards().end()}, said, &reward));
  }
  QUARTET_RETURN_IF_ERROR(check("score", reward.score.value_or(0)));
  for (const auto& [name, value] : reward.extra_logs) QUARTET_RETURN_IF_ERROR(check(name, value));
  return reward;
}

class GrpcRemote final : public RewardFunction {
 public:
  explicit GrpcRemote(const RemoteOptions& options) : timeout_(options.timeout), token_rewards_(options.token_rewards) {
    for (const std::string& url : options.urls) servers_.push_back(Connect(url));
    if (!options.api_key.empty()) authorization_ = absl::StrCat("Bearer ", options.api_key);
  }

  std::vector<absl::StatusOr<Reward>> Score(std::span<const Answer* const> answers, std::stop_token stop) override {
    const Server& server = servers_[next_++ % servers_.size()];
    return AskInParts(answers, [&](std::span<const Answer* const> part) { return AskAt(server, part, stop); });
  }

  // Any server will do: others are asked in its place.
  absl::Status Check() override {
    if (reached_) return absl::OkStatus();
    for (const Server& server : servers_) reached_ = reached_ || server.channel->WaitForConnected(FromNow(kLook));
    if (reached_) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(servers_.front().url, ": there is no connection"));
  }

 private:
  Asked AskAt(const Server& server, std::span<const Answer* const> answers, const std::stop_token& stop) {
    RewardRequest request;
    for (const Answer* answer : answers) {
      RewardItem& item = *request.add_items();
      item.set_query(answer->query);
      item.set_prompt(answer->prompt);
      item.set_response(answer->response);
      item.set_label(answer->label);
      item.set_truncated(answer->truncated);
      item.set_row(answer->row);
      item.set_messages(answer->messages);
      if (!token_rewards_) continue;
      item.mutable_token_ids()->Assign(answer->token_ids.begin(), answer->token_ids.end());
      item.mutable_token_texts()->Assign(answer->token_texts.begin(), answer->token_texts.end());
    }
    grpc::ClientContext context;
    context.set_deadline(FromNow(timeout_));
    if (!authorization_.empty()) context.AddMetadata("authorization", authorization_);
    RewardReply reply;
    absl::Status status;
    {
      const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
      status = FromGrpc(server.stub->Reward(&context, request, &reply));
    }
    // A server's own "cancelled" is no wish of ours.
    if (absl::IsCancelled(status) && !stop.stop_requested()) {
      status = absl::UnavailableError(absl::StrCat("cancelled by the server: ", status.message()));
    }
    Asked::Smaller smaller = Asked::Smaller::kNone;
    if (absl::IsResourceExhausted(status) && request.ByteSizeLong() > kUsualMostRequestBytes) {
      smaller = Asked::Smaller::kHalves;
    }
    // What it does not take, no label of ours is to blame for.
    if (absl::IsInvalidArgument(status)) {
      smaller = Asked::Smaller::kOnes;
      status = absl::FailedPreconditionError(status.message());
    }
    // What it has lost is none of the rewards that it gave.
    if (absl::IsDataLoss(status)) status = absl::InternalError(status.message());
    if (status.ok() && reply.results_size() != static_cast<int>(answers.size())) {
      status = absl::InternalError(
          absl::StrCat("the reply has ", reply.results_size(), " results for ", answers.size(), " answers"));
    }
    if (!status.ok()) return {Prefixed(server.url, status), smaller};
    std::vector<absl::StatusOr<Reward>> rewards;
    for (size_t i = 0; i < answers.size(); ++i) {
      const Answer* const of_tokens = token_rewards_ ? answers[i] : nullptr;
      rewards.push_back(Prefixed(server.url, Read(reply.results(static_cast<int>(i)), of_tokens)));
    }
    return {std::move(rewards)};
  }

  const absl::Duration timeout_;
  const bool token_rewards_;
  std::vector<Server> servers_;
  std::string authorization_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> reached_ = false;
};

}  // namespace

std::unique_ptr<RewardFunction> NewGrpcRemote(const RemoteOptions& options) {
  return std::make_unique<GrpcRemote>(options);
}

}  // namespace quartet
