#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "core/rewards/remote/remote.h"
#include "proto/reward.grpc.pb.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What its first label asks for.
class GrpcServer final : public RewardModel::Service {
 public:
  GrpcServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string url() const { return "grpc://127.0.0.1:" + std::to_string(port_); }

 private:
  grpc::Status Reward(grpc::ServerContext* context, const RewardRequest* request, RewardReply* reply) override {
    const std::string& wish = request->items(0).label();
    if (wish == "wait") {
      while (!context->IsCancelled()) std::this_thread::yield();
      return grpc::Status::CANCELLED;
    }
    if (wish == "busy") return {grpc::StatusCode::UNAVAILABLE, "the judge is busy"};
    for (const RewardItem& item : request->items()) {
      if (item.label() == "no") return {grpc::StatusCode::INVALID_ARGUMENT, "not my kind"};
    }
    if (wish == "one less") return grpc::Status::OK;
    for (const RewardItem& item : request->items()) {
      RewardResult& result = *reply->add_results();
      const auto key = context->client_metadata().find("authorization");
      result.set_reward(static_cast<float>(item.response().size()));
      if (item.truncated()) result.set_score(0.25f);
      (*result.mutable_extra_logs())["key"] =
          key != context->client_metadata().end() && key->second == "Bearer secret" ? 1 : 0;
      (*result.mutable_extra_logs())["query"] = item.query() == item.prompt() + item.response() ? 1 : 0;
      if (item.label() == "tokens" || item.label() == "nothing") result.clear_reward();
      for (int t = 0; t < item.token_ids_size() && item.label() != "whole" && item.label() != "nothing"; ++t) {
        result.add_token_rewards(static_cast<float>(item.token_ids(t)) + (item.token_texts(t) == "b" ? 0.5f : 0));
      }
      if (item.label() == "unasked") result.add_token_rewards(1);
      if (item.label() == "nan token") result.set_token_rewards(1, std::numeric_limits<float>::quiet_NaN());
      if (item.label() == "error") result.set_error("cannot judge this");
      if (item.label() == "nan") result.set_reward(std::numeric_limits<float>::quiet_NaN());
    }
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

Answer GrpcAnswer(const std::string& response, const std::string& label, bool truncated = false) {
  Answer answer;
  answer.query = "Q? " + response;
  answer.prompt = "Q? ";
  answer.response = response;
  answer.label = label;
  answer.truncated = truncated;
  return answer;
}

std::vector<absl::StatusOr<Reward>> AskGrpc(const RemoteOptions& options, const std::vector<Answer>& answers,
                                            std::stop_token stop = {}) {
  std::vector<const Answer*> pointers;
  for (const Answer& answer : answers) pointers.push_back(&answer);
  return NewGrpcRemote(options)->Score(pointers, std::move(stop));
}

absl::Status Error(const GrpcServer& server, const std::string& label) {
  return AskGrpc({.urls = {server.url()}}, {GrpcAnswer("1", label)}).at(0).status();
}

TEST(GrpcRemote, BringsRewardsScoresAndFigures) {
  const GrpcServer server;
  const auto rewards = AskGrpc({.urls = {server.url()}, .api_key = "secret"},
                               {GrpcAnswer("12", ""), GrpcAnswer("123", "error"), GrpcAnswer("1", "", true)});
  ASSERT_EQ(rewards.size(), 3);
  ASSERT_TRUE(rewards[0].ok()) << rewards[0].status();
  EXPECT_EQ(rewards[0]->value, 2);
  EXPECT_EQ(rewards[0]->score, std::nullopt);
  EXPECT_EQ(rewards[0]->extra_logs.at("key"), 1);
  EXPECT_EQ(rewards[0]->extra_logs.at("query"), 1);
  EXPECT_THAT(std::string(rewards[1].status().message()),
              AllOf(HasSubstr("cannot judge this"), HasSubstr(server.url())));
  ASSERT_TRUE(rewards[2].ok());
  EXPECT_EQ(rewards[2]->score, 0.25f);
}

TEST(GrpcRemote, BringsRewardsOfTokens) {
  const GrpcServer server;
  const auto ask = [&](const std::string& label, bool of_tokens = true) {
    Answer answer = GrpcAnswer("ab", label);
    answer.tokens = 2;
    answer.token_ids = {5, 6};
    answer.token_texts = {"a", "b"};
    return AskGrpc({.urls = {server.url()}, .token_rewards = of_tokens}, {answer}).at(0);
  };
  const absl::StatusOr<Reward> reward = ask("tokens");
  ASSERT_TRUE(reward.ok()) << reward.status();
  EXPECT_THAT(reward->token_rewards, testing::ElementsAre(5, 6.5));
  EXPECT_EQ(reward->value, 11.5);
  EXPECT_EQ(ask("whole")->value, 2);
  EXPECT_EQ(ask("", /*of_tokens=*/false)->value, 2) << "it is not told the tokens";
  EXPECT_THAT(std::string(ask("").status().message()), HasSubstr("\"reward\" is 2, and"));
  EXPECT_THAT(std::string(ask("unasked").status().message()), HasSubstr("has 3 numbers, and the answer has 2 tokens"));
  EXPECT_THAT(std::string(ask("unasked", false).status().message()), HasSubstr("token_rewards is false"));
  EXPECT_THAT(std::string(ask("nan token").status().message()), HasSubstr("token_rewards[1] is nan"));
  EXPECT_THAT(std::string(ask("nothing").status().message()), HasSubstr("has neither reward nor token_rewards"));
}

TEST(GrpcRemote, AsksServersInTurn) {
  const GrpcServer first, second;
  const auto remote = NewGrpcRemote({.urls = {first.url(), second.url()}});
  const Answer answer = GrpcAnswer("1", "error");
  const Answer* const one[] = {&answer};
  EXPECT_THAT(std::string(remote->Score(one, {}).at(0).status().message()), HasSubstr(first.url()));
  EXPECT_THAT(std::string(remote->Score(one, {}).at(0).status().message()), HasSubstr(second.url()));
}

TEST(GrpcRemote, TellsErrorsThatPassFromThoseThatDoNot) {
  const GrpcServer server;
  EXPECT_TRUE(absl::IsUnavailable(Error(server, "busy")));
  EXPECT_TRUE(absl::IsFailedPrecondition(Error(server, "no")));
  EXPECT_TRUE(absl::IsInternal(Error(server, "nan")));
  EXPECT_THAT(std::string(Error(server, "one less").message()), HasSubstr("0 results for 1 answers"));
  EXPECT_TRUE(absl::IsUnavailable(AskGrpc({.urls = {"grpc://127.0.0.1:9"}}, {GrpcAnswer("", "")}).at(0).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      AskGrpc({.urls = {server.url()}, .timeout = absl::Milliseconds(100)}, {GrpcAnswer("", "wait")}).at(0).status()));
}

TEST(GrpcRemote, AsksForEachAnswerWhereTheServerDoesNotTakeOneOfThem) {
  const GrpcServer server;
  const auto rewards = AskGrpc({.urls = {server.url()}}, {GrpcAnswer("1", ""), GrpcAnswer("12", "no"),
                                                          GrpcAnswer("123", "error"), GrpcAnswer("1234", "")});
  ASSERT_EQ(rewards.size(), 4);
  ASSERT_TRUE(rewards[0].ok() && rewards[3].ok()) << rewards[0].status() << rewards[3].status();
  EXPECT_EQ(rewards[0]->value, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(rewards[1].status())) << rewards[1].status();
  EXPECT_THAT(std::string(rewards[2].status().message()), HasSubstr("cannot judge this"));
  EXPECT_EQ(rewards[3]->value, 4);
}

TEST(GrpcRemote, HalvesRequestsThatAreLongerThanTheServerTakes) {
  const GrpcServer server;
  // Three of them are more than 4 MiB, two are not.
  const std::string text(700'000, 'x');
  std::vector<Answer> answers(6, GrpcAnswer(text, ""));
  answers.push_back(GrpcAnswer(std::string(5 << 20, 'x'), ""));
  const auto rewards = AskGrpc({.urls = {server.url()}}, answers);
  ASSERT_EQ(rewards.size(), 7);
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(rewards[i].ok()) << i << ": " << rewards[i].status();
    EXPECT_EQ(rewards[i]->value, 700'000);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(rewards[6].status())) << rewards[6].status();
}

TEST(GrpcRemote, LeavesWhenTheCallEnds) {
  const GrpcServer server;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(
      absl::IsCancelled(AskGrpc({.urls = {server.url()}}, {GrpcAnswer("", "wait")}, stop.get_token()).at(0).status()));
}

}  // namespace
}  // namespace quartet
