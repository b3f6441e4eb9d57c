#include "orchestrator/data/first_example.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/clients/testing/byte_tokenizer.h"

namespace quartet {
namespace {

// Of texts, each with whether it is trained on.
TokenSequence Example(const std::vector<std::pair<std::string, bool>>& parts) {
  TokenSequence example;
  for (const auto& [text, trained] : parts) {
    for (const char c : text) {
      example.add_ids(c);
      example.add_action_mask(trained);
    }
  }
  return example;
}

TEST(FirstExample, ShowsWhatIsReadAndWhatIsTrainedOn) {
  EXPECT_EQ(DescribeExample(Example({{"1+1?\n", false}, {std::string("2\0", 2), true}}), ByteTokenizer()),
            "first example, as the model reads it: 7 tokens, of which 2 are trained on\n"
            "  read    \"1+1?\\n\"\n"
            "          ids 49 43 49 63 10\n"
            "  trained \"2<end>\"\n"
            "          ids 50 0");
}

TEST(FirstExample, ShowsAPromptAlike) {
  PromptRecord prompt;
  prompt.ids = {'a', '\t', '"', '\\', 27};
  EXPECT_EQ(DescribePrompt(prompt, ByteTokenizer()),
            "first prompt, as the model reads it: 5 tokens\n"
            "  \"a\\t\\\"\\\\\\x1b\"\n"
            "  ids 97 9 34 92 27");
}

TEST(FirstExample, ShortensInTheMiddle) {
  PromptRecord prompt;
  for (const char c : std::string(70, 'a') + std::string(70, 'b')) prompt.ids.push_back(c);
  EXPECT_EQ(DescribePrompt(prompt, ByteTokenizer()), "first prompt, as the model reads it: 140 tokens\n  \"" +
                                                         std::string(60, 'a') + " ... " + std::string(60, 'b') +
                                                         "\"\n  ids 97 97 97 97 97 97 ... 98 98 98 98 98 98");
  std::vector<std::pair<std::string, bool>> turns;
  for (const char* turn : {"q1", "q2", "q3", "q4"}) {
    turns.push_back({turn, false});
    turns.push_back({"a", true});
  }
  EXPECT_EQ(DescribeExample(Example(turns), ByteTokenizer()),
            "first example, as the model reads it: 12 tokens, of which 4 are trained on\n"
            "  read    \"q1\"\n          ids 113 49\n"
            "  trained \"a\"\n          ids 97\n"
            "  read    \"q2\"\n          ids 113 50\n"
            "  ... 2 more parts ...\n"
            "  trained \"a\"\n          ids 97\n"
            "  read    \"q4\"\n          ids 113 52\n"
            "  trained \"a\"\n          ids 97");
}

TEST(FirstExample, CutsNoCharacterInTwo) {
  PromptRecord prompt;
  for (int i = 0; i < 130; ++i) {
    for (const unsigned char byte : {0xC3, 0x9F}) prompt.ids.push_back(byte);
  }
  std::string sixty;
  for (int i = 0; i < 60; ++i) sixty += "ß";
  EXPECT_NE(DescribePrompt(prompt, ByteTokenizer()).find("\"" + sixty + " ... " + sixty + "\""), std::string::npos);
}

}  // namespace
}  // namespace quartet
