#include "core/rewards/labels/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

using ::testing::HasSubstr;

class LabelReaderTest : public testing::Test {
 protected:
  RewardSource& AddSource(const std::string& rule) {
    RewardSource* source = config_.add_source();
    source->set_rule(rule);
    source->set_choices("ABCD");
    source->set_field("x");
    return *source;
  }
  std::string Error(const std::string& label, const std::string& prompt_source = "") const {
    const auto reader = LabelReader::Create(run_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return std::string(reader->Check(label, prompt_source).message());
  }

  RunConfig run_;
  RewardConfig& config_ = *run_.mutable_reward();
};

TEST_F(LabelReaderTest, FindsWhatEachRuleCannotRead) {
  for (const char* rule : {"number", "math", "boxed", "choice", "exact_match", "json_field", "open_reasoner_zero"}) {
    config_.clear_source();
    AddSource(rule);
    EXPECT_THAT(Error(""), HasSubstr(rule));
    EXPECT_EQ(Error(rule == std::string("choice") ? "B" : "7"), "") << rule;
  }
  config_.clear_source();
  for (const char* rule : {"finished", "length"}) AddSource(rule);
  EXPECT_EQ(Error(""), "");
}

TEST_F(LabelReaderTest, ReadsTheTestsOfProgramsWithoutASandbox) {
  config_.add_source()->set_code("python");
  EXPECT_EQ(Error(R"({"asserts": ["assert f(1) == 2"]})"), "");
  EXPECT_THAT(Error("42"), HasSubstr("has no tests of a program"));
}

TEST_F(LabelReaderTest, AsksTheSourcesAloneThatAreForThePrompt) {
  AddSource("number").add_only("math");
  AddSource("choice").add_only("quiz");
  EXPECT_EQ(Error("7", "math"), "");
  EXPECT_THAT(Error("7", "quiz"), HasSubstr("rule \"choice\""));
  EXPECT_EQ(Error("B", "quiz"), "");
  EXPECT_THAT(Error("7", "code"),
              HasSubstr("the prompt is from \"code\" (data.source_key), and every reward.source that is no gate "
                        "is for others alone (reward.source.only)"));
  run_.mutable_agent()->set_command("./agent");
  EXPECT_EQ(Error("anything", "code"), "") << "the agent says what it is worth";
  run_.clear_agent();
  config_.add_source()->set_command("./judge");
  EXPECT_EQ(Error("anything", "code"), "");
}

TEST_F(LabelReaderTest, TellsWhatIsForAPromptFromWhatAddsToItsReward) {
  RewardSource& number = AddSource("number");
  number.add_only("math");
  number.set_weight(1);
  EXPECT_THAT(Error("7", "code"), HasSubstr("one of weight 0 (reward.source.weight) would judge its answers"));
  EXPECT_TRUE(AnyAdds(config_, "math"));
  EXPECT_FALSE(AnyAdds(config_, "code"));
  RewardSource& judge = AddSource("exact_match");
  judge.add_only("code");
  judge.set_weight(0);
  EXPECT_EQ(Error("7", "code"), "");
  EXPECT_FALSE(AnyAdds(config_, "code"));
  judge.set_weight(1);
  judge.set_gate(true);
  EXPECT_THAT(Error("7", "code"), HasSubstr("every reward.source that is no gate"));
  EXPECT_FALSE(AnyAdds(config_, "code"));
}

TEST_F(LabelReaderTest, NamesTheFieldThatARuleCannotBeMadeOf) {
  AddSource("finished");
  AddSource("regex").set_pattern("(");
  EXPECT_THAT(std::string(LabelReader::Create(run_).status().message()), HasSubstr("reward.source[1]: "));
}

}  // namespace
}  // namespace quartet
