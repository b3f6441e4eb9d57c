#include "core/run_folder/records/sample_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/utf8.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SampleTexts, ThatFitStayAsTheyAre) {
  const std::vector<SampleSequence> whole = {{{"a question", false}, {"an answer", true}}, {}, {{"", false}}};
  std::vector<SampleSequence> sequences = whole;
  CutToFit(1000, &sequences);
  EXPECT_EQ(sequences, whole);
}

TEST(SampleTexts, LoseTheMiddlesOfTheLongestSpansAlone) {
  std::string euros;
  for (int i = 0; i < 1000; ++i) euros += "€";
  std::vector<SampleSequence> sequences = {{{"short", false}, {"begin " + euros + " end", true}},
                                           {{std::string(200, 'x'), false}, {"a" + euros, true}}};
  CutToFit(1000, &sequences);
  EXPECT_EQ(sequences[0][0].text, "short");
  EXPECT_EQ(sequences[1][0].text, std::string(200, 'x'));
  for (const SampleSpan& span : {sequences[0][1], sequences[1][1]}) {
    EXPECT_TRUE(span.trained);
    EXPECT_THAT(span.text, HasSubstr("€ [... left out ...] €"));
    EXPECT_TRUE(IsValidUtf8(span.text)) << "a character was cut";
    EXPECT_NEAR(static_cast<double>(span.text.size()), (1000 - 205) / 2, 30);
  }
  EXPECT_THAT(sequences[0][1].text, StartsWith("begin "));
  EXPECT_TRUE(sequences[0][1].text.ends_with(" end"));
}

TEST(SampleTexts, LoseTheLastOfVeryManySpans) {
  const SampleSequence turns(600, {"turn", true});
  std::vector<SampleSequence> sequences = {turns, turns, turns};
  CutToFit(64 * 1000, &sequences);
  ASSERT_EQ(sequences.size(), 2);
  EXPECT_EQ(sequences[0], turns);
  ASSERT_EQ(sequences[1].size(), 401);
  EXPECT_EQ(sequences[1][399], turns[0]);
  EXPECT_THAT(sequences[1].back().text, HasSubstr("the rest is left out"));
  EXPECT_FALSE(sequences[1].back().trained);
}

}  // namespace
}  // namespace quartet
