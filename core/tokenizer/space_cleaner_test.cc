#include "core/tokenizer/space_cleaner.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace quartet {
namespace {

// What transformers makes of texts, written by tools/golden/make_tokenizer.py.
TEST(CleanUpSpaces, DoesAsTransformersDoes) {
  std::ifstream file("core/tokenizer/testdata/clean_up_spaces.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden.size(), 200);
  for (const auto& row : golden) EXPECT_EQ(CleanUpSpaces(row[0]), row[1]) << row[0];
}

std::string InPieces(const std::string& text, size_t cut) {
  SpaceCleaner cleaner;
  std::string read;
  if (cut == 0) {
    for (const char c : text) read += cleaner.Read(std::string(1, c));
  } else {
    read = cleaner.Read(text.substr(0, cut));
    read += cleaner.Read(text.substr(cut));
  }
  return read + cleaner.Finish();
}

// All texts of up to six of the characters that matter, cut everywhere: 'v' stands for 'r' too, and 'e' alone for all
// others.
TEST(SpaceCleaner, MakesTheSameTextHoweverItIsCut) {
  constexpr std::string_view kCharacters = " 'ntve.";
  std::vector<std::string> texts = {""};
  for (size_t from = 0, length = 0; length < 5; ++length) {
    const size_t end = texts.size();
    for (; from < end; ++from) {
      for (const char c : kCharacters) {
        texts.push_back(texts[from] + c);
        const std::string& text = texts.back();
        const std::string whole = CleanUpSpaces(text);
        ASSERT_EQ(InPieces(text, 0), whole) << '"' << text << '"';
        for (size_t cut = 1; cut < text.size(); ++cut) {
          ASSERT_EQ(InPieces(text, cut), whole) << '"' << text << "\" cut at " << cut;
        }
      }
    }
  }
}

TEST(SpaceCleaner, HoldsBackNoMoreThanItMust) {
  SpaceCleaner cleaner;
  EXPECT_EQ(cleaner.Read("These trees never"), "These trees never");
  EXPECT_EQ(cleaner.Read(" "), "");
  EXPECT_EQ(cleaner.Read("seem"), " seem");
  EXPECT_EQ(cleaner.Read(" n"), "");
  EXPECT_EQ(cleaner.Read("ew ."), " new.");
  EXPECT_EQ(cleaner.Finish(), "");
}

}  // namespace
}  // namespace quartet
