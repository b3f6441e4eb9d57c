// What an answer is worth does not depend on which source spoke first.
#include "scorer/scoring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ScoringTest : public testing::Test {
 protected:
  void AddSource(double weight, const std::vector<std::string>& only = {}) {
    RewardSource* source = config_.add_source();
    source->set_name(std::string(1, static_cast<char>('a' + config_.source_size() - 1)));
    source->set_weight(weight);
    source->set_model("model");  // whose values come from the test
    source->mutable_only()->Assign(only.begin(), only.end());
  }

  // The reply to one answer, of which source i says values[i], in this order of sources.
  ScoreReply ReplyTo(const std::vector<float>& values, const std::vector<int>& order,
                     const std::string& prompt_source = "") {
    auto sources = AnswerSources::Create(config_);
    EXPECT_TRUE(sources.ok()) << sources.status();
    const auto scoring = std::make_shared<Scoring>(run_, sources->get());
    ScoreItem item;
    item.mutable_tokens()->set_index(7);
    item.set_source(prompt_source);
    scoring->Add(&item);
    scoring->EndItems();
    for (const int source : order) scoring->AddModel(0, source, values[source]);
    const std::optional<ScoreReply> reply = scoring->Next();
    EXPECT_TRUE(reply.has_value()) << scoring->status();
    return reply.value_or(ScoreReply());
  }

  RunConfig run_;
  RewardConfig& config_ = *run_.mutable_reward();
};

TEST_F(ScoringTest, HasTheSameBitsInWhicheverOrderSourcesSpeak) {
  for (const float weight : {1.0f, 0.2f, 0.1f, 1e-4f}) AddSource(weight);
  const std::vector<float> values = {1, 1, 1, -3e3f};
  std::vector<int> order = {0, 1, 2, 3};
  std::set<uint32_t> rewards, scores;
  do {
    const ScoreReply reply = ReplyTo(values, order);
    EXPECT_EQ(reply.index(), 7);
    EXPECT_EQ(reply.parts().at("c"), 1);
    rewards.insert(std::bit_cast<uint32_t>(reply.reward()));
    scores.insert(std::bit_cast<uint32_t>(reply.score()));
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(rewards.size(), 1u);
  EXPECT_EQ(scores.size(), 1u);
}

TEST_F(ScoringTest, AddsWithoutTheRoundingOfEachStep) {
  for (const float weight : {1.0f, 0.2f, 0.1f}) AddSource(weight);
  EXPECT_EQ(ReplyTo({1, 1, 1}, {1, 2, 0}).reward(), 1.3f);
}

class FailingSourceTest : public ScoringTest {
 protected:
  FailingSourceTest() { AddSource(1); }
  // Behind the model: one that fails, or not, by its program.
  void AddCommand(const std::string& command, float weight) {
    RewardSource* source = config_.add_source();
    source->set_name("program");
    source->set_weight(weight);
    source->set_command(command);
    source->set_timeout_seconds(60);
    source->set_workers(1);
    source->set_max_tries(2);
  }
};

TEST_F(FailingSourceTest, DecidesNothingWhereItsWeightIsZero) {
  AddCommand("cat", 0);  // what it says is no reward
  for (const char* on_error : {"stop", "drop"}) {
    config_.set_on_error(on_error);
    const ScoreReply reply = ReplyTo({3}, {0});
    EXPECT_EQ(reply.error(), "");
    EXPECT_EQ(reply.reward(), 3);
    EXPECT_EQ(reply.parts().at("a"), 3);
    EXPECT_FALSE(reply.parts().contains("program"));
  }
}

TEST_F(FailingSourceTest, StopsTheCallWhereEarlierRewardsCannotBeTrusted) {
  AddCommand("while read line; do printf '{\"reward\": 1}\\n{\"reward\": 1}\\n'; done", 1);
  config_.set_on_error("drop");
  auto sources = AnswerSources::Create(config_);
  ASSERT_TRUE(sources.ok()) << sources.status();
  const auto scoring = std::make_shared<Scoring>(run_, sources->get());
  for (size_t i = 0; i < 2; ++i) {
    ScoreItem item;
    item.mutable_tokens()->set_index(i);
    scoring->Add(&item);
    scoring->AddModel(i, 0, 1);
  }
  while (scoring->Next().has_value()) {
  }
  EXPECT_EQ(scoring->status().code(), absl::StatusCode::kDataLoss) << scoring->status();
  scoring->Close();
}

// Of an answer of three tokens, whose program says a list of rewards, beside a model.
class TokenRewardsTest : public ScoringTest {
 protected:
  TokenRewardsTest() { AddSource(2); }
  // `reply` is what it writes, but for the id.
  void AddProgram(const std::string& reply, double weight, bool of_tokens = true) {
    RewardSource* source = config_.add_source();
    source->set_name(absl::StrCat("program", config_.source_size()));
    source->set_weight(weight);
    source->set_command("python3 -c \"import json, sys\nfor line in sys.stdin:\n item = json.loads(line)\n" + reply +
                        "\n print(json.dumps({**said, 'id': item['id']}), flush=True)\"");
    source->set_timeout_seconds(60);
    source->set_workers(1);
    source->set_max_tries(1);
    source->set_token_rewards(of_tokens);
  }
  absl::StatusOr<ScoreReply> Reply(float of_model, std::vector<std::string> texts = {"yes", " ", "<end>"}) {
    sources_ = AnswerSources::Create(config_).value();
    const auto scoring = std::make_shared<Scoring>(run_, sources_.get());
    ScoreItem item;
    item.mutable_tokens()->set_index(7);
    for (int i = 0; i < 5; ++i) {
      item.mutable_tokens()->add_ids(10 + i);
      item.mutable_tokens()->add_action_mask(i >= 2);
    }
    item.mutable_token_texts()->Assign(texts.begin(), texts.end());
    scoring->Add(&item);
    scoring->EndItems();
    scoring->AddModel(0, 0, of_model);
    std::optional<ScoreReply> reply = scoring->Next();
    scoring->Close();
    if (!reply.has_value()) return scoring->status();
    return *std::move(reply);
  }
  std::string ErrorOf(const std::string& reply, bool of_tokens = true) {
    config_.clear_source();
    AddSource(1);
    AddProgram(reply, 1, of_tokens);
    return std::string(Reply(0).status().message());
  }

  std::unique_ptr<AnswerSources> sources_;
};

TEST_F(TokenRewardsTest, AreAddedWithTheirWeightsAndWhatIsOfNoTokenStandsAtTheLast) {
  AddProgram(" said = {'token_rewards': [0.5 * (t == 'yes') for t in item['token_texts']]}", 4);
  AddProgram(" said = {'token_rewards': [i - 12 for i in item['token_ids']], 'reward': 3}", 0.5);
  const absl::StatusOr<ScoreReply> reply = Reply(0.25);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->token_rewards(), ElementsAre(2, 0.5, 1.5));
  EXPECT_EQ(reply->reward(), 4);
  EXPECT_EQ(reply->score(), 4);
  EXPECT_EQ(reply->parts().at("program2"), 0.5);
  EXPECT_EQ(reply->parts().at("program3"), 3);
}

TEST_F(TokenRewardsTest, AreMultipliedByGates) {
  AddProgram(" said = {'token_rewards': [1, 2, 3]}", 1);
  AddProgram(" said = {'reward': 0.5}", 1, /*of_tokens=*/false);
  config_.mutable_source(2)->set_gate(true);
  const absl::StatusOr<ScoreReply> reply = Reply(1);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->token_rewards(), ElementsAre(0.5, 1, 2.5));
  EXPECT_EQ(reply->reward(), 4);
}

TEST_F(TokenRewardsTest, MayBeLeftOutOfAnAnswer) {
  AddProgram(" said = {'reward': 3, 'token_rewards': None}", 1);
  const absl::StatusOr<ScoreReply> reply = Reply(1);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->token_rewards(), ElementsAre(0, 0, 5));
}

TEST_F(TokenRewardsTest, AreNotSaidWhereNoSourceGivesThem) {
  AddProgram(" said = {'reward': len(item.get('token_ids', []))}", 1, /*of_tokens=*/false);
  const absl::StatusOr<ScoreReply> reply = Reply(1, {});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->token_rewards(), ElementsAre());
  EXPECT_EQ(reply->reward(), 2);
}

TEST_F(TokenRewardsTest, ThatAreNoFiniteNumberForEachTokenAreErrorsOfTheAnswer) {
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [1, 2]}"),
              AllOf(HasSubstr("sequence 7, reward \"program2\""),
                    HasSubstr("\"token_rewards\" has 2 numbers, and the answer has 3 tokens")));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': []}"), HasSubstr("has 0 numbers, and the answer has 3 tokens"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': 1}"), HasSubstr("\"token_rewards\" is \"1\", no list of numbers"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [1, 'x', 2]}"), HasSubstr("\"token_rewards\"[1] is"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [1, float('nan'), 2]}"),
              HasSubstr("\"token_rewards\"[1] is \"NaN\", no finite"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [1e300, 0, 2]}"), HasSubstr("beyond fp32"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [3e38, 3e38, 0]}"), HasSubstr("add up to 6e+38"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [1, 0, 2], 'reward': 1}"),
              HasSubstr("\"reward\" is 1, and \"token_rewards\" add up to 3"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [0, 0, 0], 'reward': 0.00009}"), HasSubstr("add up to 0"));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': None}"), HasSubstr("has no \"reward\""));
  EXPECT_THAT(ErrorOf(" said = {'token_rewards': [1, 0, 2], 'reward': 3}", /*of_tokens=*/false),
              HasSubstr("reward.source.token_rewards is false"));
}

TEST_F(TokenRewardsTest, NeedTheTextOfEachToken) {
  AddProgram(" said = {'token_rewards': [1, 2, 3]}", 1);
  EXPECT_THAT(std::string(Reply(1, {"yes"}).status().message()), HasSubstr("1 texts for 3 action tokens"));
}

TEST_F(ScoringTest, GivesAnswersThatAreWorthTheSameTheSame) {
  for (int i = 1; i <= 40; ++i) {
    for (int j = i; j <= 40; ++j) {
      config_.clear_source();
      for (const int steps : {i, j, i + j}) AddSource(steps / 20.0);
      EXPECT_EQ(ReplyTo({1, 1, 0}, {0, 1, 2}).reward(), ReplyTo({0, 0, 1}, {0, 1, 2}).reward()) << i << " + " << j;
    }
  }
}

TEST_F(ScoringTest, LeavesNothingOfWeightsThatCancel) {
  for (const double weight : {0.3, -0.2, -0.1}) AddSource(weight);
  EXPECT_EQ(ReplyTo({1, 1, 1}, {0, 1, 2}).reward(), 0);
}

TEST_F(ScoringTest, CountsTheSourcesAloneThatAreForAPrompt) {
  AddSource(1, {"math", "physics"});
  AddSource(2, {"code"});
  AddSource(0.5);
  ScoreReply reply = ReplyTo({1, 9, 1}, {2, 0}, "math");
  EXPECT_EQ(reply.reward(), 1.5f);
  EXPECT_EQ(reply.parts().size(), 2);
  EXPECT_FALSE(reply.parts().contains("b"));
  reply = ReplyTo({9, 1, 1}, {2, 1}, "code");
  EXPECT_EQ(reply.reward(), 2.5f);
  EXPECT_FALSE(reply.parts().contains("a"));
  EXPECT_EQ(ReplyTo({9, 9, 1}, {2}, "poems").reward(), 0.5f);
}

TEST_F(ScoringTest, RefusesAPromptThatNoSourceIsForButAGate) {
  AddSource(1, {"math"});
  AddSource(1);
  config_.mutable_source(1)->set_gate(true);
  auto sources = AnswerSources::Create(config_);
  ASSERT_TRUE(sources.ok()) << sources.status();
  const auto scoring = std::make_shared<Scoring>(run_, sources->get());
  ScoreItem item;
  item.set_source("code");
  scoring->Add(&item);
  EXPECT_FALSE(scoring->Next().has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(scoring->status()));
  EXPECT_THAT(std::string(scoring->status().message()), testing::HasSubstr("the prompt is from \"code\""));
}

TEST_F(ScoringTest, LeavesAPromptThatNoSourceIsForToTheAgent) {
  AddSource(1, {"math"});
  AddSource(1, {"code"});
  config_.mutable_source(1)->set_gate(true);
  run_.mutable_agent()->set_command("./agent");
  EXPECT_EQ(ReplyTo({}, {}, "poems").reward(), 0);
  const ScoreReply gated = ReplyTo({9, 0.5}, {1}, "code");
  EXPECT_EQ(gated.reward(), 0);
  EXPECT_EQ(gated.parts().at("b"), 0.5);
}

TEST_F(ScoringTest, MultipliesTheSumOfTheOthersByEachGate) {
  for (const float weight : {1.0f, 0.5f, 1.0f, 1.0f}) AddSource(weight);
  config_.mutable_source(0)->set_gate(true);
  config_.mutable_source(3)->set_gate(true);
  const struct {
    std::vector<float> values;
    float reward;
  } cases[] = {{{1, 1, 2, 1}, 2.5}, {{0, 1, 2, 1}, 0}, {{0.5, 1, 2, 0.5}, 0.625}, {{1, -1, 0, 0.5}, -0.25}};
  for (const auto& c : cases) {
    const ScoreReply reply = ReplyTo(c.values, {3, 1, 0, 2});
    EXPECT_EQ(reply.reward(), c.reward);
    EXPECT_EQ(reply.score(), c.reward);
    EXPECT_EQ(reply.parts().at("a"), c.values[0]);
  }
}

TEST_F(ScoringTest, RefusesAGatesValueThatIsNoShare) {
  for (const float weight : {1.0f, 1.0f}) AddSource(weight);
  config_.mutable_source(1)->set_gate(true);
  config_.set_on_error("drop");
  for (const float value : {-1.0f, 1.5f}) {
    const ScoreReply reply = ReplyTo({1, value}, {0, 1});
    EXPECT_EQ(reply.reward(), 0);
    EXPECT_THAT(reply.error(), AllOf(HasSubstr("\"b\""), HasSubstr(absl::StrCat(value)), HasSubstr("from 0 to 1")));
  }
  config_.set_on_error("stop");
  auto sources = AnswerSources::Create(config_);
  ASSERT_TRUE(sources.ok()) << sources.status();
  const auto scoring = std::make_shared<Scoring>(run_, sources->get());
  ScoreItem item;
  scoring->Add(&item);
  scoring->AddModel(0, 1, -1);
  EXPECT_THAT(std::string(scoring->status().message()), HasSubstr("from 0 to 1"));
}

TEST_F(ScoringTest, TellsSourcesWhatIsBehindTheReasoningAlone) {
  RewardSource* rule = config_.add_source();
  rule->set_name("number");
  rule->set_rule("number");
  rule->set_weight(1);
  rule->set_reasoning_delimiter("</think>");
  RewardSource* command = config_.add_source();
  command->set_name("command");
  command->set_command(R"(python3 -uc '
import json, sys
for line in sys.stdin:
    item = json.loads(line)
    whole = item["prompt"] + item["response"] + "<end>"
    print(json.dumps({"reward": float(whole == item["query"]), "extra_logs": {"seen": len(item["response"])}}))
')");
  command->set_weight(10);
  command->set_workers(1);
  command->set_timeout_seconds(60);
  command->set_max_tries(1);
  command->set_reasoning_delimiter("</think>");
  const struct {
    std::string prompt, response;
    float reward, seen;  // seen: -1: not asked
  } cases[] = {
      {"2+2<think>", "no \\boxed{5}</think>so \\boxed{4}", 11, 12},
      {"2+2</think>", "\\boxed{5}</think> or </think>\\boxed{4}", 11, 9},
      {"2+2", "a \\boxed{4}</think> none", 10, 5},
      {"2+2</think>", "\\boxed{4}", 0, -1},
      {"2+2", "a \\boxed{4}</thin", 0, -1},
  };
  auto sources = AnswerSources::Create(config_);
  ASSERT_TRUE(sources.ok()) << sources.status();
  for (const auto& c : cases) {
    const auto scoring = std::make_shared<Scoring>(run_, sources->get());
    ScoreItem item;
    item.set_prompt(c.prompt);
    item.set_response(c.response);
    item.set_query(c.prompt + c.response + "<end>");
    item.set_label("4");
    scoring->Add(&item);
    scoring->EndItems();
    const std::optional<ScoreReply> reply = scoring->Next();
    ASSERT_TRUE(reply.has_value()) << c.response << ": " << scoring->status();
    EXPECT_EQ(reply->reward(), c.reward) << c.response;
    EXPECT_EQ(reply->score(), c.reward) << c.response;
    EXPECT_TRUE(reply->scores().empty()) << c.response;  // neither source gives any
    EXPECT_EQ(reply->extra_logs().at("number/unfinished_reasoning"), c.seen < 0) << c.response;
    EXPECT_EQ(reply->extra_logs().at("command/unfinished_reasoning"), c.seen < 0) << c.response;
    EXPECT_EQ(reply->extra_logs().contains("command/seen") ? reply->extra_logs().at("command/seen") : -1, c.seen);
  }
}

TEST_F(ScoringTest, SaysWhereASumIsBeyondItsType) {
  AddSource(2);
  AddSource(1);
  auto sources = AnswerSources::Create(config_);
  ASSERT_TRUE(sources.ok()) << sources.status();
  const auto scoring = std::make_shared<Scoring>(run_, sources->get());
  ScoreItem item;
  scoring->Add(&item);
  scoring->AddModel(0, 0, 3e38f);
  scoring->AddModel(0, 1, 1);
  EXPECT_FALSE(scoring->Next().has_value());
  EXPECT_EQ(scoring->status().code(), absl::StatusCode::kOutOfRange);
}

TEST(AnswerSources, AreWrongWhereNoServerOfOneCanBeReached) {
  for (const std::string url : {"http://127.0.0.1:9/", "grpc://127.0.0.1:9"}) {
    RewardConfig config;
    RewardSource* source = config.add_source();
    source->add_remote_url(url);
    source->set_timeout_seconds(1);
    source->set_workers(1);
    const auto sources = AnswerSources::Create(config);
    ASSERT_TRUE(sources.ok()) << sources.status();
    EXPECT_TRUE(absl::IsUnavailable((*sources)->Check())) << "it may still come";
    const absl::Status status = (*sources)->CheckFor(absl::Milliseconds(500));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("reward.source[0]: " + url), HasSubstr("no server of it could be reached for 500ms")));
  }
}

TEST(AnswerSources, AreWrongWhereACommandEndsWhileItLoads) {
  RewardConfig config;
  RewardSource* source = config.add_source();
  source->set_command("sleep 1; echo 'no such model' >&2; exit 3");
  source->set_timeout_seconds(1);
  source->set_workers(1);
  const auto sources = AnswerSources::Create(config);
  ASSERT_TRUE(sources.ok()) << sources.status();
  EXPECT_TRUE((*sources)->Check().ok()) << (*sources)->Check();
  for (int i = 0; i < 600 && (*sources)->Check().ok(); ++i) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsInvalidArgument((*sources)->Check()));
  EXPECT_THAT(std::string((*sources)->Check().message()),
              AllOf(HasSubstr("reward.source[0]: command \"sleep 1"), HasSubstr("exit code 3; it has written last:"),
                    HasSubstr("no such model")));
}

}  // namespace
}  // namespace quartet
