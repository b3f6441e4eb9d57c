// The whole service under more calls than it takes: control is answered, and every call is answered or refused.

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rollout/testing/fake_publisher.h"
#include "rollout/testing/test_service.h"

namespace quartet {
namespace {

using testing::HasSubstr;

TEST(RolloutOverload, AnswersControlWhileMoreThanAThousandCallsWait) {
  constexpr int kWaiting = 1500;
  constexpr int kMore = 50;
  TestService service({.ranks = 2}, [](RolloutConfig* rollout) { rollout->set_max_calls(kWaiting); });
  const auto publisher = Publish(4, /*negate=*/true);
  ASSERT_TRUE(service.Pause(PauseRequest::KEEP).ok());
  GenerateHeader header = HeaderFor(1, 1, 1);
  header.set_policy_version(4);
  header.mutable_sampling()->set_max_new_tokens(2);
  const auto stub = service.StubOf(0);
  std::deque<TestService::Call> calls;
  const auto call = [&] {
    Prompt prompt = SomePrompts()[calls.size() % 5];
    prompt.set_index(calls.size());
    calls.emplace_back(*stub, header, std::vector<Prompt>{prompt}, std::chrono::minutes(2));
  };
  for (int i = 0; i < kWaiting; ++i) call();
  service.Await("calls", kWaiting);
  for (int i = 0; i < kMore; ++i) {
    call();
    Answers none;
    const grpc::Status status = calls.back().ReadAll(&none);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("rollout.max_calls = 1500 is reached"));
    calls.pop_back();
  }

  EXPECT_TRUE(service.IsServing());
  EXPECT_EQ(service.Metric("paused"), 1);
  ASSERT_TRUE(service.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service.Abort().ok());
  ASSERT_TRUE(service.Begin(publisher->manifest()).ok());
  grpc::Status status = service.Commit(4);
  ASSERT_TRUE(status.ok()) << status.error_message();
  uint64_t released = 0;
  ASSERT_TRUE(service.Sleep(&released).ok());
  EXPECT_GT(released, 0u);
  ASSERT_TRUE(service.WakeUp().ok());
  status = service.Resume();
  ASSERT_TRUE(status.ok()) << status.error_message();

  for (size_t i = 0; i < calls.size(); ++i) {
    Answers answers;
    status = calls[i].ReadAll(&answers);
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers.begin()->first.first, i);
    EXPECT_EQ(answers.begin()->second.policy_versions(0), 4u);
  }
  EXPECT_EQ(service.Metric("calls"), 0);
  service.Await("running", 0);
  EXPECT_EQ(service.Metric("kv_cache_usage"), 0);
  EXPECT_EQ(service.Ids(4).size(), 15u);
}

TEST(RolloutOverload, HasThePlaceOfACallAgainOnceItsClientKnowsOfItsEnd) {
  TestService service({.ranks = 1}, [](RolloutConfig* rollout) { rollout->set_max_calls(1); });
  GenerateHeader header = HeaderFor(1, 1, 1);
  header.mutable_sampling()->set_max_new_tokens(1);
  for (int i = 0; i < 300; ++i) {
    Answers answers;
    const grpc::Status status = service.Generate(header, {SomePrompts()[0]}, &answers);
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
}

TEST(RolloutOverload, CallsThatNeverSayWhatTheyWantHoldNobodyUp) {
  constexpr int kCalls = 100;
  TestService service({.ranks = 1}, [](RolloutConfig* rollout) { rollout->set_max_calls(kCalls); });
  const auto stub = service.StubOf(0);
  // Clients that open calls, or send a header, and then nothing.
  // Some more than there are places for: those that come while the loop below has one are refused.
  std::deque<grpc::ClientContext> contexts(kCalls + 20);
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<GenerateRequest, GenerateReply>>> silent;
  for (grpc::ClientContext& context : contexts) {
    silent.push_back(stub->Generate(&context));
    GenerateRequest request;
    *request.mutable_header() = HeaderFor(5, 1, 1);
    if (silent.size() % 2 == 0) silent.back()->Write(request);
  }
  Answers answers;
  grpc::Status status;
  do {
    answers.clear();
    status = service.Generate(HeaderFor(5, 1, 1), SomePrompts(), &answers);
  } while (status.ok());  // until all of them have come
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(service.IsServing());
  ASSERT_TRUE(service.Pause(PauseRequest::KEEP).ok());
  ASSERT_TRUE(service.Resume().ok());
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (auto& call : silent) call->Finish();
  do {
    answers.clear();
    status = service.Generate(HeaderFor(5, 1, 1), SomePrompts(), &answers);
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answers.size(), 5u);
}

TEST(RolloutOverload, BoundsWhatCallsBring) {
  TestService service({.ranks = 1});
  Answers answers;
  const grpc::Status status = service.Generate(HeaderFor(1 << 21, 1, 1), SomePrompts(), &answers);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "header.num_items is 2097152; allowed: at most services.rollout.max_call_items = 1048576");
}

}  // namespace
}  // namespace quartet
