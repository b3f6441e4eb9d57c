#include "core/rewards/rules/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "proto/field_rule.pb.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

struct RuleOptions {
  std::string rule;
  std::string pattern;
  std::string choices = "ABCD";
  std::string field;
  int min_len = 0, max_len = 0, len_buffer = 1;
};

absl::StatusOr<std::unique_ptr<RewardFunction>> New(const RuleOptions& options) {
  RewardSource source;
  source.set_rule(options.rule);
  source.set_pattern(options.pattern);
  source.set_choices(options.choices);
  source.set_field(options.field);
  source.set_min_len(options.min_len);
  source.set_max_len(options.max_len);
  source.set_len_buffer(options.len_buffer);
  return NewRule(source);
}

absl::StatusOr<Reward> Whole(const RuleOptions& options, const std::string& response, const std::string& label,
                             bool truncated = false, int64_t tokens = 0) {
  const auto rule = New(options);
  if (!rule.ok()) return rule.status();
  Answer answer;
  answer.response = response;
  answer.label = label;
  answer.truncated = truncated;
  answer.tokens = tokens;
  const Answer* const one[] = {&answer};
  return (*rule)->Score(one, {}).at(0);
}

absl::StatusOr<float> Score(const RuleOptions& options, const std::string& response, const std::string& label,
                            bool truncated = false, int64_t tokens = 0) {
  const auto reward = Whole(options, response, label, truncated, tokens);
  if (!reward.ok()) return reward.status();
  return reward->value;
}

float Value(const RuleOptions& options, const std::string& response, const std::string& label, bool truncated = false,
            int64_t tokens = 0) {
  const auto value = Score(options, response, label, truncated, tokens);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.value_or(-99);
}

TEST(Rules, CompareTextsAndNumbers) {
  EXPECT_EQ(Value({.rule = "exact_match"}, " cba\n", "cba"), 1);
  EXPECT_FALSE(Score({.rule = "exact_match"}, "", " ").ok());
  EXPECT_EQ(Value({.rule = "number"}, "#### 72.0", "72"), 1);
}

TEST(Rules, CompareTheTextInTheLastBox) {
  EXPECT_EQ(Value({.rule = "boxed"}, "\\boxed{x} or \\boxed{ Paris }", "Paris"), 1);
  EXPECT_EQ(Value({.rule = "boxed"}, "\\boxed{\\frac{1}{2}}", "so it is \\boxed{\\frac{1}{2}}"), 1);
  EXPECT_EQ(Value({.rule = "boxed"}, "\\boxed{0.5}", "\\frac{1}{2}"), 0);
  EXPECT_EQ(Value({.rule = "boxed"}, "Paris", "Paris"), 0);
}

TEST(Rules, CompareMathematically) {
  EXPECT_EQ(Value({.rule = "math"}, "so \\boxed{\\frac{2}{4}}", "0.5"), 1);
  EXPECT_EQ(Value({.rule = "math"}, "so $x = (b + a)^2$.", "a^2 + 2ab + b^2"), 1);
  EXPECT_EQ(Value({.rule = "math"}, "so $x = (b - a)^2$.", "a^2 + 2ab + b^2"), 0);
}

TEST(Rules, FollowOpenReasonerZero) {
  const RuleOptions rule = {.rule = "open_reasoner_zero"};
  EXPECT_EQ(Value(rule, "<think>\\boxed{1}</think><answer>\\boxed{3} no, \\boxed{2}</answer>", "2"), 1);
  EXPECT_EQ(Value(rule, "<answer>\\boxed{\\frac{4}{2}}</answer>", "2"), 1);
  EXPECT_EQ(Value(rule, "<answer>\\boxed{2}</answer>", "2", /*truncated=*/true), 0);
  EXPECT_EQ(Value(rule, "<answer>2</answer>", "2"), 0);
  EXPECT_EQ(Value(rule, "\\boxed{2}", "2"), 0);
  EXPECT_EQ(Value(rule, "<answer>\\boxed{2}</answer><answer>I give up</answer>", "2"), 0);
}

TEST(Rules, ReadWhatAPatternFindsLast) {
  const RuleOptions group = {.rule = "regex", .pattern = "(?:Answer|answer): *(\\w+)"};
  EXPECT_EQ(Value(group, "Answer: no\nanswer:  yes.", "yes"), 1);
  EXPECT_EQ(Value(group, "answer: yes\nAnswer: no", "yes"), 0);
  EXPECT_EQ(Value(group, "yes", "yes"), 0);
  EXPECT_EQ(Value({.rule = "regex", .pattern = "[0-9]+"}, "1 and 22", "22"), 1);
}

TEST(Rules, GiveNothingForAnAnswerOnWhichAPatternTakesTooMuch) {
  std::string tags;
  while (tags.size() < 25'000) tags += "</think><answer></answer>";
  const std::string documented = "<think>[\\s\\S]*</think>\\s*<answer>[\\s\\S]*</answer>\\s*";
  const struct {
    RuleOptions rule;
    std::string response;
    float over_budget;
  } cases[] = {
      {{.rule = "regex", .pattern = "(a+)+$"}, std::string(40, 'a') + "b", 1},
      {{.rule = "regex", .pattern = "(a+)+$"}, "aab", 0},
      {{.rule = "format", .pattern = "(a+)+"}, std::string(40, 'a') + "b", 1},
      {{.rule = "format", .pattern = documented}, "<think>" + tags + "x", 1},
      {{.rule = "format", .pattern = documented}, "<think></think><answer></answer>x", 0},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Reward> reward = Whole(c.rule, c.response, "a");
    ASSERT_TRUE(reward.ok()) << c.rule.pattern << ": " << reward.status();
    EXPECT_EQ(reward->value, 0) << c.rule.pattern;
    EXPECT_EQ(reward->extra_logs.at("over_budget"), c.over_budget) << c.rule.pattern;
  }
  EXPECT_EQ(Whole({.rule = "format", .pattern = "a+"}, "aa", "")->extra_logs.at("over_budget"), 0);
}

TEST(Rules, MatchTheWholeAnswerAgainstAFormat) {
  const RuleOptions format = {.rule = "format", .pattern = "<think>[\\s\\S]*</think>\\s*<answer>[^<]*</answer>\\s*"};
  EXPECT_EQ(Value(format, "<think>a\nb</think>\n<answer>1</answer>\n", ""), 1);
  EXPECT_EQ(Value(format, "so: <think>a</think><answer>1</answer>", ""), 0);
  EXPECT_EQ(Value(format, "<think>a</think><answer>1</answer> done", ""), 0);
  EXPECT_EQ(Value({.rule = "format", .pattern = "a|b"}, "ab", ""), 0);
}

TEST(Rules, CompareChoices) {
  const RuleOptions rule = {.rule = "choice", .choices = "ABCD"};
  EXPECT_EQ(Value(rule, "The answer is (B).", "B"), 1);
  EXPECT_EQ(Value(rule, "\\boxed{C}", "B"), 0);
  EXPECT_EQ(Value(rule, "E", "B"), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Score(rule, "B", "E").status()));
}

// Answers of the kinds that people report of rules, and what a careful reader gives for them.
TEST(Rules, JudgeAnswersAsAReaderDoes) {
  std::ifstream in("core/rewards/rules/testdata/answers.jsonl");
  int cases = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    const nlohmann::json c = nlohmann::json::parse(line);
    const RuleOptions options = {.rule = c["rule"], .choices = c.value("choices", "ABCD")};
    const absl::StatusOr<float> value = Score(options, c["response"], c["label"]);
    if (c["want"] == "error") {
      EXPECT_TRUE(absl::IsInvalidArgument(value.status())) << line;
    } else {
      EXPECT_EQ(value.value_or(-99), c["want"].get<float>()) << line << " " << value.status();
    }
  }
  EXPECT_GT(cases, 300);
}

TEST(Rules, CompareAFieldOfJson) {
  const RuleOptions rule = {.rule = "json_field", .field = "result.0.city"};
  EXPECT_EQ(Value(rule, R"(Here: {"result": [{"city": "Paris"}]})", "Paris"), 1);
  EXPECT_EQ(Value(rule, R"({"result": [{"city": 7}]})", "7.0"), 1);
  EXPECT_EQ(Value(rule, R"({"result": [{"city": [1, {"a": null}]}]})", R"([1, {"a": null}])"), 1);
  EXPECT_EQ(Value(rule, R"({"result": [{"city": "7"}]})", "8"), 0);
  EXPECT_EQ(Value(rule, R"({"result": [{"city": 354224848179261915075}]})", "354224848179261915075"), 1);
  EXPECT_EQ(Value(rule, R"({"result": [{"city": 354224848179261915076}]})", "354224848179261915075"), 0);
  EXPECT_EQ(Value(rule, R"({"result": []})", "Paris"), 0);
  EXPECT_EQ(Value(rule, "Paris", "Paris"), 0);
}

TEST(Rules, CountTokens) {
  const RuleOptions rule = {.rule = "length", .min_len = 10, .max_len = 100, .len_buffer = 20};
  EXPECT_EQ(Value(rule, "", "", false, 10), 0);
  EXPECT_EQ(Value(rule, "", "", false, 100), 0);
  EXPECT_EQ(Value(rule, "", "", false, 105), -0.25);
  EXPECT_EQ(Value(rule, "", "", false, 0), -0.5);
  EXPECT_EQ(Value(rule, "", "", false, 500), -1);
  EXPECT_EQ(Value({.rule = "finished"}, "", "", /*truncated=*/true), 0);
  EXPECT_EQ(Value({.rule = "finished"}, "", ""), 1);
}

TEST(Rules, RefuseWhatTheyCannotRead) {
  for (const char* rule : {"boxed", "math", "open_reasoner_zero", "number", "choice"}) {
    const absl::Status status = Score({.rule = rule}, "1", "").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << rule << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(rule));
  }
  EXPECT_THAT(std::string(New({.rule = "regex", .pattern = "("}).status().message()), HasSubstr("not well-formed"));
  EXPECT_THAT(std::string(New({.rule = "format", .pattern = ")("}).status().message()), HasSubstr("not well-formed"));
  EXPECT_THAT(std::string(New({.rule = "guess"}).status().message()), HasSubstr("no rule \"guess\""));
}

TEST(Rules, AreThoseThatASourceMayName) {
  const auto& options = RewardSource::descriptor()->FindFieldByName("rule")->options();
  for (const std::string& name : options.GetExtension(field_rule).one_of()) {
    EXPECT_TRUE(New({.rule = name, .pattern = "x", .field = "x"}).ok()) << name;
  }
}

}  // namespace
}  // namespace quartet
