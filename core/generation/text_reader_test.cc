#include "core/generation/text_reader.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/utf8.h"
#include "core/tokenizer/testing/piece_tokenizer.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

std::string TextOf(TextReader reader, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += reader.Read(id);
  return text + reader.Finish();
}

// Of all kinds of decoders.
std::vector<std::unique_ptr<Tokenizer>> Tokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (const char* name : {"byte_level", "characters", "metaspace", "split_regex", "words"}) {
    auto loaded = Tokenizer::Load(std::string("core/tokenizer/testdata/") + name);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    tokenizers.push_back(*std::move(loaded));
  }
  return tokenizers;
}

std::string RandomText(std::mt19937& random) {
  static const std::vector<std::string> parts = {" ",  "  ", "the", " Stop",        "a",   "é", "€", "\xF0\x9F\x98\x80",
                                                 "漢", "\n", "\t",  "\xEF\xBF\xBD", "123", "."};
  std::string text;
  for (uint64_t i = 0; i <= random() % 20; ++i) text += parts[random() % parts.size()];
  return text;
}

TEST(TextReader, ItsPiecesAreTheTextOfAllTokens) {
  std::mt19937 random(7);
  for (const auto& tokenizer : Tokenizers()) {
    for (int trial = 0; trial < 500; ++trial) {
      const std::vector<int32_t> ids = *tokenizer->Encode(RandomText(random), trial % 2 == 0);
      EXPECT_EQ(TextOf(TextReader(*tokenizer), ids), tokenizer->Decode(ids, /*skip_special_tokens=*/true));
    }
  }
}

TEST(TextReader, WhatStandsBeforeAndTheTextAreTheTextOfBoth) {
  std::mt19937 random(8);
  for (const auto& tokenizer : Tokenizers()) {
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<int32_t> ids = *tokenizer->Encode(RandomText(random), true);
      const std::string before = tokenizer->Decode(ids, /*skip_special_tokens=*/true);
      // A prompt that may end in something that is incomplete, or has no text, is another matter.
      if (before.empty() || before.ends_with(' ') || before.ends_with("\xEF\xBF\xBD")) continue;
      const TextReader reader(*tokenizer, ids);
      const std::vector<int32_t> more = *tokenizer->Encode(RandomText(random), false);
      ids.insert(ids.end(), more.begin(), more.end());
      EXPECT_EQ(before + TextOf(reader, more), tokenizer->Decode(ids, /*skip_special_tokens=*/true)) << before;
    }
  }
}

// Any bytes at all: valid text comes through, wherever tokens cut it.
TEST(TextReader, ReadsCharactersInTokensThatCutThem) {
  std::vector<std::string> bytes = {"<end>"};
  for (int byte = 1; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.emplace_back("\x98\x80\xF0");  // the end of a character and the beginning of the next
  const PieceTokenizer tokenizer(bytes);
  std::vector<int32_t> straddling = {0xF0, 0x9F};
  std::string smiles = "\xF0\x9F\x98\x80";
  for (int i = 0; i < 200; ++i) {
    straddling.insert(straddling.end(), {256, 0x9F});
    smiles += "\xF0\x9F\x98\x80";
  }
  straddling.insert(straddling.end(), {0x98, 0x80});
  EXPECT_EQ(TextOf(TextReader(tokenizer), straddling), smiles);
}

class CountingTokenizer : public PieceTokenizer {
 public:
  using PieceTokenizer::PieceTokenizer;
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    decoded += static_cast<int64_t>(ids.size());
    return PieceTokenizer::Decode(ids, skip_special_tokens);
  }
  mutable int64_t decoded = 0;  // tokens
};

TEST(TextReader, TheWorkForATokenDoesNotGrowWithTextThatIsNoText) {
  const CountingTokenizer tokenizer({"<end>", "\xF0", "\x9F", "\x98", "\x80", "\xFF", "a", ""});
  std::mt19937 random(9);
  for (const std::vector<int32_t>& run : {std::vector<int32_t>{1}, {2}, {5}, {1, 2}, {7}, {5, 2, 3, 1}}) {
    tokenizer.decoded = 0;
    TextReader reader(tokenizer);
    std::string text;
    for (int i = 0; i < 10000; ++i) text += reader.Read(run[i % run.size()]);
    EXPECT_LT(tokenizer.decoded, 60 * 10000);
    EXPECT_TRUE(IsValidUtf8(text));
    // Little is held back: as much as may still become characters.
    EXPECT_LE(reader.Finish().size(), 17 * 3u);
    text = reader.Read(6);
    EXPECT_TRUE(text.ends_with("a")) << text;
  }
}

TEST(TextReader, ReadsInvalidBytesAsReplacementsAndGoesOnBehindThem) {
  const std::vector<std::unique_ptr<Tokenizer>> tokenizers = Tokenizers();
  std::mt19937 random(10);
  for (const auto& tokenizer : tokenizers) {
    const std::vector<int32_t> good = *tokenizer->Encode("the end.", false);
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<int32_t> ids(random() % 60);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % tokenizer->vocab_size());
      ids.insert(ids.end(), good.begin(), good.end());
      const std::string text = TextOf(TextReader(*tokenizer), ids);
      EXPECT_TRUE(IsValidUtf8(text));
      const std::string end = tokenizer->Decode(good, true);
      EXPECT_TRUE(text.ends_with(end)) << text;
    }
  }
}

// Of a folder that has transformers clean them up.
TEST(TextReader, CleansUpNoSpaces) {
  const auto tokenizer = Tokenizer::Load("core/tokenizer/testdata/cleaned");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<int32_t> ids = *(*tokenizer)->Encode("t , se n't . ' ve 's !", false);
  ASSERT_EQ((*tokenizer)->Decode(ids, /*skip_special_tokens=*/true), "t, sen't.'ve's!");
  EXPECT_EQ(TextOf(TextReader(**tokenizer), ids), "t , se n't . ' ve 's !");
}

}  // namespace
}  // namespace quartet
