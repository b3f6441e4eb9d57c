// Generation through the whole service, over real sockets.

#include "rollout/rollout_service.h"

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/fail_point.h"
#include "core/safetensors/reader.h"
#include "gtest/gtest.h"
#include "rollout/testing/test_service.h"

namespace quartet {
namespace {

using RolloutServiceTest = EachGroupTest;
INSTANTIATE_TEST_SUITE_P(Groups, RolloutServiceTest, testing::ValuesIn(kGroups), NameOf);

TEST_P(RolloutServiceTest, HandsOutEachSequenceAsItEnds) {
  auto call = service_.Stream(LongHeader(5, 60, 80), SomePrompts());
  GenerateReply reply;
  ASSERT_TRUE(call.Read(&reply));
  EXPECT_EQ(reply.sequence().log_probs_size(), 80);
  // Most others have not begun.
  EXPECT_GT(service_.Metric("waiting"), 0);
  call.Cancel();
  while (call.Read(&reply)) {
  }
  service_.Await("kv_cache_usage", 0);
}

TEST_P(RolloutServiceTest, StreamsTokensWhereAsked) {
  GenerateHeader header = HeaderFor(5, 2, 1);
  header.set_stream_tokens(true);
  auto call = service_.Stream(header, SomePrompts());
  std::map<std::pair<uint64_t, int32_t>, GeneratedTokens> streamed;
  Answers answers;
  GenerateReply reply;
  while (call.Read(&reply)) {
    if (reply.has_sequence()) {
      answers[{reply.sequence().prompt_index(), reply.sequence().sample()}] = reply.sequence();
    } else {
      const std::pair key(reply.tokens().prompt_index(), reply.tokens().sample());
      EXPECT_EQ(answers.count(key), 0u) << "a token behind its sequence";
      streamed[key].MergeFrom(reply.tokens());
    }
  }
  ASSERT_TRUE(call.Finish().ok());
  EXPECT_EQ(answers.size(), 10u);
  for (const auto& [key, sequence] : answers) {
    const GeneratedTokens& tokens = streamed[key];
    ASSERT_EQ(tokens.ids_size(), sequence.log_probs_size());
    const int prompt = sequence.tokens().ids_size() - tokens.ids_size();
    for (int t = 0; t < tokens.ids_size(); ++t) {
      EXPECT_EQ(tokens.ids(t), sequence.tokens().ids(prompt + t));
      EXPECT_EQ(tokens.log_probs(t), sequence.log_probs(t));
    }
  }
}

TEST_P(RolloutServiceTest, ACallThatIsClosedOrLateGivesItsBlocksBackAndLeavesOthersAlone) {
  const auto expected = service_.Ids(0);
  auto closed = service_.Stream(LongHeader(5, 100, 80), SomePrompts());
  auto late = service_.Stream(LongHeader(5, 100, 80), SomePrompts(), std::chrono::milliseconds(300));
  GenerateReply reply;
  ASSERT_TRUE(closed.Read(&reply));
  std::thread other([&] { EXPECT_EQ(service_.Ids(0), expected); });
  closed.Cancel();
  while (closed.Read(&reply)) {
  }
  EXPECT_EQ(closed.Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (late.Read(&reply)) {
  }
  EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  other.join();
  service_.Await("running", 0);
  EXPECT_EQ(service_.Metric("kv_cache_usage"), 0);
  EXPECT_EQ(service_.Metric("waiting"), 0);
}

TEST_P(RolloutServiceTest, ManyCallsAtOnceGetWhatEachWouldGetAlone) {
  const auto expected = service_.Ids(0);
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) callers.emplace_back([&] { EXPECT_EQ(service_.Ids(0), expected); });
  for (std::thread& caller : callers) caller.join();
  service_.Await("kv_cache_usage", 0);
}

TEST(RolloutService, RefusesWhatWouldWaitBehindTooMany) {
  TestService service({.ranks = 2}, [](RolloutConfig* rollout) {
    rollout->set_max_num_seqs(2);
    rollout->set_max_waiting(60);
  });
  // 4 run, and a call that comes before 60 wait may make it more.
  auto first = service.Stream(LongHeader(5, 10, 80), SomePrompts());
  auto second = service.Stream(LongHeader(5, 12, 80), SomePrompts());
  while (service.Metric("running") + service.Metric("waiting") <= 64) {
  }
  Answers answers;
  const grpc::Status refused = service.Generate(HeaderFor(5, 2, 1), SomePrompts(), &answers);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_NE(refused.error_message().find("rollout.max_waiting"), std::string::npos) << refused.error_message();
  EXPECT_TRUE(first.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 50u);
  answers.clear();
  EXPECT_TRUE(second.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 60u);
  EXPECT_GT(service.Metric("generated_tokens_per_second"), 0);
  EXPECT_GT(service.Metric("prefill_tokens_per_second"), 0);
  EXPECT_GT(service.Metric("prefix_cache_hit_rate"), 0);
}

TEST(RolloutService, AnyGroupOfRanksTellsTheSameOfPrompts) {
  const auto told = [](const Group& group) {
    TestService service(group);
    GenerateHeader header = HeaderFor(5, 2, 1);
    header.mutable_sampling()->set_max_new_tokens(0);
    header.mutable_sampling()->set_prompt_logprobs(1);
    Answers answers;
    const grpc::Status status = service.Generate(header, SomePrompts(), &answers);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(answers.size(), 10u);
    std::vector<float> log_probs;
    for (const auto& [key, sequence] : answers) {
      EXPECT_EQ(sequence.prompt_log_probs_size(), sequence.tokens().ids_size() - 1);
      EXPECT_EQ(sequence.prompt_alternatives_size(), sequence.tokens().ids_size() - 1);
      log_probs.insert(log_probs.end(), sequence.prompt_log_probs().begin(), sequence.prompt_log_probs().end());
    }
    return log_probs;
  };
  const std::vector<float> one = told({.ranks = 1});
  for (const Group& group :
       {Group{.ranks = 2}, Group{.ranks = 2, .zero_stage = 3}, Group{.ranks = 2, .tensor_parallel_size = 2},
        Group{.ranks = 4, .tensor_parallel_size = 2}}) {
    const std::vector<float> two = told(group);
    ASSERT_EQ(two.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5);
  }
}

TEST(RolloutService, AnyGroupOfRanksGeneratesTheSame) {
  TestService one({.ranks = 1});
  const auto expected = one.Ids(0);
  EXPECT_EQ(TestService({.ranks = 2}).Ids(0), expected);
  EXPECT_EQ(TestService({.ranks = 2, .zero_stage = 3}).Ids(0), expected);
  EXPECT_EQ(TestService({.ranks = 2, .tensor_parallel_size = 2}).Ids(0), expected);
  EXPECT_EQ(TestService({.ranks = 4, .tensor_parallel_size = 2}).Ids(0), expected);
}

TEST_P(RolloutServiceTest, DescribesItself) {
  const ServiceInfo info = service_.Info();
  EXPECT_EQ(info.service(), "rollout");
  EXPECT_EQ(info.vocab_size().at("model"), 101);
  EXPECT_EQ(info.max_model_len(), 128);
  ASSERT_EQ(info.ranks_size(), GetParam().ranks);
  const auto reader = CheckpointReader::Open(kTestModel);
  ASSERT_TRUE(reader.ok()) << reader.status();
  int64_t parameters = 0;
  for (const auto& [name, tensor] : (*reader)->tensors()) parameters += tensor.numel();
  std::set<std::string> endpoints;
  for (const RankInfo& rank : info.ranks()) {
    endpoints.insert(rank.endpoint());
    EXPECT_EQ(rank.model_parameters(), parameters);
    EXPECT_EQ(rank.groups_size(), GetParam().ranks == 1 ? 0 : 1);
    EXPECT_GT(rank.peak_rss_bytes(), 0);
    for (const MemoryUse& use : rank.memory()) {
      if (use.category() != "parameters" && use.category() != "kv_cache") continue;
      EXPECT_GT(use.current_bytes(), 0) << use.category();
    }
  }
  EXPECT_EQ(static_cast<int>(endpoints.size()), GetParam().ranks);
}

TEST(RolloutService, RefusesBadRequestsByPromptFieldAndValue) {
  TestService service({.ranks = 2});
  const auto refusal = [&](const GenerateHeader& header, const std::vector<Prompt>& prompts) {
    Answers answers;
    const grpc::Status status = service.Generate(header, prompts, &answers);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  };
  std::vector<Prompt> prompts = SomePrompts();
  prompts[2].set_ids(0, 101);
  EXPECT_EQ(refusal(HeaderFor(5, 1, 1), prompts), "prompt 103: ids[0] is 101; allowed: 0 to 100");
  prompts = SomePrompts();
  prompts[1].set_index(101);
  EXPECT_EQ(refusal(HeaderFor(5, 1, 1), prompts), "prompt 101: its index comes twice");
  EXPECT_EQ(refusal(HeaderFor(5, 0, 1), SomePrompts()), "sampling.n_samples is 0; allowed: at least 1");
  EXPECT_EQ(refusal(HeaderFor(6, 1, 1), SomePrompts()), "header.num_items is 6 but 5 items came");

  grpc::ClientContext context;
  ServiceInfo info;
  const grpc::Status follower = service.StubOf(1)->GetInfo(&context, GetInfoRequest(), &info);
  EXPECT_EQ(follower.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(follower.error_message().find("rank 0 at 127.0.0.1:"), std::string::npos) << follower.error_message();
}

TEST(RolloutService, AServiceWhoseEngineFailsIsNotHealthyAndEnds) {
  TestService service({.ranks = 2});
  service.may_break = true;
  ASSERT_TRUE(SetFailPoints("rollout.step=error").ok());
  Answers answers;
  const grpc::Status status = service.Generate(HeaderFor(1, 1, 1), {SomePrompts()[0]}, &answers);
  EXPECT_FALSE(status.ok());
  for (int i = 0; i < 5000 && service.Broken().ok(); ++i) absl::SleepFor(absl::Milliseconds(2));
  ASSERT_TRUE(SetFailPoints("").ok());
  EXPECT_NE(service.Broken().message().find("the engine has failed: generation: "), std::string::npos)
      << service.Broken();
  for (int i = 0; i < 5000 && service.AnyServing(); ++i) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_FALSE(service.AnyServing());
}

}  // namespace
}  // namespace quartet
