#include "core/tokenizer/token_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;

constexpr char kTokenizers[] = "core/tokenizer/testdata/";

// Of texts in many scripts and of emoji, whichever way the tokenizer cuts characters.
TEST(TokenTexts, PutTogetherAreTheTextFromAnyTokenOn) {
  int seen = 0;
  for (const std::string name :
       {"byte_level", "split_regex", "characters", "metaspace", "words", "cleaned", "llama_class", "llama_model",
        "qwen2_model", "gemma_class", "gpt_neox_class", "gpt_neox_without_bos", "cohere_class", "gpt2_class"}) {
    const auto tokenizer = Tokenizer::Load(kTokenizers + name).value();
    std::ifstream file(kTokenizers + name + "/golden.json");
    const auto golden = nlohmann::json::parse(file);
    for (const auto& row : golden["encode"]) {
      if (absl::StrContains(row[0].get<std::string>(), "\xEF\xBF\xBD")) continue;  // as what is incomplete reads
      const auto ids = row[2].get<std::vector<int32_t>>();
      const std::string whole = tokenizer->DecodeUncleaned(ids, /*skip_special_tokens=*/false);
      for (size_t first = 0; first < std::min<size_t>(ids.size(), 40); ++first) {
        const std::string before =
            tokenizer->DecodeUncleaned({ids.begin(), ids.begin() + first}, /*skip_special_tokens=*/false);
        if (!whole.starts_with(before)) continue;  // within a character
        const std::vector<std::string> texts = TokenTexts(*tokenizer, ids, static_cast<int64_t>(first));
        EXPECT_EQ(texts.size(), ids.size() - first);
        EXPECT_EQ(absl::StrJoin(texts, ""), whole.substr(before.size())) << name << row[0] << " from " << first;
        ++seen;
      }
    }
  }
  EXPECT_GT(seen, 2000);
}

TEST(TokenTexts, GiveACharacterOfSeveralTokensToTheLast) {
  const auto tokenizer = Tokenizer::Load(std::string(kTokenizers) + "byte_level").value();
  const std::vector<int32_t> euro = tokenizer->Encode("\xE2\x82\xAC", false).value();
  ASSERT_GT(euro.size(), 1) << "of bytes";
  const std::vector<std::string> texts = TokenTexts(*tokenizer, euro, 0);
  for (size_t i = 0; i + 1 < texts.size(); ++i) EXPECT_EQ(texts[i], "");
  EXPECT_EQ(texts.back(), "\xE2\x82\xAC");
  // One that is cut off is the last one's, too.
  const std::vector<int32_t> half(euro.begin(), euro.end() - 1);
  EXPECT_EQ(TokenTexts(*tokenizer, half, 0).back(), tokenizer->Decode(half, false));
}

TEST(TokenTexts, HaveSpecialTokensByTheirNames) {
  const auto tokenizer = Tokenizer::Load(std::string(kTokenizers) + "byte_level").value();
  std::vector<int32_t> ids = tokenizer->Encode("a", false).value();
  ASSERT_EQ(ids.size(), 1);
  ids.push_back(*tokenizer->TokenToId("<|end|>"));
  EXPECT_THAT(TokenTexts(*tokenizer, ids, 0), ElementsAre("a", "<|end|>"));
  EXPECT_THAT(TokenTexts(*tokenizer, ids, 2), ElementsAre());
}

}  // namespace
}  // namespace quartet
