#include "core/tokenizer/unicode/unicode.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace quartet {
namespace {

TEST(Normalize, ComposesAndDecomposes) {
  EXPECT_EQ(Normalize("e\u0301", NormalForm::kNfc), "\u00e9");
  EXPECT_EQ(Normalize("\u00e9", NormalForm::kNfd), "e\u0301");
  EXPECT_EQ(Normalize("\ufb01", NormalForm::kNfkc), "fi");
  EXPECT_EQ(Normalize("\ufb01", NormalForm::kNfc), "\ufb01");
  EXPECT_EQ(Normalize(std::string("a\0b", 3), NormalForm::kNfc), std::string("a\0b", 3));
}

// What tokenizers of Hugging Face makes of characters that utf8proc knows otherwise;
// tools/golden/make_unicode_tables.py.
nlohmann::json Golden(const char* name) {
  std::ifstream file("core/tokenizer/unicode/testdata/unicode.json");
  return nlohmann::json::parse(file)[name];
}

TEST(Normalize, KnowsTheCharactersThatTheReferenceKnows) {
  constexpr NormalForm kForms[] = {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd};
  const auto golden = Golden("normalize");
  ASSERT_GE(golden.size(), 200);
  for (const auto& row : golden) {
    for (int form = 0; form < 4; ++form) {
      EXPECT_EQ(Normalize(row[0].get<std::string>(), kForms[form]), row[1 + form]) << row[0].dump(-1, ' ', true);
    }
  }
}

TEST(Characters, HaveThePropertiesThatTheReferenceGivesThem) {
  for (const auto& row : Golden("numeric_punctuation_word")) {
    const auto c = row[0].get<uint32_t>();
    EXPECT_EQ(IsNumeric(c), row[1]) << c;
    EXPECT_EQ(IsPunctuation(c), row[2]) << c;
    EXPECT_EQ(IsWordChar(c), row[3]) << c;
  }
  for (const auto& row : Golden("lowercase")) {
    std::string upper, lower;
    AppendUtf8(row[0].get<uint32_t>(), &upper);
    AppendUtf8(row[1].get<uint32_t>(), &lower);
    EXPECT_EQ(Lowercase(upper), lower);
  }
}

TEST(Characters, HaveTheirProperties) {
  EXPECT_TRUE(IsWhiteSpace(0x3000));
  EXPECT_FALSE(IsWhiteSpace(0x180e));
  EXPECT_FALSE(IsWhiteSpace(0x200b));
  EXPECT_TRUE(IsNumeric(0xbd));
  EXPECT_TRUE(IsNumeric(0x2167));
  EXPECT_FALSE(IsNumeric('a'));
  EXPECT_TRUE(IsPunctuation('$'));
  EXPECT_TRUE(IsPunctuation(0x3002));
  EXPECT_FALSE(IsPunctuation(0x20ac));
  EXPECT_TRUE(IsWordChar('_'));
  EXPECT_TRUE(IsWordChar(0x301));
  EXPECT_FALSE(IsWordChar('-'));
  EXPECT_EQ(Lowercase("ÀİSS"), "ài\u0307ss");
}

}  // namespace
}  // namespace quartet
