#include "scorer/scorer_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/config/run_config.h"
#include "core/model/testing/edited_folder.h"
#include "core/service/process/piped_process.h"
#include "core/service/rpc/status_conversion.h"
#include "core/training/testing/engine_ranks.h"
#include "core/training/testing/service_ranks.h"
#include "proto/scorer.grpc.pb.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kLlama[] = "core/model/testdata/llama";

RunConfig RulesOnly() {
  RunConfig config = TestConfig(kLlama, 3);
  config.mutable_algorithm()->mutable_kl()->set_init_kl_coef(0);
  config.clear_reference();
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_name("number");
  source->set_rule("number");
  source->set_weight(1);
  source = config.mutable_reward()->add_source();
  source->set_name("exact");
  source->set_rule("exact_match");
  source->set_weight(0.5);
  return config;
}

// With the defaults of its sources.
void FillReward(RunConfig* config) {
  RunConfig other;
  *other.mutable_reward() = config->reward();
  const absl::Status resolved = ResolveRunConfig(&other, "");
  ASSERT_TRUE(resolved.ok()) << resolved;
  *config->mutable_reward() = other.reward();
}

std::unique_ptr<ServiceRanks> Serve(const RunConfig& config) {
  auto ranks = ServiceRanks::Start({.service = "scorer", .create = CreateScorer}, config, 2);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  return ranks.ok() ? *std::move(ranks) : nullptr;
}

ScoreItem Item(uint64_t index, const std::string& response, const std::string& label) {
  ScoreItem item;
  item.mutable_tokens()->set_index(index);
  for (int id : {1, 2, static_cast<int>(index % 100)}) item.mutable_tokens()->add_ids(id);
  for (bool action : {false, true, true}) item.mutable_tokens()->add_action_mask(action);
  item.set_response(response);
  item.set_label(label);
  return item;
}

// In the order of `items`.
absl::StatusOr<std::vector<ScoreReply>> Score(ServiceRanks& ranks, const std::vector<ScoreItem>& items) {
  auto stub = Scorer::NewStub(ranks.channel());
  grpc::ClientContext context;
  auto stream = stub->Score(&context);
  ScoreRequest request;
  request.mutable_header()->set_num_items(items.size());
  stream->Write(request);
  for (const ScoreItem& item : items) {
    *request.mutable_item() = item;
    stream->Write(request);
  }
  stream->WritesDone();
  std::vector<ScoreReply> replies(1);
  while (stream->Read(&replies.back())) replies.emplace_back();
  replies.pop_back();
  if (absl::Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
  std::vector<ScoreReply> ordered;
  for (const ScoreItem& item : items) {
    const auto reply = std::find_if(replies.begin(), replies.end(),
                                    [&](const ScoreReply& r) { return r.index() == item.tokens().index(); });
    if (reply == replies.end()) return absl::InternalError("a sequence was not answered");
    ordered.push_back(*reply);
  }
  if (ordered.size() != replies.size()) return absl::InternalError("a sequence was answered twice");
  return ordered;
}

absl::Status Reference(ServiceRanks& ranks) {
  auto stub = Scorer::NewStub(ranks.channel());
  grpc::ClientContext context;
  auto stream = stub->ReferenceLogProbs(&context);
  ReferenceLogProbsRequest request;
  request.mutable_header()->set_num_items(1);
  request.mutable_header()->set_temperature(1);
  stream->Write(request);
  *request.mutable_item() = Item(0, "", "").tokens();
  stream->Write(request);
  stream->WritesDone();
  ReferenceLogProbsReply reply;
  while (stream->Read(&reply)) {
  }
  return FromGrpc(stream->Finish());
}

TEST(ScorerService, AddsUpWeightedSourcesAndNamesTheirParts) {
  const auto ranks = Serve(RulesOnly());
  ASSERT_NE(ranks, nullptr);
  const auto replies = Score(*ranks, {Item(4, "#### 72.0", "72"), Item(2, "72", "72"), Item(8, "#### 7", "#### 7")});
  ASSERT_TRUE(replies.ok()) << replies.status();
  ASSERT_EQ(replies->size(), 3);
  EXPECT_EQ((*replies)[0].index(), 4);
  EXPECT_EQ((*replies)[0].reward(), 1);
  EXPECT_EQ((*replies)[0].parts().at("exact"), 0);
  EXPECT_EQ((*replies)[1].reward(), 0.5);
  EXPECT_EQ((*replies)[2].reward(), 1.5);
  EXPECT_EQ((*replies)[2].parts().at("number"), 1);
  EXPECT_EQ((*replies)[2].parts().at("exact"), 1);
}

// A program in place of all sources: it answers with the response as its reward, and fails or dies as that says.
RunConfig CommandOnly(const std::string& on_error) {
  RunConfig config = RulesOnly();
  config.mutable_reward()->clear_source();
  config.mutable_reward()->set_on_error(on_error);
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_command(R"(python3 -uc '
import json, sys
for line in sys.stdin:
    item = json.loads(line)
    if item["response"] == "die": sys.exit(3)
    if item["response"] == "fail": print(json.dumps({"error": "not today"}))
    else: print(json.dumps({"reward": float(item["response"]), "score": 0.5, "extra_logs": {"seen": len(item["query"])}}))
')");
  source->set_max_tries(1);
  source->set_workers(2);
  source->set_weight(2);
  FillReward(&config);
  return config;
}

TEST(ScorerService, ScoresByACommandWithItsScoresAndFigures) {
  const auto ranks = Serve(CommandOnly("stop"));
  ASSERT_NE(ranks, nullptr);
  ScoreItem item = Item(7, "3", "");
  item.set_query("abcde");
  const auto replies = Score(*ranks, {item, Item(8, "-1", "")});
  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ((*replies)[0].reward(), 6);
  EXPECT_EQ((*replies)[0].score(), 1);
  EXPECT_EQ((*replies)[0].parts().at("command"), 3);
  EXPECT_EQ((*replies)[0].extra_logs().at("command/seen"), 5);
  EXPECT_EQ((*replies)[1].reward(), -2);
}

TEST(ScorerService, StopsWithTheReasonWhereASequenceCannotBeScored) {
  const auto ranks = Serve(CommandOnly("stop"));
  ASSERT_NE(ranks, nullptr);
  const absl::Status status = Score(*ranks, {Item(4, "1", ""), Item(6, "fail", "")}).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("sequence 6"), HasSubstr("reward \"command\""), HasSubstr("not today")));
}

TEST(ScorerService, SaysOfEachSequenceWhyItHasNoRewardWhereThoseAreDropped) {
  const auto ranks = Serve(CommandOnly("drop"));
  ASSERT_NE(ranks, nullptr);
  const auto replies = Score(*ranks, {Item(4, "1", ""), Item(5, "fail", ""), Item(6, "die", ""), Item(7, "2", "")});
  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ((*replies)[0].reward(), 2);
  EXPECT_EQ((*replies)[0].error(), "");
  EXPECT_THAT((*replies)[1].error(), AllOf(HasSubstr("reward \"command\""), HasSubstr("not today")));
  EXPECT_EQ((*replies)[1].parts_size(), 0);
  EXPECT_THAT((*replies)[2].error(), HasSubstr("exit code 3"));
  EXPECT_EQ((*replies)[3].reward(), 4);
  ServiceInfo info;
  grpc::ClientContext context;
  ASSERT_TRUE(Scorer::NewStub(ranks->channel())->GetInfo(&context, GetInfoRequest(), &info).ok());
  EXPECT_EQ(info.metrics().at("scorer/failed_tries"), 2) << "one that says so, one that dies";
}

TEST(ScorerService, AnswersASequenceBeforeTheNextHasCome) {
  const auto ranks = Serve(RulesOnly());
  ASSERT_NE(ranks, nullptr);
  auto stub = Scorer::NewStub(ranks->channel());
  grpc::ClientContext context;
  auto stream = stub->Score(&context);
  ScoreRequest request;
  request.mutable_header()->set_num_items(2);
  stream->Write(request);
  ScoreReply reply;
  for (const uint64_t index : {4, 6}) {
    *request.mutable_item() = Item(index, "#### 72", "72");
    stream->Write(request);
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.index(), index);
  }
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(ScorerService, EndsWhenTheClientLeavesASourceThatIsAtIt) {
  RunConfig config = CommandOnly("stop");
  config.mutable_reward()->mutable_source(0)->set_command("sleep 1000");
  config.mutable_reward()->mutable_source(0)->set_timeout_seconds(1000);
  const auto ranks = Serve(config);
  ASSERT_NE(ranks, nullptr);
  auto stub = Scorer::NewStub(ranks->channel());
  grpc::ClientContext context;
  auto stream = stub->Score(&context);
  ScoreRequest request;
  request.mutable_header()->set_num_items(1);
  stream->Write(request);
  *request.mutable_item() = Item(4, "1", "");
  stream->Write(request);
  stream->WritesDone();
  context.TryCancel();
  ScoreReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(ScorerService, AsksAServerAndTriesAgainWhileThereIsNone) {
  const auto server = PipedProcess::Start({.argv = {"python3", "examples/rewards/http_server.py", "0"}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto line = (*server)->ReadLine(1000, Deadline::In(absl::Seconds(60)), {});
  ASSERT_TRUE(line.ok()) << line.status();
  RunConfig config = RulesOnly();
  config.mutable_reward()->clear_source();
  RewardSource* source = config.mutable_reward()->add_source();
  // Nobody listens on the first, so that the second answers every other try.
  source->add_remote_url("http://127.0.0.1:9/");
  source->add_remote_url("http://127.0.0.1:" + line->substr(line->rfind(' ') + 1) + "/");
  FillReward(&config);
  const auto ranks = Serve(config);
  ASSERT_NE(ranks, nullptr);
  ScoreItem item = Item(4, "72", "72");
  item.set_prompt("How many? ");
  item.set_query("How many? 72<end>");
  const auto replies = Score(*ranks, {item});
  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ((*replies)[0].parts().at("remote"), 1);
  EXPECT_EQ((*replies)[0].extra_logs().at("remote/characters"), 7);
}

TEST(ScorerService, RunsCodeInASandbox) {
  RunConfig config = RulesOnly();
  config.mutable_reward()->clear_source();
  config.mutable_reward()->add_source()->set_code("python");
  FillReward(&config);
  const auto ranks = Serve(config);
  ASSERT_NE(ranks, nullptr);
  const auto replies =
      Score(*ranks, {Item(4, "```python\nprint(int(input()) * 2)\n```", R"({"inputs": ["21"], "outputs": ["42"]})")});
  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ((*replies)[0].reward(), 1);
}

TEST(ScorerService, NormalizesTheRewardsOfOpenRlhfsModels) {
  RunConfig config = TestConfig(kLlama, 3);
  config.mutable_algorithm()->mutable_kl()->set_init_kl_coef(0);
  config.clear_reference();
  const std::string folder =
      EditedFolder("core/model/testdata/llama_critic",
                   {{"architectures", {"RewardModel"}}, {"value_head_prefix", "score"}, {"mean", 0.5}, {"std", 4.0}});
  for (const bool normalize : {false, true}) {
    RewardSource* source = config.mutable_reward()->add_source();
    source->set_name(normalize ? "normal" : "plain");
    source->set_model(folder);
    source->set_dtype("fp32");
    source->set_normalize_reward(normalize);
  }
  FillReward(&config);
  const auto ranks = Serve(config);
  ASSERT_NE(ranks, nullptr);
  const auto replies = Score(*ranks, {Item(4, "", "")});
  ASSERT_TRUE(replies.ok()) << replies.status();
  const auto& parts = (*replies)[0].parts();
  EXPECT_NEAR(parts.at("normal"), (parts.at("plain") - 0.5) / 4, 1e-6);
}

TEST(ScorerService, RefusesALabelThatIsNoNumberAndNamesItsSequence) {
  const auto ranks = Serve(RulesOnly());
  ASSERT_NE(ranks, nullptr);
  const absl::Status status = Score(*ranks, {Item(4, "#### 72", "72"), Item(6, "#### 72", "many")}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("sequence 6"), HasSubstr("\"many\"")));
}

TEST(ScorerService, LoadsNoReferenceWhereThereIsNoKlPenalty) {
  const auto ranks = Serve(RulesOnly());
  ASSERT_NE(ranks, nullptr);
  const absl::Status status = Reference(*ranks);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("algorithm.kl.init_kl_coef is 0"));
}

TEST(ScorerService, ServesAReferenceAndARewardModelBesideRules) {
  RunConfig config = TestConfig(kLlama, 3);
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_name("model");
  source->set_model("core/model/testdata/llama_critic");
  source->set_dtype("fp32");
  source->set_zero_stage(3);
  source->set_weight(2);
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  const std::vector<ScoreItem> items = {Item(4, "", ""), Item(5, "", ""), Item(6, "", "")};
  const auto ranks = Serve(config);
  ASSERT_NE(ranks, nullptr);
  EXPECT_TRUE(Reference(*ranks).ok());
  const auto replies = Score(*ranks, items);
  ASSERT_TRUE(replies.ok()) << replies.status();
  for (const ScoreReply& reply : *replies) {
    EXPECT_NE(reply.reward(), 0);
    EXPECT_EQ(reply.reward(), 2 * reply.parts().at("model"));
  }
  EXPECT_NE((*replies)[0].reward(), (*replies)[1].reward());

  config.mutable_reward()->clear_max_tokens_per_micro_batch();
  config.mutable_reward()->set_micro_rollout_batch_size(1);
  ASSERT_TRUE(ResolveRunConfig(&config, "").ok());
  const auto counting = Serve(config);
  ASSERT_NE(counting, nullptr);
  const auto one_by_one = Score(*counting, items);
  ASSERT_TRUE(one_by_one.ok()) << one_by_one.status();
  for (size_t i = 0; i < items.size(); ++i) EXPECT_NEAR((*one_by_one)[i].reward(), (*replies)[i].reward(), 1e-5);
}

TEST(ScorerService, AsksAModelForThePromptsAloneThatItIsFor) {
  RunConfig config = RulesOnly();
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_name("model");
  source->set_model("core/model/testdata/llama_critic");
  source->set_dtype("fp32");
  source->add_only("chat");
  config.mutable_reward()->mutable_source(0)->add_only("math");
  FillReward(&config);
  std::vector<ScoreItem> items;
  for (int i = 0; i < 6; ++i) {
    items.push_back(Item(4 + i, "#### 1", "1"));
    items.back().set_source(i % 3 == 2 ? "chat" : "math");
  }
  const auto ranks = Serve(config);
  ASSERT_NE(ranks, nullptr);
  const auto replies = Score(*ranks, items);
  ASSERT_TRUE(replies.ok()) << replies.status();
  for (int i = 0; i < 6; ++i) {
    const ScoreReply& reply = (*replies)[i];
    EXPECT_EQ(reply.parts().contains("model"), i % 3 == 2);
    EXPECT_EQ(reply.parts().contains("number"), i % 3 != 2);
    EXPECT_EQ(reply.parts().contains("exact"), true);
  }
  // As where it is for all.
  config.mutable_reward()->mutable_source(2)->clear_only();
  const auto all = Serve(config);
  ASSERT_NE(all, nullptr);
  const auto others = Score(*all, items);
  ASSERT_TRUE(others.ok()) << others.status();
  for (const int i : {2, 5}) {
    EXPECT_NEAR((*replies)[i].parts().at("model"), (*others)[i].parts().at("model"), 1e-5);
  }
}

TEST(ScorerService, GivesEqualSequencesAModelsVeryValue) {
  RunConfig config = RulesOnly();
  config.mutable_reward()->clear_source();
  RewardSource* source = config.mutable_reward()->add_source();
  source->set_model("core/model/testdata/llama_critic");
  source->set_dtype("bf16");
  FillReward(&config);
  config.mutable_actor()->set_max_len(64);
  config.mutable_reward()->set_max_tokens_per_micro_batch(64);
  // Eight sequences, each four times, among others of all lengths.
  std::vector<ScoreItem> items;
  for (int i = 0; i < 64; ++i) {
    ScoreItem& item = items.emplace_back();
    item.mutable_tokens()->set_index(i);
    const int kind = i % 2 == 0 ? i / 2 % 8 : 100 + i;
    for (int t = 0; t < 3 + kind * 5 % 29; ++t) {
      item.mutable_tokens()->add_ids((kind * 31 + t * 7) % 100);
      item.mutable_tokens()->add_action_mask(t > 0);
    }
  }
  const auto ranks = Serve(config);
  ASSERT_NE(ranks, nullptr);
  const auto replies = Score(*ranks, items);
  ASSERT_TRUE(replies.ok()) << replies.status();
  for (int i = 16; i < 64; i += 2) EXPECT_EQ((*replies)[i].reward(), (*replies)[i % 16].reward()) << i;
}

TEST(ScorerService, RefusesModelsWithVocabulariesOfOtherSizesThanTheActors) {
  RunConfig config = TestConfig(kLlama, 3);
  const std::string actor = NewTestFolder("actor");
  std::filesystem::create_directories(actor);
  std::ifstream in(std::string(kLlama) + "/config.json");
  std::string json(std::istreambuf_iterator<char>(in), {});
  json.replace(json.find("\"vocab_size\": 101"), 17, "\"vocab_size\": 202");
  std::ofstream(actor + "/config.json") << json;
  config.mutable_actor()->set_pretrain(actor);
  const absl::Status status = ServiceRanks::Start({.service = "scorer", .create = CreateScorer}, config, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("reference model"), HasSubstr("101"), HasSubstr("202"), HasSubstr(actor)));
}

TEST(ScorerService, RefusesSequencesBeyondAModelsSlidingWindow) {
  RunConfig config = TestConfig(EditedFolder("core/model/testdata/mistral", {{"sliding_window", 8}}), 3);
  config.mutable_actor()->set_max_len(9);
  const absl::Status status = ServiceRanks::Start({.service = "scorer", .create = CreateScorer}, config, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("actor.max_len is 9; at most 8 is allowed"));
}

}  // namespace
}  // namespace quartet
