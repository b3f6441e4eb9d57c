#include "core/tokenizer/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kFolder[] = "core/tokenizer/testdata/byte_level";

// What is said of the test's tokenizer and a copy of it with a change.
std::string Difference(const std::function<void(json&)>& change) {
  json tokenizer = json::parse(std::ifstream(std::string(kFolder) + "/tokenizer.json"));
  change(tokenizer);
  std::string folder = ::testing::TempDir() + "/tokenizer_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/tokenizer.json") << tokenizer.dump(2);
  const absl::StatusOr<std::string> difference = DescribeTokenizerDifference(kFolder, folder);
  std::filesystem::remove_all(folder);
  return difference.ok() ? *difference : std::string(difference.status().message());
}

TEST(TokenizerDifference, IsNoneWhereTheSameTextsBecomeTheSameIds) {
  EXPECT_EQ(DescribeTokenizerDifference(kFolder, kFolder).value(), "");
  EXPECT_EQ(DescribeTokenizerDifference(kFolder, "/nowhere").value(), "");
  EXPECT_EQ(Difference([](json&) {}), "");
  // As other versions of transformers and tokenizers write it.
  EXPECT_EQ(Difference([](json& tokenizer) {
              tokenizer["version"] = "2.0";
              tokenizer["truncation"] = {{"max_length", 7}};
              tokenizer["post_processor"] = {{"type", "ByteLevel"}};
              tokenizer["pre_tokenizer"].erase("use_regex");
              tokenizer["model"].erase("ignore_merges");
              tokenizer["model"]["continuing_subword_prefix"] = "";
              for (json& merge : tokenizer["model"]["merges"]) {
                if (!merge.is_string()) {
                  merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
                } else {
                  const std::string both = merge.get<std::string>();
                  const size_t space = both.find(' ');
                  merge = {both.substr(0, space), both.substr(space + 1)};
                }
              }
            }),
            "");
}

TEST(TokenizerDifference, IsSaidOfVocabulariesOfOneSize) {
  EXPECT_EQ(Difference(
                [](json& tokenizer) { std::swap(tokenizer["model"]["vocab"]["A"], tokenizer["model"]["vocab"]["B"]); }),
            "token 35 is \"A\", not \"B\"");
  EXPECT_EQ(Difference([](json& tokenizer) { tokenizer["added_tokens"][4]["content"] = "<other>"; }),
            "token 401 is \"<word>\", not \"<other>\"");
  EXPECT_EQ(Difference([](json& tokenizer) { tokenizer["added_tokens"].erase(4); }),
            "token 401 is \"<word>\", not nothing");
}

TEST(TokenizerDifference, IsSaidOfEveryPartThatCutsATextIntoIds) {
  EXPECT_EQ(Difference([](json& tokenizer) {
              json& merges = tokenizer["model"]["merges"];
              std::swap(merges[0], merges[1]);
            }),
            "model.merges are others");
  EXPECT_EQ(Difference([](json& tokenizer) { tokenizer["model"]["ignore_merges"] = true; }), "model is another");
  EXPECT_EQ(Difference([](json& tokenizer) { tokenizer["normalizer"] = {{"type", "NFC"}}; }), "normalizer is another");
  EXPECT_EQ(Difference([](json& tokenizer) { tokenizer["pre_tokenizer"]["add_prefix_space"] = true; }),
            "pre_tokenizer is another");
  EXPECT_EQ(Difference([](json& tokenizer) { tokenizer["added_tokens"][4]["lstrip"] = true; }),
            "added_tokens is another");
}

TEST(TokenizerDifference, IsNotSoughtInWhatIsNoTokenizer) {
  EXPECT_THAT(Difference([](json& tokenizer) { tokenizer = json::array(); }), HasSubstr("is not a tokenizer"));
  EXPECT_THAT(Difference([](json& tokenizer) { tokenizer["model"]["vocab"]["A"] = "x"; }),
              HasSubstr("is not a tokenizer"));
}

}  // namespace
}  // namespace quartet
