#include "core/training/engine/model_folder_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/model/initialize.h"
#include "core/model/testing/letters_tokenizer.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReadVocabularyTest : public ::testing::Test {
 protected:
  // A model of so many rows, with a tokenizer of so many ids; 0: without one.
  std::string Model(const std::string& name, int rows, int tokens) {
    ModelConfig config;
    config.model_type = "llama";
    config.vocab_size = rows;
    config.hidden_size = 8;
    config.intermediate_size = 16;
    config.num_hidden_layers = 1;
    config.num_attention_heads = config.num_key_value_heads = 2;
    config.head_dim = 4;
    config.max_position_embeddings = 64;
    const std::string folder =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() + "/" + name;
    std::filesystem::remove_all(folder);
    EXPECT_TRUE(WriteRandomModel(config, HeadKind::kVocabulary, 7, Dtype::kF32, folder).ok());
    if (tokens > 0) WriteLettersTokenizer(folder, tokens);
    return folder;
  }
  static absl::StatusOr<int64_t> Of(const std::string& folder) {
    return ReadVocabulary(folder, *ReadModelConfig(folder));
  }
  static absl::StatusOr<int64_t> Of(const std::string& folder, const std::string& actor) {
    return ReadVocabulary("critic", folder, *ReadModelConfig(folder), actor);
  }
};

TEST_F(ReadVocabularyTest, IsThatOfTheTokenizerWhereTheEmbeddingIsPadded) {
  EXPECT_EQ(*Of(Model("padded", 32, 21)), 21);
  EXPECT_EQ(*Of(Model("without", 32, 0)), 32);
  EXPECT_THAT(std::string(Of(Model("small", 32, 33)).status().message()),
              AllOf(HasSubstr("small/tokenizer.json has 33"), HasSubstr("small/config.json is 32")));
}

TEST_F(ReadVocabularyTest, OfAModelWithoutATokenizerIsTheActors) {
  const std::string actor = Model("actor", 32, 21);
  EXPECT_EQ(*Of(Model("same", 32, 21), actor), 21);
  EXPECT_EQ(*Of(Model("without", 32, 0), actor), 21);
  EXPECT_EQ(*Of(actor, actor), 21);
  EXPECT_EQ(*Of(actor, ""), 21);
  EXPECT_EQ(*Of(Model("wider", 48, 21), actor), 21);
  EXPECT_EQ(*Of(Model("wider_without", 48, 0), actor), 21);
  EXPECT_EQ(*Of(Model("narrower", 21, 21), actor), 21);
  EXPECT_THAT(std::string(Of(Model("too_narrow", 20, 0), actor).status().message()),
              AllOf(HasSubstr("too_narrow has a vocabulary of 20"), HasSubstr("actor one of 21")));
  EXPECT_THAT(
      std::string(Of(Model("other", 32, 22), actor).status().message()),
      AllOf(HasSubstr("critic"), HasSubstr("another tokenizer"), HasSubstr("token 21 is \"a21\", not nothing")));
}

}  // namespace
}  // namespace quartet
