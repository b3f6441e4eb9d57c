#include "policy_trainer/policy_trainer_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/checkpoint/state_folder.h"
#include "core/config/run_config.h"
#include "core/model/testing/edited_folder.h"
#include "core/model/testing/letters_tokenizer.h"
#include "core/rl/testing/token_arrays.h"
#include "core/safetensors/reader.h"
#include "core/service/rpc/status_conversion.h"
#include "core/training/testing/engine_ranks.h"
#include "core/training/testing/service_ranks.h"
#include "core/weights/tensor_hash.h"
#include "proto/policy_trainer.grpc.pb.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CallIdentity Identity(uint64_t sequence, uint64_t epoch = 1) {
  CallIdentity identity;
  identity.set_run_id("run");
  identity.set_sequence(sequence);
  identity.set_epoch(epoch);
  return identity;
}

TokenSequence Tokens(uint64_t index, std::vector<int32_t> ids) {
  TokenSequence tokens;
  tokens.set_index(index);
  tokens.mutable_ids()->Assign(ids.begin(), ids.end());
  for (size_t t = 0; t < ids.size(); ++t) tokens.add_action_mask(t > 0);
  return tokens;
}

PolicyUpdateHeader PpoHeader(uint64_t sequence) {
  PolicyUpdateHeader header;
  *header.mutable_identity() = Identity(sequence);
  header.set_num_items(3);
  header.set_temperature(0.9f);
  header.set_learning_rate(1e-3);
  header.mutable_loss()->set_kind(PolicyLossConfig::KIND_PPO);
  header.mutable_loss()->set_eps_clip_low(0.2f);
  header.mutable_loss()->set_eps_clip_high(0.2f);
  return header;
}

PolicyUpdateHeader SftHeader(uint64_t sequence, uint64_t epoch = 1) {
  PolicyUpdateHeader header;
  *header.mutable_identity() = Identity(sequence, epoch);
  header.set_num_items(3);
  header.set_temperature(1);
  header.set_learning_rate(1e-3);
  header.mutable_loss()->set_kind(PolicyLossConfig::KIND_SFT);
  return header;
}

std::vector<TrainingSequence> SftItems() {
  std::vector<TrainingSequence> items;
  for (int i = 0; i < 3; ++i) {
    TrainingSequence& item = items.emplace_back();
    *item.mutable_tokens() = Tokens(i, std::vector<int32_t>(3 + i, 10 + i));
    for (int t = 0; t < 2 + i; ++t) MutableArray(kLossWeights, &item).Add(1.0f / 9);
  }
  return items;
}

std::vector<TrainingSequence> PpoItems() {
  std::vector<TrainingSequence> items = SftItems();
  for (TrainingSequence& item : items) {
    for (int t = 0; t < ArrayOf(item, kLossWeights).size(); ++t) {
      MutableArray(kOldLogProbs, &item).Add(-4.5f + 0.3f * static_cast<float>(t));
      MutableArray(kAdvantages, &item).Add(t % 2 == 0 ? 1.5f : -0.5f);
    }
  }
  return items;
}

// Two ranks with their real servers; the leader's is what clients talk to. A sequence a micro-batch.
class PolicyTrainerServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = TestConfig("core/model/testdata/llama", 3);
    config_.mutable_actor()->set_max_len(16);
    config_.mutable_actor()->set_max_tokens_per_micro_batch(0);
    config_.mutable_actor()->set_micro_train_batch_size(1);
    config_.mutable_actor()->set_micro_rollout_batch_size(1);
    Start(2);
  }

  // In place of the service that runs.
  void Start(int number) {
    ranks_.reset();
    auto ranks = ServiceRanks::Start({.service = "policy_trainer", .create = CreatePolicyTrainer}, config_, number);
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ranks_ = *std::move(ranks);
    stub_ = PolicyTrainer::NewStub(ranks_->channel());
  }

  absl::StatusOr<SaveCheckpointReply> Save(uint64_t sequence, const std::string& id, bool save_optimizer = false) {
    grpc::ClientContext context;
    SaveCheckpointRequest request;
    *request.mutable_identity() = Identity(sequence);
    request.set_checkpoint_id(id);
    request.set_save_optimizer(save_optimizer);
    SaveCheckpointReply reply;
    if (absl::Status s = FromGrpc(stub_->SaveCheckpoint(&context, request, &reply)); !s.ok()) return s;
    return reply;
  }

  absl::StatusOr<std::vector<TokenValues>> LogProbs(const std::vector<TokenSequence>& items, float temperature = 1) {
    grpc::ClientContext context;
    auto stream = stub_->LogProbs(&context);
    LogProbsRequest request;
    request.mutable_header()->set_num_items(items.size());
    request.mutable_header()->set_temperature(temperature);
    stream->Write(request);
    for (const TokenSequence& item : items) {
      *request.mutable_item() = item;
      stream->Write(request);
    }
    stream->WritesDone();
    std::vector<TokenValues> values;
    LogProbsReply reply;
    while (stream->Read(&reply)) values.push_back(reply.log_probs());
    if (absl::Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
    return values;
  }

  absl::StatusOr<PolicyUpdateReply> Update(const PolicyUpdateHeader& header, const std::vector<TrainingSequence>& items,
                                           std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    PolicyUpdateReply reply;
    auto stream = stub_->Update(&context, &reply);
    PolicyUpdateRequest request;
    *request.mutable_header() = header;
    stream->Write(request);
    for (const TrainingSequence& item : items) {
      *request.mutable_item() = item;
      stream->Write(request);
    }
    stream->WritesDone();
    if (absl::Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
    return reply;
  }

  absl::StatusOr<WeightManifest> Publish(uint64_t sequence, uint64_t version) {
    grpc::ClientContext context;
    PublishRequest request;
    *request.mutable_identity() = Identity(sequence);
    request.set_version(version);
    PublishReply reply;
    if (absl::Status status = FromGrpc(stub_->Publish(&context, request, &reply)); !status.ok()) return status;
    return reply.manifest();
  }

  // Pulls everything a source has; adds each tensor's hash to `hashes`.
  absl::Status Pull(const WeightManifest& manifest, int rank, std::vector<uint64_t>* hashes) {
    auto stub = PolicyTrainer::NewStub(ranks_->channel(rank));
    grpc::ClientContext context;
    PullWeightsRequest request;
    request.set_version(manifest.version());
    *request.mutable_ranges() = manifest.sources(rank).ranges();
    auto stream = stub->PullWeights(&context, request);
    WeightChunk chunk;
    while (stream->Read(&chunk)) {
      (*hashes)[chunk.range().tensor()] +=
          HashElements(chunk.data().data(), Dtype::kF32, chunk.range().begin(), chunk.range().count());
    }
    return FromGrpc(stream->Finish());
  }

  RunConfig config_;
  std::unique_ptr<ServiceRanks> ranks_;
  std::unique_ptr<PolicyTrainer::Stub> stub_;
};

TEST_F(PolicyTrainerServiceTest, AnswersInTheOrderOfTheSequencesWhateverTheRanks) {
  const std::vector<TokenSequence> items = {Tokens(7, {1, 2}), Tokens(3, {1, 2, 3, 4, 5}), Tokens(9, {4, 5, 6})};
  const auto together = LogProbs(items);
  ASSERT_TRUE(together.ok()) << together.status();
  ASSERT_EQ(together->size(), 3);
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ((*together)[i].index(), items[i].index());
    EXPECT_EQ((*together)[i].values_size(), items[i].ids_size() - 1);
    const auto alone = LogProbs({items[i]});
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (int t = 0; t < (*together)[i].values_size(); ++t) {
      EXPECT_NEAR((*together)[i].values(t), (*alone)[0].values(t), 1e-5);
    }
  }
  const auto none = LogProbs({});
  EXPECT_TRUE(none.ok() && none->empty()) << none.status();
}

TEST_F(PolicyTrainerServiceTest, RefusesWhatIsWrongBeforeAnyRankWorksAndServesOn) {
  EXPECT_THAT(std::string(LogProbs({Tokens(0, {1, 2}), Tokens(5, {1, 101})}).status().message()),
              AllOf(HasSubstr("sequence 5"), HasSubstr("ids[1] is 101"), HasSubstr("0 to 100")));
  EXPECT_THAT(std::string(LogProbs({Tokens(5, std::vector<int32_t>(17, 1))}).status().message()),
              HasSubstr("ids has 17 tokens; allowed are 1 to 16"));
  EXPECT_TRUE(absl::IsInvalidArgument(LogProbs({Tokens(0, {1, 2})}, 0).status()));
  std::vector<TrainingSequence> items = SftItems();
  ClearArray(kLossWeights, &items[1]);
  const absl::Status status = Update(SftHeader(1), items).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sequence 1: arrays has no \"loss_weights\""));
  EXPECT_TRUE(LogProbs({Tokens(0, {1, 2})}).ok());
}

TEST_F(PolicyTrainerServiceTest, RefusesIdsThatTheTokenizerDoesNotHave) {
  const std::string folder = EditedFolder(config_.actor().pretrain(), nlohmann::json::object());
  WriteLettersTokenizer(folder, 90);  // of 101 rows
  config_.mutable_actor()->set_pretrain(folder);
  Start(1);
  EXPECT_TRUE(LogProbs({Tokens(0, {1, 89})}).ok());
  EXPECT_THAT(std::string(LogProbs({Tokens(0, {1, 90})}).status().message()),
              AllOf(HasSubstr("ids[1] is 90"), HasSubstr("0 to 89")));
}

// Each place where an update can fail; with one rank at each of its passes, with two on both.
TEST_F(PolicyTrainerServiceTest, AnswersAFailedUpdateWithItsErrorAndEnds) {
  for (const int ranks : {1, 2}) {
    for (const char* place : {"policy_trainer.update", "trainable_model.backward", "trainable_model.optimizer"}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", place));
      Start(ranks);
      ASSERT_TRUE(Update(SftHeader(1), SftItems()).ok());
      EXPECT_TRUE(ranks_->end().ok());
      ASSERT_TRUE(SetFailPoints(absl::StrCat(place, "=error")).ok());
      const absl::Status failed = Update(SftHeader(2), SftItems()).status();
      ASSERT_TRUE(SetFailPoints("").ok());
      EXPECT_THAT(std::string(failed.message()), HasSubstr(place));
      EXPECT_FALSE(ranks_->end().ok());
      EXPECT_FALSE(Update(SftHeader(2), SftItems()).ok()) << "nothing more is trained on";
    }
  }
}

TEST_F(PolicyTrainerServiceTest, AppliesAnUpdateOnceHoweverOftenItIsAskedFor) {
  const auto first = Update(SftHeader(1), SftItems());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->optimizer_steps(), 1);
  EXPECT_EQ(first->action_tokens(), 9);
  EXPECT_EQ(first->tokens(), 12);
  EXPECT_EQ(first->micro_batches(), 2);  // 3 sequences, 2 ranks, 1 a micro-batch
  const auto again = Update(SftHeader(1, /*epoch=*/2), SftItems());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), first->SerializeAsString());

  EXPECT_TRUE(absl::IsFailedPrecondition(Update(SftHeader(2, 1), SftItems()).status()));  // an older orchestrator
  const auto next = Update(SftHeader(2, 2), SftItems());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->optimizer_steps(), 2);
  EXPECT_LT(next->loss(), first->loss());
}

// With several ranks the deadline of a step ends the service.
TEST_F(PolicyTrainerServiceTest, AppliesAnUpdateThatOutlivesItsDeadlineOnce) {
  Start(1);
  ASSERT_TRUE(SetFailPoints("policy_trainer.update=sleep:1500@1").ok());
  const absl::Status late = Update(SftHeader(1), SftItems(), std::chrono::milliseconds(300)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  const absl::Status impatient = Update(SftHeader(1), SftItems(), std::chrono::milliseconds(100)).status();
  EXPECT_TRUE(absl::IsUnavailable(impatient)) << impatient;
  auto again = Update(SftHeader(1), SftItems());
  while (absl::IsUnavailable(again.status())) again = Update(SftHeader(1), SftItems());
  ASSERT_TRUE(SetFailPoints("").ok());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->optimizer_steps(), 1);
  const auto next = Update(SftHeader(2), SftItems());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->optimizer_steps(), 2);
}

TEST_F(PolicyTrainerServiceTest, ComputesTheSameASequenceAtATimeAndAsManyTokensAsTheDefaultTakes) {
  const std::vector<TokenSequence> sequences = {Tokens(7, {1, 2}), Tokens(3, {1, 2, 3, 4, 5})};
  const auto log_probs = LogProbs(sequences);
  const auto one_by_one = Update(SftHeader(1), SftItems()), one_by_one_ppo = Update(PpoHeader(2), PpoItems());
  ASSERT_TRUE(log_probs.ok() && one_by_one.ok() && one_by_one_ppo.ok())
      << log_probs.status() << one_by_one.status() << one_by_one_ppo.status();
  EXPECT_EQ(one_by_one->micro_batches(), 2);
  EXPECT_GT(one_by_one->balance(), 0.5);

  config_.mutable_actor()->clear_micro_train_batch_size();
  config_.mutable_actor()->clear_micro_rollout_batch_size();
  config_.mutable_actor()->clear_max_tokens_per_micro_batch();
  const absl::Status status = ResolveRunConfig(&config_, "");
  ASSERT_TRUE(status.ok()) << status;
  Start(1);
  const auto filled_log_probs = LogProbs(sequences);
  const auto filled = Update(SftHeader(1), SftItems()), filled_ppo = Update(PpoHeader(2), PpoItems());
  ASSERT_TRUE(filled_log_probs.ok() && filled.ok() && filled_ppo.ok())
      << filled_log_probs.status() << filled.status() << filled_ppo.status();
  EXPECT_EQ(filled->micro_batches(), 1);
  for (const auto& [one, all] : {std::pair(&one_by_one, &filled), std::pair(&one_by_one_ppo, &filled_ppo)}) {
    EXPECT_NEAR((*all)->loss(), (*one)->loss(), 1e-5);
    EXPECT_NEAR((*all)->grad_norm() / (*one)->grad_norm(), 1, 1e-5);
    EXPECT_NEAR((*all)->clip_fraction(), (*one)->clip_fraction(), 1e-9);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    ASSERT_EQ((*filled_log_probs)[i].values_size(), sequences[i].ids_size() - 1);
    for (int t = 0; t < (*filled_log_probs)[i].values_size(); ++t) {
      EXPECT_NEAR((*filled_log_probs)[i].values(t), (*log_probs)[i].values(t), 1e-5);
    }
  }
}

TEST_F(PolicyTrainerServiceTest, ServesPublishedWeightsFromEveryRank) {
  const auto manifest = Publish(1, 4);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->sources_size(), 2);
  std::vector<uint64_t> hashes(manifest->tensors_size());
  for (int rank : {0, 1}) {
    EXPECT_EQ(manifest->sources(rank).endpoint(), ranks_->endpoint(rank));
    const absl::Status status = Pull(*manifest, rank, &hashes);
    ASSERT_TRUE(status.ok()) << status;
  }
  for (int i = 0; i < manifest->tensors_size(); ++i) EXPECT_EQ(hashes[i], manifest->tensors(i).hash());

  EXPECT_THAT(std::string(Publish(2, 4).status().message()), HasSubstr("version is 4; it must be above 4"));
  WeightManifest unknown = *manifest;
  unknown.set_version(5);
  const absl::Status missing = Pull(unknown, 1, &hashes);
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), AllOf(HasSubstr("version 5"), HasSubstr("version 4 is")));
  WeightManifest crossed = *manifest;
  crossed.mutable_sources()->SwapElements(0, 1);
  EXPECT_TRUE(absl::IsOutOfRange(Pull(crossed, 0, &hashes)));
}

TEST_F(PolicyTrainerServiceTest, FlipsABitOnTheWireWhereATestAsksForIt) {
  const auto manifest = Publish(1, 1);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_TRUE(SetFailPoints("policy_trainer.publish.corrupt=trip@2").ok());
  std::vector<uint64_t> hashes(manifest->tensors_size());
  for (int rank : {0, 1}) ASSERT_TRUE(Pull(*manifest, rank, &hashes).ok());
  ASSERT_TRUE(SetFailPoints("").ok());
  int wrong = 0;
  for (int i = 0; i < manifest->tensors_size(); ++i) wrong += hashes[i] != manifest->tensors(i).hash();
  EXPECT_EQ(wrong, 1);
}

TEST_F(PolicyTrainerServiceTest, SavesACheckpointUnderItsIdentifierOnce) {
  const auto saved = Save(1, "step_1");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->folder(), "step_1/policy");
  EXPECT_EQ(saved->state_folder(), "");
  EXPECT_TRUE(CheckpointReader::Open(config_.run_dir() + "/checkpoints/step_1/policy").ok());
  EXPECT_TRUE(Save(1, "step_1").ok());  // a repeat
  EXPECT_TRUE(absl::IsAlreadyExists(Save(2, "step_1").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Save(2, "../step_1").status()));
  EXPECT_TRUE(Save(2, "step_2").ok());
}

TEST_F(PolicyTrainerServiceTest, StartsFromATrainingStateWithAnyNumberOfRanks) {
  ASSERT_TRUE(Update(SftHeader(1), SftItems()).ok());
  ASSERT_TRUE(Update(SftHeader(2), SftItems()).ok());
  const auto saved = Save(3, "step_1", /*save_optimizer=*/true);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->state_folder(), "step_1/policy_state");
  const std::string folder = config_.run_dir() + "/checkpoints/step_1/policy_state";
  const auto state = StateReader::Open(folder);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->manifest_hash(), saved->state_hash());
  const auto expected = LogProbs({Tokens(0, {1, 2, 3, 4})});
  const auto next = Update(SftHeader(4), SftItems());
  ASSERT_TRUE(next.ok()) << next.status();

  config_.mutable_actor()->set_load_checkpoint(folder);
  Start(3);
  grpc::ClientContext context;
  ServiceInfo info;
  ASSERT_TRUE(FromGrpc(stub_->GetInfo(&context, GetInfoRequest(), &info)).ok());
  EXPECT_EQ(info.ranks(2).optimizer_steps(), 2);
  const auto loaded = LogProbs({Tokens(0, {1, 2, 3, 4})});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (int t = 0; t < 3; ++t) EXPECT_NEAR((*loaded)[0].values(t), (*expected)[0].values(t), 1e-6);
  const auto again = Update(SftHeader(1), SftItems());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->optimizer_steps(), 3);
  EXPECT_NEAR(again->loss() / next->loss(), 1, 1e-5);
  EXPECT_NEAR(again->grad_norm() / next->grad_norm(), 1, 1e-5);
}

TEST_F(PolicyTrainerServiceTest, ServesOnAfterADiskThatWasFull) {
  const std::string checkpoint =
      std::filesystem::path(config_.run_dir() + "/checkpoints/step_1").lexically_normal().string();
  // A limit on the size of files stands for it: the model needs more.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  uint64_t sequence = 0;
  for (const bool save_optimizer : {false, true}) {
    rlimit small = before;
    small.rlim_cur = 32 << 10;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status full = Save(++sequence, "step_1", save_optimizer).status();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_THAT(std::string(full.message()), HasSubstr(checkpoint));
    EXPECT_TRUE(std::filesystem::is_empty(checkpoint));
    EXPECT_TRUE(LogProbs({Tokens(0, {1, 2})}).ok());
  }
  EXPECT_TRUE(Save(++sequence, "step_1", true).ok());
}

TEST_F(PolicyTrainerServiceTest, ServesOnAfterASaveThatFailedOnOneRank) {
  for (const int ranks : {2, 1}) {
    Start(ranks);
    const std::string id = absl::StrCat("step_", ranks);
    uint64_t sequence = 0;
    for (const char* point : {"policy_trainer.save", "training_state.write", "trainable_model.save"}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", point));
      ASSERT_TRUE(SetFailPoints(std::string(point) + "=error@1").ok());
      const absl::Status status = Save(++sequence, id, true).status();
      ASSERT_TRUE(SetFailPoints("").ok());
      EXPECT_TRUE(absl::IsInternal(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(point));
      EXPECT_TRUE(std::filesystem::is_empty(absl::StrCat(config_.run_dir(), "/checkpoints/", id)));
      EXPECT_TRUE(LogProbs({Tokens(0, {1, 2})}).ok());
    }
    const auto saved = Save(++sequence, id, true);
    EXPECT_TRUE(saved.ok()) << saved.status();
  }
}

TEST_F(PolicyTrainerServiceTest, DescribesItselfAndItsRanks) {
  ASSERT_TRUE(Publish(1, 3).ok());
  grpc::ClientContext context;
  ServiceInfo info;
  const absl::Status status = FromGrpc(stub_->GetInfo(&context, GetInfoRequest(), &info));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(info.service(), "policy_trainer");
  EXPECT_EQ(info.vocab_size().at("model"), 101);
  EXPECT_EQ(info.policy_version(), 3);
  EXPECT_EQ(info.max_model_len(), 16);
  EXPECT_EQ(info.last_applied().sequence(), 1);
  ASSERT_EQ(info.ranks_size(), 2);
  EXPECT_EQ(info.ranks(1).rank(), 1);
  EXPECT_EQ(info.ranks(1).endpoint(), ranks_->endpoint(1));
}

TEST_F(PolicyTrainerServiceTest, SendsClientsOfOtherRanksToTheLeader) {
  auto follower = PolicyTrainer::NewStub(ranks_->channel(1));
  grpc::ClientContext context;
  ServiceInfo info;
  const absl::Status status = FromGrpc(follower->GetInfo(&context, GetInfoRequest(), &info));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(ranks_->endpoint(0)));
}

TEST_F(PolicyTrainerServiceTest, RefusesSequencesBeyondTheModelsSlidingWindow) {
  config_.mutable_actor()->set_pretrain(EditedFolder("core/model/testdata/mistral", {{"sliding_window", 15}}));
  const auto ranks = ServiceRanks::Start({.service = "policy_trainer", .create = CreatePolicyTrainer}, config_, 1);
  EXPECT_EQ(ranks.status().code(), absl::StatusCode::kInvalidArgument) << ranks.status();
  EXPECT_NE(ranks.status().message().find("actor.max_len is 16; at most 15 is allowed"), std::string::npos)
      << ranks.status();
}

}  // namespace
}  // namespace quartet
