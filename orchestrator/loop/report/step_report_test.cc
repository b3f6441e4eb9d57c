#include "orchestrator/loop/report/step_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tokenizer/testing/piece_tokenizer.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StepTable, ShowsWhatAStepWaitsForInPartsThatAddUp) {
  Metrics metrics;
  for (const auto& [name, seconds] : std::vector<std::pair<const char*, double>>{{"generate", 1},
                                                                                 {"score", 0.5},
                                                                                 {"values", 0.2},
                                                                                 {"log_probs", 0.25},
                                                                                 {"forwards", 0.25},
                                                                                 {"policy_update", 2},
                                                                                 {"critic_update", 1},
                                                                                 {"weight_sync", 0.25},
                                                                                 {"step", 4.5}}) {
    metrics.Set(std::string("time/") + name, seconds);
  }
  const std::string line = StepTableLine(3, metrics, "  1 min left");
  EXPECT_THAT(line, HasSubstr("|     1.00    0.50     0.25    2.00    0.25    0.50    4.50  1 min left"));
  EXPECT_EQ(line.substr(0, 5), "    3") << "as in step_3";
  // Below its head.
  const std::string head = StepTableHead();
  EXPECT_EQ(head.find('|'), line.find('|'));
  EXPECT_EQ(head.find("step s") + 6, line.find("  1 min"));
}

TEST(StepTable, HasNoRewardWhereAnswersHaveNone) {
  Metrics metrics;
  const size_t end = StepTableHead().find("reward") + 6;
  EXPECT_EQ(StepTableLine(3, metrics, "").substr(0, end), "    3        -");
  metrics.Set("reward/mean", 0);
  EXPECT_EQ(StepTableLine(3, metrics, "").substr(0, end), "    3   0.0000");
}

TEST(StepTable, ShowsNoSignOfAKlThatIsNothing) {
  Metrics metrics;
  metrics.Set("kl/mean", -4e-6);
  EXPECT_THAT(StepTableLine(0, metrics, ""), HasSubstr("  0.00000 "));
  metrics.Set("kl/mean", -1.23e-3);
  EXPECT_THAT(StepTableLine(0, metrics, ""), HasSubstr(" -0.00123 "));
}

// Pieces of a tokenizer: the end token, texts, and a character of two tokens.
const PieceTokenizer& Pieces() {
  static const PieceTokenizer pieces({"<end>", "add(1)", " tool: 1", "so 1", " \xE2\x82", "\xAC"});
  return pieces;
}

TokenSequence MaskedSequence(const std::vector<int32_t>& ids, const std::vector<bool>& trained) {
  TokenSequence sequence;
  sequence.mutable_ids()->Assign(ids.begin(), ids.end());
  sequence.mutable_action_mask()->Assign(trained.begin(), trained.end());
  return sequence;
}

// `prompt`: the row's.
std::vector<SampleSequence> SequencesOfSample(const std::vector<TokenSequence>& sequences,
                                              const std::vector<int32_t>& prompt = {}) {
  Experience experience;
  PromptRecord record;
  record.ids = prompt;
  experience.prompt = std::make_shared<const PromptRecord>(std::move(record));
  experience.sequences = sequences;
  const auto samples = PickSamples(0, {experience}, /*has_rewards=*/false, Pieces());
  EXPECT_EQ(samples.size(), 1);
  return samples.front().sequences;
}

TEST(Samples, OfOneAnswerArePromptAndResponseAlone) {
  EXPECT_THAT(SequencesOfSample({MaskedSequence({1, 2, 3, 0}, {false, false, true, true})}, {1, 2}), IsEmpty());
  EXPECT_THAT(SequencesOfSample({MaskedSequence({1, 2, 3}, {false, true, false})}, {1}), IsEmpty())
      << "a tool's word at the end";
  EXPECT_THAT(SequencesOfSample({MaskedSequence({1}, {false})}, {1}), IsEmpty()) << "nothing was drawn";
}

TEST(Samples, OfOneAnswerToAnotherPromptThanTheRowsHaveThatPrompt) {
  for (const std::vector<int32_t>& rows : std::vector<std::vector<int32_t>>{{1}, {2, 2}, {2, 1, 3}}) {
    EXPECT_THAT(SequencesOfSample({MaskedSequence({2, 1, 3, 0}, {false, false, true, true})}, rows),
                ElementsAre(ElementsAre(SampleSpan{"tool: 1add(1)", false}, SampleSpan{"so 1<end>", true})));
  }
}

TEST(Samples, OfSeveralTurnsHaveEachWithItsSpecialTokens) {
  EXPECT_THAT(SequencesOfSample({MaskedSequence({2, 1, 0, 2, 2, 3, 0}, {false, true, true, false, false, true, true})}),
              ElementsAre(ElementsAre(SampleSpan{"tool: 1", false}, SampleSpan{"add(1)<end>", true},
                                      SampleSpan{" tool: 1 tool: 1", false}, SampleSpan{"so 1<end>", true})));
}

TEST(Samples, OfSeveralSequencesHaveAllOfThem) {
  EXPECT_THAT(SequencesOfSample({MaskedSequence({1, 3}, {false, true}), MaskedSequence({3, 1}, {false, true})}),
              ElementsAre(ElementsAre(SampleSpan{"add(1)", false}, SampleSpan{"so 1", true}),
                          ElementsAre(SampleSpan{"so 1", false}, SampleSpan{"add(1)", true})));
}

TEST(Samples, HaveACharacterOfTwoSpansInTheLaterOne) {
  EXPECT_THAT(SequencesOfSample({MaskedSequence({1, 3, 4, 5, 3}, {false, true, true, false, true})}),
              ElementsAre(ElementsAre(SampleSpan{"add(1)", false}, SampleSpan{"so 1 ", true},
                                      SampleSpan{"\u20AC", false}, SampleSpan{"so 1", true})));
}

TEST(Samples, OfLongEpisodesSayWhatIsLeftOut) {
  const std::vector<int32_t> ids(200'000, 2);
  std::vector<bool> trained(ids.size(), true);
  trained[0] = trained[100] = false;
  const auto sequences = SequencesOfSample({MaskedSequence(ids, trained)});
  ASSERT_EQ(sequences.size(), 1);
  ASSERT_EQ(sequences[0].size(), 4);
  EXPECT_EQ(sequences[0][1].text.size(), 99 * 8) << "what is short is whole";
  EXPECT_THAT(sequences[0][3].text, HasSubstr("left out"));
  EXPECT_LT(sequences[0][3].text.size(), 66'000);
}

}  // namespace
}  // namespace quartet
