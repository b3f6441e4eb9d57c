#include "critic_trainer/critic_trainer_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/run_config.h"
#include "core/model/testing/edited_folder.h"
#include "core/rl/testing/token_arrays.h"
#include "core/service/rpc/status_conversion.h"
#include "core/training/testing/engine_ranks.h"
#include "core/training/testing/service_ranks.h"
#include "proto/critic_trainer.grpc.pb.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

TokenSequence Tokens(uint64_t index, int length) {
  TokenSequence tokens;
  tokens.set_index(index);
  for (int t = 0; t < length; ++t) {
    tokens.add_ids(3 + t);
    tokens.add_action_mask(t > 1);
  }
  return tokens;
}

// Two ranks with their real servers; the leader's is what clients talk to.
class CriticTrainerServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = TestConfig("core/model/testdata/llama_critic", 3);
    Start(2);
  }

  // In place of the service that runs.
  void Start(int number) {
    ranks_.reset();
    auto ranks = ServiceRanks::Start({.service = "critic_trainer", .create = CreateCriticTrainer}, config_, number);
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ranks_ = *std::move(ranks);
    stub_ = CriticTrainer::NewStub(ranks_->channel());
  }

  absl::StatusOr<SaveCheckpointReply> Save(uint64_t sequence, const std::string& id) {
    grpc::ClientContext context;
    SaveCheckpointRequest request;
    request.mutable_identity()->set_run_id("run");
    request.mutable_identity()->set_sequence(sequence);
    request.set_checkpoint_id(id);
    request.set_save_optimizer(true);
    SaveCheckpointReply reply;
    if (absl::Status s = FromGrpc(stub_->SaveCheckpoint(&context, request, &reply)); !s.ok()) return s;
    return reply;
  }

  absl::StatusOr<std::vector<TokenValues>> Values(const std::vector<TokenSequence>& items, bool last_token = false) {
    grpc::ClientContext context;
    auto stream = stub_->Values(&context);
    ValuesRequest request;
    request.mutable_header()->set_num_items(items.size());
    request.mutable_header()->set_last_token(last_token);
    stream->Write(request);
    for (const TokenSequence& item : items) {
      *request.mutable_item() = item;
      stream->Write(request);
    }
    stream->WritesDone();
    std::vector<TokenValues> values;
    ValuesReply reply;
    while (stream->Read(&reply)) values.push_back(reply.values());
    if (absl::Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
    return values;
  }

  absl::StatusOr<CriticUpdateReply> Update(uint64_t sequence, const std::vector<TrainingSequence>& items,
                                           float value_clip = 0,
                                           CriticUpdateHeader::Loss loss = CriticUpdateHeader::LOSS_VALUE) {
    grpc::ClientContext context;
    CriticUpdateReply reply;
    auto stream = stub_->Update(&context, &reply);
    CriticUpdateRequest request;
    CriticUpdateHeader* header = request.mutable_header();
    header->mutable_identity()->set_run_id("run");
    header->mutable_identity()->set_sequence(sequence);
    header->set_num_items(items.size());
    header->set_learning_rate(1e-3);
    header->set_value_clip(value_clip);
    header->set_loss(loss);
    stream->Write(request);
    for (const TrainingSequence& item : items) {
      *request.mutable_item() = item;
      stream->Write(request);
    }
    stream->WritesDone();
    if (absl::Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
    return reply;
  }

  RunConfig config_;
  std::unique_ptr<ServiceRanks> ranks_;
  std::unique_ptr<CriticTrainer::Stub> stub_;
};

TEST_F(CriticTrainerServiceTest, LearnsTheReturnsThatItIsGiven) {
  const std::vector<TokenSequence> tokens = {Tokens(3, 4), Tokens(1, 9), Tokens(2, 6)};
  const auto before = Values(tokens);
  ASSERT_TRUE(before.ok()) << before.status();
  std::vector<TrainingSequence> items(tokens.size());
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ((*before)[i].index(), tokens[i].index());
    *items[i].mutable_tokens() = tokens[i];
    MutableArray(kOldValues, &items[i]) = (*before)[i].values();
    for (int a = 0; a < (*before)[i].values_size(); ++a) {
      MutableArray(kReturns, &items[i]).Add(1);
      MutableArray(kLossWeights, &items[i]).Add(1.0f / 13);
    }
  }
  double first = 0, last = 0;
  for (uint64_t step = 1; step <= 30; ++step) {
    const auto reply = Update(step, items);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->action_tokens(), 13);
    EXPECT_EQ(reply->optimizer_steps(), step);
    (step == 1 ? first : last) = reply->loss();
  }
  EXPECT_LT(last, 0.5 * first);
}

// Two pairs that no micro-batch has together with another: a pair is longer than half of what one takes.
TEST_F(CriticTrainerServiceTest, LearnsToPreferWhatIsChosen) {
  config_.mutable_critic()->set_max_len(8);
  config_.mutable_critic()->set_max_tokens_per_micro_batch(16);
  Start(2);
  const std::vector<TokenSequence> tokens = {Tokens(0, 5), Tokens(1, 7), Tokens(2, 8), Tokens(3, 4)};
  std::vector<TrainingSequence> items(tokens.size());
  for (size_t i = 0; i < items.size(); ++i) *items[i].mutable_tokens() = tokens[i];
  // The same prompt and answers: of what is preferred only the ids tell.
  for (const size_t chosen : {0, 2}) {
    items[chosen].mutable_tokens()->set_ids(3, 90);
    items[chosen].mutable_pair()->set_weight(0.5);
  }
  const auto update = [&](uint64_t step) { return Update(step, items, 0, CriticUpdateHeader::LOSS_PAIRWISE); };
  double first = 0;
  for (uint64_t step = 1; step <= 30; ++step) {
    const auto reply = update(step);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->pairs().pairs(), 2);
    EXPECT_EQ(reply->micro_batches(), 1) << "of each rank";
    EXPECT_NEAR(reply->pairs().margin(), reply->pairs().chosen_reward() - reply->pairs().rejected_reward(), 1e-12);
    if (step == 1) first = reply->loss();
    if (step == 30) {
      EXPECT_EQ(reply->pairs().accuracy(), 1);
      EXPECT_LT(reply->loss(), 0.5 * first);
    }
  }
  std::vector<TokenSequence> learned;
  for (const TrainingSequence& item : items) learned.push_back(item.tokens());
  const auto rewards = Values(learned, /*last_token=*/true);
  ASSERT_TRUE(rewards.ok()) << rewards.status();
  ASSERT_EQ((*rewards)[0].values_size(), 1);
  EXPECT_GT((*rewards)[0].values(0), (*rewards)[1].values(0));

  EXPECT_THAT(std::string(Update(31, items, 0.2f, CriticUpdateHeader::LOSS_PAIRWISE).status().message()),
              HasSubstr("header.value_clip is 0.2; it has no effect with LOSS_PAIRWISE"));
  items[0].clear_pair();
  EXPECT_THAT(std::string(update(32).status().message()), HasSubstr("sequence 0: pair is not set"));
  items.pop_back();
  EXPECT_THAT(std::string(update(33).status().message()), HasSubstr("header.num_items is 3"));
}

TEST_F(CriticTrainerServiceTest, ComputesTheSameASequenceAtATimeAndAsManyTokensAsTheDefaultTakes) {
  const std::vector<TokenSequence> tokens = {Tokens(3, 4), Tokens(1, 9), Tokens(2, 6)};
  std::vector<TrainingSequence> items(tokens.size());
  for (size_t i = 0; i < items.size(); ++i) {
    *items[i].mutable_tokens() = tokens[i];
    for (int a = 0; a < tokens[i].ids_size() - 2; ++a) {
      MutableArray(kOldValues, &items[i]).Add(0.1f * static_cast<float>(a));
      MutableArray(kReturns, &items[i]).Add(a % 2 == 0 ? 1 : -1);
      MutableArray(kLossWeights, &items[i]).Add(1.0f / 13);
    }
  }
  const auto filled_values = Values(tokens);
  const auto filled = Update(1, items, 0.2f);
  ASSERT_TRUE(filled.ok() && filled_values.ok()) << filled.status() << filled_values.status();
  EXPECT_EQ(filled->micro_batches(), 1);

  config_.mutable_critic()->clear_max_tokens_per_micro_batch();
  config_.mutable_critic()->set_micro_train_batch_size(1);
  const absl::Status status = ResolveRunConfig(&config_, "");
  ASSERT_TRUE(status.ok()) << status;
  Start(1);
  const auto values = Values(tokens);
  const auto one_by_one = Update(1, items, 0.2f);
  ASSERT_TRUE(one_by_one.ok() && values.ok()) << one_by_one.status() << values.status();
  EXPECT_EQ(one_by_one->micro_batches(), 3);
  EXPECT_NEAR(filled->loss(), one_by_one->loss(), 1e-5);
  EXPECT_NEAR(filled->grad_norm() / one_by_one->grad_norm(), 1, 1e-5);
  EXPECT_NEAR(filled->clip_fraction(), one_by_one->clip_fraction(), 1e-9);
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (int a = 0; a < (*values)[i].values_size(); ++a) {
      EXPECT_NEAR((*filled_values)[i].values(a), (*values)[i].values(a), 1e-5);
    }
  }
}

TEST_F(CriticTrainerServiceTest, SavesItselfOnceAndStartsFromWhatItSaved) {
  std::vector<TrainingSequence> items(1);
  *items[0].mutable_tokens() = Tokens(0, 6);
  for (int a = 0; a < 4; ++a) {
    MutableArray(kLossWeights, &items[0]).Add(0.25);
    MutableArray(kOldValues, &items[0]).Add(0);
    MutableArray(kReturns, &items[0]).Add(1);
  }
  ASSERT_TRUE(Update(1, items).ok());
  const auto saved = Save(2, "step_1");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->folder(), "step_1/critic");
  EXPECT_EQ(saved->state_folder(), "step_1/critic_state");
  EXPECT_GT(saved->bytes(), 0);
  const auto repeat = Save(2, "step_1");
  ASSERT_TRUE(repeat.ok()) << repeat.status();
  EXPECT_EQ(repeat->SerializeAsString(), saved->SerializeAsString());
  EXPECT_TRUE(absl::IsAlreadyExists(Save(3, "step_1").status()));
  const auto expected = Values({Tokens(0, 6)});
  ASSERT_TRUE(expected.ok()) << expected.status();

  // The state over the model that it began with; and the model folder by itself.
  const std::string root = config_.run_dir() + "/checkpoints/";
  config_.mutable_critic()->set_load_checkpoint(root + saved->state_folder());
  for (const bool from_state : {true, false}) {
    if (!from_state) {
      config_.mutable_critic()->clear_load_checkpoint();
      config_.mutable_critic()->set_pretrain(root + saved->folder());
    }
    Start(from_state ? 3 : 1);
    const auto values = Values({Tokens(0, 6)});
    ASSERT_TRUE(values.ok()) << values.status();
    for (int a = 0; a < 4; ++a) EXPECT_NEAR((*values)[0].values(a), (*expected)[0].values(a), 1e-6);
    const auto next = Update(1, items);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->optimizer_steps(), from_state ? 2 : 1);
  }
}

TEST_F(CriticTrainerServiceTest, RefusesAnUpdateWithoutReturnsAndNamesTheSequence) {
  std::vector<TrainingSequence> items(1);
  *items[0].mutable_tokens() = Tokens(8, 3);
  MutableArray(kLossWeights, &items[0]).Add(1);
  MutableArray(kOldValues, &items[0]).Add(0);
  const absl::Status status = Update(1, items).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sequence 8: arrays has no \"returns\""));
  MutableArray(kReturns, &items[0]).Add(1);
  EXPECT_THAT(std::string(Update(1, items, -1).status().message()), HasSubstr("header.value_clip is -1"));
  EXPECT_TRUE(Update(1, items, 0.2f).ok());
}

TEST_F(CriticTrainerServiceTest, RefusesSequencesBeyondTheModelsSlidingWindow) {
  config_.mutable_critic()->set_pretrain(EditedFolder("core/model/testdata/mistral", {{"sliding_window", 15}}));
  config_.mutable_critic()->set_max_len(16);
  const auto ranks = ServiceRanks::Start({.service = "critic_trainer", .create = CreateCriticTrainer}, config_, 1);
  EXPECT_EQ(ranks.status().code(), absl::StatusCode::kInvalidArgument) << ranks.status();
  EXPECT_NE(ranks.status().message().find("critic.max_len is 16; at most 15 is allowed"), std::string::npos)
      << ranks.status();
}

}  // namespace
}  // namespace quartet
