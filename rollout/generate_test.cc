#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int code;
  std::string said;  // on both of its outputs
};

Ended Generate(const std::string& prompts, const std::string& flags = "") {
  FILE* program = popen(
      absl::StrCat("printf '%s' '", prompts, "' | rollout/generate --model=core/model/testdata/llama --dtype=fp32 ",
                   flags, " --max_new_tokens=2 2>&1")
          .c_str(),
      "r");
  std::string said;
  for (int c = 0; (c = std::fgetc(program)) != EOF;) said += static_cast<char>(c);
  return {WEXITSTATUS(pclose(program)), said};
}

TEST(GenerateProgram, AnswersEachLine) {
  const Ended ended = Generate("{\"ids\": [1, 2]}\n{\"ids\": [3]}\n");
  EXPECT_EQ(ended.code, 0) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("\"prompt\":1,"));
}

TEST(GenerateProgram, NamesWhatIsWrongWithALine) {
  const auto error = [](const std::string& line) {
    const Ended ended = Generate("{\"ids\": [1]}\n" + line + "\n");
    EXPECT_EQ(ended.code, 2) << ended.said;
    return ended.said;
  };
  EXPECT_EQ(error(R"({"ids": [1], "ids": [2]})"),
            "generate: the prompts: not well-formed JSON at line 2, column 18: the key \"ids\" stands twice in one "
            "object\n");
  EXPECT_EQ(error(R"({"ids": [1], "id": 2})"),
            "generate: the prompts: line 2 has the key \"id\", which is not known; allowed: \"ids\"\n");
  EXPECT_EQ(error("[1]"), "generate: the prompts: line 2 is not {\"ids\": [...]}\n");
  EXPECT_EQ(error(R"({"ids": [-1]})"),
            "generate: the prompts: line 2 holds the id -1, which is no integer of 0 to 2147483647\n");
}

TEST(GenerateProgram, TellsOfAFlagByItsName) {
  const Ended ended = Generate("{\"ids\": [1]}\n", "--kv_cache_bytes=1");
  EXPECT_EQ(ended.code, 2) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("generate: --kv_cache_bytes is 1; one block of 16 tokens takes"));
}

}  // namespace
}  // namespace quartet
