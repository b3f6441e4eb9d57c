// Pauses and sleep of the whole service.

#include <thread>

#include "gtest/gtest.h"
#include "rollout/testing/fake_publisher.h"
#include "rollout/testing/test_service.h"

namespace quartet {
namespace {

using Fault = FakePublisher::Fault;

using RolloutPauseTest = EachGroupTest;
INSTANTIATE_TEST_SUITE_P(Groups, RolloutPauseTest, testing::ValuesIn(kGroups), NameOf);

TEST_P(RolloutPauseTest, SequencesThatAPauseKeepsGoOnUnderNewWeights) {
  auto call = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("generated_tokens") < 40) {
  }
  uint64_t in_flight = 0;
  ASSERT_TRUE(service_.Pause(PauseRequest::KEEP, &in_flight).ok());
  ASSERT_GT(in_flight, 0u);
  EXPECT_EQ(service_.Metric("paused"), 1);
  const double generated = service_.Metric("generated_tokens");
  const auto publisher = Publish(4, /*negate=*/true);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(4).ok());
  EXPECT_EQ(service_.Metric("generated_tokens"), generated);
  // What comes during the pause is answered after it, by the version that is in use then.
  std::thread later([&] { service_.Ids(4); });
  ASSERT_TRUE(service_.Resume().ok());
  later.join();
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 75u);
  int both = 0;
  for (const auto& [key, sequence] : answers) {
    ASSERT_EQ(sequence.policy_versions_size(), 80);
    for (int t = 1; t < 80; ++t) EXPECT_GE(sequence.policy_versions(t), sequence.policy_versions(t - 1));
    both += sequence.policy_versions(0) == 0 && sequence.policy_versions(79) == 4;
  }
  EXPECT_GT(both, 0);
  EXPECT_EQ(service_.Metric("paused"), 0);
}

TEST_P(RolloutPauseTest, ACommitHoldsWhatIsInFlightAndLetsItGoOnUnderTheNewWeights) {
  auto call = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("generated_tokens") < 40) {
  }
  const auto publisher = Publish(4, /*negate=*/true);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  CommitUpdateRequest request;
  *request.mutable_identity() = service_.NextIdentity();
  request.set_version(4);
  CommitUpdateReply reply;
  ASSERT_TRUE(service_.Commit(request, &reply).ok());
  EXPECT_GT(reply.pause_seconds(), 0);
  EXPECT_EQ(service_.Metric("paused"), 0);
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 75u);
  int both = 0;
  for (const auto& [key, sequence] : answers) {
    ASSERT_EQ(sequence.policy_versions_size(), 80) << "none was ended";
    both += sequence.policy_versions(0) == 0 && sequence.policy_versions(79) == 4;
  }
  EXPECT_GT(both, 0);
}

TEST_P(RolloutPauseTest, SleepsWithoutItsCacheAndGoesOnAfterwards) {
  const auto expected = service_.Ids(0);
  const int64_t whole = service_.Bytes("kv_cache");
  auto call = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("running") == 0) {
  }
  uint64_t released = 0;
  ASSERT_TRUE(service_.Sleep(&released).ok());
  EXPECT_EQ(static_cast<int64_t>(released), whole);
  EXPECT_EQ(service_.Bytes("kv_cache"), 0);
  EXPECT_EQ(service_.Metric("asleep"), 1);
  EXPECT_EQ(service_.Resume().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Pause(PauseRequest::WAIT).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  // Weights can be updated meanwhile.
  const auto publisher = Publish(4, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(4).ok());
  ASSERT_TRUE(service_.WakeUp().ok());
  ASSERT_TRUE(service_.WakeUp().ok());
  EXPECT_EQ(service_.Bytes("kv_cache"), whole);
  EXPECT_EQ(service_.Metric("paused"), 1);
  ASSERT_TRUE(service_.Resume().ok());
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 75u);
  EXPECT_EQ(service_.Ids(4), expected);
}

TEST_P(RolloutPauseTest, SleepsWithoutItsWeightsAndReadsThemAgainOrTakesThemFromAnUpdate) {
  const auto expected = service_.Ids(0);
  const int64_t cache = service_.Bytes("kv_cache");
  const int64_t weights = service_.Bytes("parameters");
  ASSERT_GT(weights, 0);
  uint64_t released = 0;
  EXPECT_EQ(service_.Sleep(&released, 3).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(service_.Sleep(&released, -1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(service_.Metric("asleep"), 0);
  EXPECT_TRUE(service_.IsServing());

  // Version 0 comes back from the folder; what was in flight goes on.
  auto call = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("running") == 0) {
  }
  ASSERT_TRUE(service_.Sleep(&released, 1).ok());
  EXPECT_EQ(static_cast<int64_t>(released), cache);
  EXPECT_TRUE(service_.IsServing());
  ASSERT_TRUE(service_.Sleep(&released, 2).ok());
  EXPECT_FALSE(service_.IsServing());
  EXPECT_EQ(static_cast<int64_t>(released), weights);
  ASSERT_TRUE(service_.Sleep(&released, 1).ok());
  EXPECT_EQ(released, 0u);
  EXPECT_EQ(service_.Bytes("parameters"), 0);
  EXPECT_EQ(service_.Bytes("kv_cache"), 0);
  EXPECT_EQ(service_.Metric("weights_released"), 1);
  EXPECT_EQ(service_.Resume().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(service_.WakeUp().ok());
  EXPECT_TRUE(service_.IsServing());
  EXPECT_EQ(service_.Bytes("parameters"), weights);
  EXPECT_EQ(service_.Metric("weights_released"), 0);
  ASSERT_TRUE(service_.Resume().ok());
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 75u);
  EXPECT_EQ(service_.Ids(0), expected);

  // A later one does not.
  const auto publisher = Publish(4, /*negate=*/true);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(4).ok());
  const auto updated = service_.Ids(4);
  ASSERT_TRUE(service_.Sleep(&released, 2).ok());
  // With the memory that the next update would have had.
  EXPECT_EQ(static_cast<int64_t>(released), cache + 2 * weights);
  ASSERT_TRUE(service_.WakeUp().ok());
  EXPECT_EQ(service_.Metric("asleep"), 0);
  EXPECT_EQ(service_.Metric("weights_released"), 1);
  EXPECT_FALSE(service_.IsServing());
  GenerateHeader header = HeaderFor(5, 1, 1);
  header.set_policy_version(4);
  for (const grpc::Status& status :
       {service_.Generate(header, SomePrompts(), &answers), service_.Resume(), service_.Pause(PauseRequest::WAIT)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find("Sleep released those of version 4"), std::string::npos)
        << status.error_message();
  }
  // But for an update, by the same version too, and not by one that fails or is older.
  publisher->set_fault(Fault::kFlipsABit, 3);
  EXPECT_EQ(service_.Begin(publisher->manifest()).error_code(), grpc::StatusCode::DATA_LOSS);
  publisher->set_fault(Fault::kNone, 3);
  EXPECT_EQ(service_.Begin(Publish(3, /*negate=*/true)->manifest()).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Metric("weights_released"), 1);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  EXPECT_EQ(service_.Bytes("parameters"), weights) << "no old weights lie beside the new ones";
  EXPECT_FALSE(service_.IsServing());
  ASSERT_TRUE(service_.Commit(4).ok());
  EXPECT_TRUE(service_.IsServing());
  EXPECT_EQ(service_.Metric("weights_released"), 0);
  ASSERT_TRUE(service_.Resume().ok());
  EXPECT_EQ(service_.Ids(4), updated);

  // Also while the rollout sleeps.
  ASSERT_TRUE(service_.Sleep(&released, 2).ok());
  const auto next = Publish(5, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(next->manifest()).ok());
  ASSERT_TRUE(service_.Commit(5).ok());
  EXPECT_EQ(service_.Bytes("kv_cache"), 0);
  ASSERT_TRUE(service_.WakeUp().ok());
  ASSERT_TRUE(service_.Resume().ok());
  EXPECT_EQ(service_.Ids(5), expected);
}

TEST_P(RolloutPauseTest, AnAbortIsNotHeldUpByAPauseThatWaits) {
  auto call = service_.Stream(LongHeader(5, 60, 80), SomePrompts());
  while (service_.Metric("running") == 0) {
  }
  std::thread waiting([&] { EXPECT_TRUE(service_.Pause(PauseRequest::WAIT).ok()); });
  while (service_.Metric("paused") == 0) {
  }
  EXPECT_TRUE(service_.Pause(PauseRequest::ABORT).ok());
  waiting.join();
  Answers answers;
  ASSERT_TRUE(call.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 300u);
  ASSERT_TRUE(service_.Resume().ok());
}

TEST_P(RolloutPauseTest, APauseCanEndOrAwaitWhatIsInFlight) {
  auto aborted = service_.Stream(LongHeader(5, 60, 80), SomePrompts());
  while (service_.Metric("generated_tokens") < 40) {
  }
  ASSERT_TRUE(service_.Pause(PauseRequest::ABORT).ok());
  EXPECT_EQ(service_.Metric("kv_cache_usage"), 0);
  Answers answers;
  ASSERT_TRUE(aborted.ReadAll(&answers).ok());
  EXPECT_EQ(answers.size(), 300u);
  int cut = 0;
  for (const auto& [key, sequence] : answers) {
    EXPECT_EQ(sequence.log_probs_size(), sequence.policy_versions_size());
    EXPECT_EQ(sequence.finish_reason() == GeneratedSequence::ABORTED, sequence.log_probs_size() < 80);
    cut += sequence.finish_reason() == GeneratedSequence::ABORTED && sequence.log_probs_size() > 0;
  }
  EXPECT_GT(cut, 0);
  ASSERT_TRUE(service_.Resume().ok());

  auto awaited = service_.Stream(LongHeader(5, 15, 80), SomePrompts());
  while (service_.Metric("running") == 0) {
  }
  uint64_t in_flight = 1;
  ASSERT_TRUE(service_.Pause(PauseRequest::WAIT, &in_flight).ok());
  EXPECT_EQ(in_flight, 0u);
  answers.clear();
  ASSERT_TRUE(awaited.ReadAll(&answers).ok());
  for (const auto& [key, sequence] : answers) EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::LENGTH);
  ASSERT_TRUE(service_.Resume().ok());
  EXPECT_EQ(service_.Pause(PauseRequest::MODE_UNSPECIFIED).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace quartet
