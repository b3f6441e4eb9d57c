// The small tools as people and scripts use them: JSONL in, JSONL out, against what transformers says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/model/testing/edited_folder.h"
#include "core/safetensors/reader.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::vector<json> lines;  // of standard output
  std::string errors;       // standard error
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs "tools/<command>" in a shell with `input` on standard input, one value a line.
Outcome RunTool(const std::string& command, const std::vector<json>& input) {
  const std::string folder = testing::TempDir();
  const std::string in = folder + "/in.jsonl", out = folder + "/out.jsonl", errors = folder + "/errors.txt";
  std::ofstream lines(in);
  for (const json& value : input) lines << value.dump() << '\n';
  lines.close();
  const int status = std::system(("tools/" + command + " < " + in + " > " + out + " 2> " + errors).c_str());
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  std::ifstream written(out);
  for (std::string line; std::getline(written, line);) outcome.lines.push_back(json::parse(line));
  outcome.errors = ReadAll(errors);
  return outcome;
}

constexpr char kTokenizer[] = "core/tokenizer/testdata/byte_level";
constexpr char kModel[] = "core/model/testdata/llama";

json TokenizerGolden() { return json::parse(ReadAll(std::string(kTokenizer) + "/golden.json")); }

TEST(TokenizeTest, GivesTheIdsOfTransformersLineByLine) {
  const json golden = TokenizerGolden();
  std::vector<json> texts, plain, with_special;
  for (const json& row : golden["encode"]) {
    texts.push_back(row[0]);
    plain.push_back(row[1]);
    with_special.push_back(row[2]);
  }
  const Outcome outcome = RunTool(std::string("tokenize --model=") + kTokenizer, texts);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_EQ(outcome.lines, with_special);
  EXPECT_EQ(RunTool(std::string("tokenize --no_special_tokens --model=") + kTokenizer, texts).lines, plain);
}

TEST(TokenizeTest, DecodesAsTransformersDoes) {
  const json golden = TokenizerGolden();
  std::vector<json> ids, texts, without_special;
  for (const json& row : golden["decode"]) {
    ids.push_back(row[0]);
    texts.push_back(row[1]);
    without_special.push_back(row[2]);
  }
  const Outcome outcome = RunTool(std::string("tokenize --decode --model=") + kTokenizer, ids);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_EQ(outcome.lines, texts);
  EXPECT_EQ(RunTool(std::string("tokenize --decode --skip_special_tokens --model=") + kTokenizer, ids).lines,
            without_special);
}

TEST(TokenizeTest, NamesTheLineThatIsWrongAndKeepsTheLinesBefore) {
  const Outcome outcome = RunTool(std::string("tokenize --decode --model=") + kTokenizer,
                                  {json::array({1, 2}), json::array({1, 2000000000})});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.lines.size(), 1);
  EXPECT_THAT(outcome.errors, HasSubstr("standard input, line 2: 2000000000 is not a token id"));
}

TEST(TokenizeTest, RefusesFlagsThatContradictEachOther) {
  const Outcome outcome = RunTool(std::string("tokenize --decode --chat --model=") + kTokenizer, {});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("--decode goes with neither --chat nor --no_special_tokens"));
}

// Tensor `name` of what transformers computed with kModel.
template <typename Element>
std::vector<Element> ModelGolden(const std::string& name) {
  const auto reader = CheckpointReader::Open(std::string(kModel) + "/golden");
  EXPECT_TRUE(reader.ok()) << reader.status();
  int64_t numel = 1;
  for (int64_t size : (*reader)->tensors().at(name).shape) numel *= size;
  std::vector<Element> values(numel);
  EXPECT_TRUE((*reader)->ReadRange(name, 0, numel, reinterpret_cast<char*>(values.data())).ok());
  return values;
}

TEST(LogProbsTest, AreThoseOfTransformersLogits) {
  constexpr int kSequences = 2, kLength = 13;
  const auto ids = ModelGolden<int64_t>("ids");
  const auto logits = ModelGolden<float>("logits");
  ASSERT_EQ(ids.size(), kSequences * kLength);
  const size_t vocabulary = logits.size() / ids.size();

  std::vector<json> input;
  for (int s = 0; s < kSequences; ++s) {
    input.push_back({{"ids", std::vector<int64_t>(ids.begin() + s * kLength, ids.begin() + (s + 1) * kLength)}});
  }
  const Outcome outcome = RunTool(std::string("log_probs --dtype=fp32 --model=") + kModel, input);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  ASSERT_EQ(outcome.lines.size(), kSequences);
  for (int s = 0; s < kSequences; ++s) {
    const json& log_probs = outcome.lines[s]["log_probs"];
    ASSERT_EQ(log_probs.size(), kLength - 1);
    for (int t = 0; t + 1 < kLength; ++t) {
      const float* row = logits.data() + (s * kLength + t) * vocabulary;
      double sum = 0;
      for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(row[v]));
      EXPECT_NEAR(log_probs[t].get<double>(), row[ids[s * kLength + t + 1]] - std::log(sum), 1e-4);
    }
  }
}

TEST(LogProbsTest, AreRefusedBeyondASlidingWindow) {
  const std::string model = EditedFolder("core/model/testdata/mistral", {{"sliding_window", 3}});
  const Outcome outcome = RunTool("log_probs --dtype=fp32 --model=" + model,
                                  {json{{"ids", json::array({1, 2, 3})}}, json{{"ids", json::array({1, 2, 3, 4})}}});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("standard input, line 2: the number of ids is 4; at most 3 is allowed"));
}

TEST(LogProbsTest, NameTheLineAndTheIdThatIsNotInTheVocabulary) {
  const Outcome outcome =
      RunTool(std::string("log_probs --dtype=fp32 --model=") + kModel, {json{{"ids", json::array({1, -5})}}});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("standard input, line 1: id -5 at index 1 is not an integer in [0, "));
}

}  // namespace
}  // namespace quartet
