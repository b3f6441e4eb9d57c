// New weights for the whole service, and what happens when they do not come whole.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/testing/cut_off_proxy.h"
#include "rollout/testing/fake_publisher.h"
#include "rollout/testing/test_service.h"

namespace quartet {
namespace {

using Fault = FakePublisher::Fault;

using RolloutUpdateTest = EachGroupTest;
INSTANTIATE_TEST_SUITE_P(Groups, RolloutUpdateTest, testing::ValuesIn(kGroups), NameOf);

TEST_P(RolloutUpdateTest, TakesANewVersionAndServesTheOldOneUntilItIsCommitted) {
  const auto before = service_.Ids(0);
  const auto same = Publish(4, /*negate=*/false);
  const auto other = Publish(5, /*negate=*/true);
  uint64_t bytes = 0;
  grpc::Status status = service_.Begin(other->manifest(), &bytes);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(service_.Ids(0), before);
  ASSERT_TRUE(service_.Commit(5).ok());
  EXPECT_EQ(service_.Info().policy_version(), 5u);
  EXPECT_NE(service_.Ids(5), before);

  Answers answers;
  status = service_.Generate(HeaderFor(5, 1, 1), SomePrompts(), &answers);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("header.policy_version is 0, but the weights in use are version 5"),
            std::string::npos)
      << status.error_message();

  status = service_.Begin(same->manifest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << status.error_message();
  const auto back = Publish(6, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(back->manifest()).ok());
  ASSERT_TRUE(service_.Commit(6).ok());
  EXPECT_EQ(service_.Ids(6), before);
}

TEST_P(RolloutUpdateTest, KeepsTheOldWeightsWhenAnUpdateFailsAndTakesTheNextOne) {
  const auto before = service_.Ids(0);
  const auto publisher = Publish(2, /*negate=*/true);
  publisher->set_fault(Fault::kFlipsABit, 3);
  grpc::Status status = service_.Begin(publisher->manifest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_NE(status.error_message().find(publisher->manifest().tensors(3).name()), std::string::npos)
      << status.error_message();
  EXPECT_EQ(service_.Commit(2).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Ids(0), before);

  publisher->set_fault(Fault::kBreaks, 3);
  EXPECT_EQ(service_.Begin(publisher->manifest()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.Ids(0), before);

  for (const Fault fault : {Fault::kSkipsAChunk, Fault::kEndsEarly, Fault::kSendsAnotherRange}) {
    publisher->set_fault(fault, 3);
    status = service_.Begin(publisher->manifest());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS) << status.error_message();
    EXPECT_EQ(service_.Ids(0), before);
  }

  WeightManifest wrong = publisher->manifest();
  wrong.mutable_tensors(0)->add_shape(1);
  EXPECT_EQ(service_.Begin(wrong).error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  publisher->set_fault(Fault::kNone, 3);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Abort().ok());
  EXPECT_EQ(service_.Commit(2).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.Ids(0), before);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(2).ok());
  EXPECT_NE(service_.Ids(2), before);

  const auto next = Publish(3, /*negate=*/false);
  next->Stop(1);
  EXPECT_EQ(service_.Begin(next->manifest()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.Info().policy_version(), 2u);
}

TEST_P(RolloutUpdateTest, ASenderThatDiesAtAnyTenthOfTheTransferChangesNothing) {
  const auto greedy = [&](uint64_t version) {
    GenerateHeader header = HeaderFor(5, 1, 0);
    header.set_policy_version(version);
    Answers answers;
    const grpc::Status status = service_.Generate(header, SomePrompts(), &answers);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::vector<int32_t>> ids;
    for (const auto& [key, sequence] : answers) {
      ids.emplace_back(sequence.tokens().ids().begin(), sequence.tokens().ids().end());
    }
    return ids;
  };
  const auto before = greedy(0);
  const auto publisher = Publish(7, /*negate=*/true);
  // The second source goes through `proxy`.
  const auto manifest_through = [&](const CutOffProxy& proxy) {
    WeightManifest manifest = publisher->manifest();
    manifest.mutable_sources(1)->set_endpoint(proxy.endpoint());
    return manifest;
  };
  int64_t whole = 0;
  {
    const CutOffProxy proxy(publisher->manifest().sources(1).endpoint());
    ASSERT_TRUE(service_.Begin(manifest_through(proxy)).ok());
    ASSERT_TRUE(service_.Abort().ok());
    whole = proxy.passed();
    ASSERT_GT(whole, 10000);
  }
  for (int tenth = 0; tenth < 10; ++tenth) {
    const CutOffProxy proxy(publisher->manifest().sources(1).endpoint(), whole * tenth / 10);
    const grpc::Status status = service_.Begin(manifest_through(proxy));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << tenth << ": " << status.error_message();
    EXPECT_NE(status.error_message().find(proxy.endpoint()), std::string::npos) << status.error_message();
    EXPECT_EQ(service_.Commit(7).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(greedy(0), before) << tenth;
  }
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  ASSERT_TRUE(service_.Commit(7).ok());
  EXPECT_NE(greedy(7), before);
}

TEST_P(RolloutUpdateTest, AnswersARepeatedCommitWithoutDoingItTwice) {
  const auto publisher = Publish(1, /*negate=*/false);
  ASSERT_TRUE(service_.Begin(publisher->manifest()).ok());
  CommitUpdateRequest request;
  *request.mutable_identity() = service_.NextIdentity();
  request.set_version(1);
  ASSERT_TRUE(service_.Commit(request).ok());
  EXPECT_TRUE(service_.Commit(request).ok());
  EXPECT_EQ(service_.Info().last_applied().sequence(), request.identity().sequence());
}

}  // namespace
}  // namespace quartet
