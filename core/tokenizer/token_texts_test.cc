#include "core/tokenizer/token_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;

constexpr char kTokenizers[] = "core/tokenizer/testdata/";

constexpr const char* kNames[] = {"byte_level",   "split_regex", "characters",     "metaspace",
                                  "words",        "cleaned",     "llama_class",    "llama_model",
                                  "qwen2_model",  "gemma_class", "gpt_neox_class", "gpt_neox_without_bos",
                                  "cohere_class", "gpt2_class"};

// `count` ids, of which a few out of many are drawn and so come often: most models' first answers are such.
std::vector<int32_t> RandomIds(const Tokenizer& tokenizer, int count, std::mt19937* random) {
  std::vector<int32_t> some(12), ids;
  for (int32_t& id : some) id = static_cast<int32_t>((*random)() % tokenizer.vocab_size());
  while (std::ssize(ids) < count) {
    ids.push_back((*random)() % 4 > 0 ? some[(*random)() % some.size()]
                                      : static_cast<int32_t>((*random)() % tokenizer.vocab_size()));
  }
  return ids;
}

// Of texts in many scripts and of emoji, whichever way the tokenizer cuts characters.
TEST(TokenTexts, PutTogetherAreTheTextFromAnyTokenOn) {
  int seen = 0;
  for (const std::string name : kNames) {
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

TEST(TokenTexts, PutTogetherAreTheTextWhateverTheModelWrites) {
  std::mt19937 random(7);
  for (const std::string name : kNames) {
    const auto tokenizer = Tokenizer::Load(kTokenizers + name).value();
    for (int round = 0; round < 200; ++round) {
      const std::vector<int32_t> ids = RandomIds(*tokenizer, round, &random);
      const std::vector<std::string> texts = TokenTexts(*tokenizer, ids, 0);
      ASSERT_EQ(texts.size(), ids.size());
      EXPECT_EQ(absl::StrJoin(texts, ""), tokenizer->DecodeUncleaned(ids, /*skip_special_tokens=*/false)) << name;
    }
  }
}

// Where each token is a piece of the text's bytes: what is whole by itself is its token's, whatever stands before it.
TEST(TokenTexts, GiveNothingOfABrokenCharacterToTheTokenBehindIt) {
  constexpr char kUnreadable[] = "\xEF\xBF\xBD";
  std::mt19937 random(8);
  int behind_broken = 0;
  for (const std::string name : {"byte_level", "qwen2_model"}) {
    const auto tokenizer = Tokenizer::Load(kTokenizers + name).value();
    for (int round = 0; round < 200; ++round) {
      const std::vector<int32_t> ids = RandomIds(*tokenizer, round, &random);
      const std::vector<std::string> texts = TokenTexts(*tokenizer, ids, 0);
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::string own = tokenizer->DecodeUncleaned({ids[i]}, /*skip_special_tokens=*/false);
        if (absl::StrContains(own, kUnreadable)) continue;
        EXPECT_EQ(texts[i], own) << name << " " << i;
        behind_broken += i > 0 && absl::EndsWith(texts[i - 1], kUnreadable);
      }
    }
  }
  EXPECT_GT(behind_broken, 100);
}

TEST(TokenTexts, GiveACharacterThatIsNeverEndedToItsLastToken) {
  const auto tokenizer = Tokenizer::Load(std::string(kTokenizers) + "byte_level").value();
  std::vector<int32_t> ids = tokenizer->Encode("\xE2\x82\xAC", false).value();
  ASSERT_EQ(ids.size(), 3) << "of bytes";
  ids.back() = tokenizer->Encode("a", false)->at(0);
  ids.push_back(*tokenizer->TokenToId("<|end|>"));
  EXPECT_THAT(TokenTexts(*tokenizer, ids, 0), ElementsAre("", "\xEF\xBF\xBD", "a", "<|end|>"));
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
