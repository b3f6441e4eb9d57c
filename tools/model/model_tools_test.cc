// The small tools as people and scripts use them, against what transformers says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/model/testing/edited_folder.h"
#include "core/safetensors/reader.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

// Runs "tools/model/<command>" in a shell with `input` on standard input, one value a line.
Outcome RunTool(const std::string& command, const std::vector<json>& input) {
  const std::string folder = testing::TempDir();
  const std::string in = folder + "/in.jsonl", out = folder + "/out.jsonl", errors = folder + "/errors.txt";
  std::ofstream lines(in);
  for (const json& value : input) lines << value.dump() << '\n';
  lines.close();
  const int status = std::system(("tools/model/" + command + " < " + in + " > " + out + " 2> " + errors).c_str());
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

// Tensor `name` of what was computed with `model` elsewhere.
template <typename Element>
std::vector<Element> ModelGolden(const std::string& model, const std::string& name) {
  const auto reader = CheckpointReader::Open(model + "/golden");
  EXPECT_TRUE(reader.ok()) << reader.status();
  int64_t numel = 1;
  for (int64_t size : (*reader)->tensors().at(name).shape) numel *= size;
  std::vector<Element> values(numel);
  EXPECT_TRUE((*reader)->ReadRange(name, 0, numel, reinterpret_cast<char*>(values.data())).ok());
  return values;
}

void ExpectLogProbsOfGoldenLogits(const std::string& model) {
  constexpr int kSequences = 2, kLength = 13;
  const auto ids = ModelGolden<int64_t>(model, "ids");
  const auto logits = ModelGolden<float>(model, "logits");
  ASSERT_EQ(ids.size(), kSequences * kLength);
  const size_t vocabulary = logits.size() / ids.size();

  std::vector<json> input;
  for (int s = 0; s < kSequences; ++s) {
    input.push_back({{"ids", std::vector<int64_t>(ids.begin() + s * kLength, ids.begin() + (s + 1) * kLength)}});
  }
  const Outcome outcome = RunTool("log_probs --dtype=fp32 --model=" + model, input);
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

TEST(LogProbsTest, AreThoseOfTransformersLogits) { ExpectLogProbsOfGoldenLogits(kModel); }

TEST(LogProbsTest, OfAFolderOfAdaptersAreThoseOfPeftsLogits) {
  ExpectLogProbsOfGoldenLogits("core/model/testdata/granite_lora");
}

TEST(LogProbsTest, AreRefusedBeyondASlidingWindow) {
  const std::string model = EditedFolder("core/model/testdata/mistral", {{"sliding_window", 3}});
  const Outcome outcome = RunTool("log_probs --dtype=fp32 --model=" + model,
                                  {json{{"ids", json::array({1, 2, 3})}}, json{{"ids", json::array({1, 2, 3, 4})}}});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("standard input, line 2: the number of ids is 4; at most 3 is allowed"));
}

TEST(LogProbsTest, AreAnErrorWhereTheyAreNoNumbers) {
  const std::string model = EditedFolder(kModel, json::object());
  {
    const std::string path = model + "/model.safetensors";
    std::filesystem::permissions(path, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    std::fstream weights(path, std::ios::in | std::ios::out | std::ios::binary);
    weights.seekp(-4, std::ios::end);
    weights.write("\xff\xff\xff\xff", 4);  // of the last tensor
    ASSERT_TRUE(weights.good());
  }
  const Outcome outcome = RunTool("log_probs --dtype=fp32 --model=" + model, {json{{"ids", json::array({1, 2, 3})}}});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("the log-probability of the id 2 at index 1 of 1, 2, 3 is "));
}

TEST(LogProbsTest, NameTheLineAndTheIdThatIsNotInTheVocabulary) {
  const Outcome outcome =
      RunTool(std::string("log_probs --dtype=fp32 --model=") + kModel, {json{{"ids", json::array({1, -5})}}});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("standard input, line 1: id -5 at index 1 is not an integer in [0, "));
}

// Of tools/golden/make_gguf.py: a GGUF file, and what transformers makes of it.
const std::string kGguf = "tools/model/testdata/gguf/";

// A path at which nothing is.
std::string Target() {
  const std::string folder = testing::TempDir() + "/imported";
  std::filesystem::remove_all(folder);
  return folder;
}

// Runs tools/import_gguf on a file of `bytes`.
Outcome ImportBytes(const std::string& bytes, const std::string& target) {
  const std::string path = testing::TempDir() + "/changed.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return RunTool("import_gguf " + path + " " + target, {});
}

// `bytes` with `from` replaced by `to`, of the same length.
std::string With(std::string bytes, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return bytes.replace(at, to.size(), to);
}

TEST(ImportGgufTest, MakesTheWeightsThatTransformersMakes) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const std::string target = Target();
    const Outcome outcome = RunTool("import_gguf --dtype=" + dtype + " " + kGguf + "tiny.gguf " + target, {});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
    const auto expected = CheckpointReader::Open(kGguf + dtype), found = CheckpointReader::Open(target);
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    ASSERT_EQ((*found)->tensors().size(), 20);
    EXPECT_EQ((*found)->tensors().size(), (*expected)->tensors().size());
    for (const auto& [tensor, info] : (*expected)->tensors()) {
      const auto other = (*found)->tensors().find(tensor);
      ASSERT_NE(other, (*found)->tensors().end()) << tensor;
      EXPECT_EQ(other->second.shape, info.shape) << tensor;
      ASSERT_EQ(other->second.dtype, info.dtype) << tensor;
      std::vector<char> a(info.bytes), b(info.bytes);
      ASSERT_TRUE((*expected)->ReadRange(tensor, 0, info.numel(), a.data()).ok());
      ASSERT_TRUE((*found)->ReadRange(tensor, 0, info.numel(), b.data()).ok());
      EXPECT_EQ(a, b) << tensor;
    }
  }
}

TEST(ImportGgufTest, MakesTheTokenizerAndConfigurationThatTransformersMakes) {
  const std::string target = Target();
  const Outcome outcome = RunTool("import_gguf " + kGguf + "tiny.gguf " + target, {});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_EQ(json::parse(ReadAll(target + "/tokenizer.json")), json::parse(ReadAll(kGguf + "fp32/tokenizer.json")));
  EXPECT_EQ(ReadAll(target + "/chat_template.jinja"), ReadAll(kGguf + "fp32/chat_template.jinja"));
  const json ours = json::parse(ReadAll(target + "/config.json"));
  const json theirs = json::parse(ReadAll(kGguf + "fp32/config.json"));
  for (const char* field : {"architectures",
                            "model_type",
                            "vocab_size",
                            "hidden_size",
                            "intermediate_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "hidden_act",
                            "max_position_embeddings",
                            "rms_norm_eps",
                            "rope_theta",
                            "rope_scaling",
                            "tie_word_embeddings",
                            "attention_bias",
                            "mlp_bias",
                            "bos_token_id",
                            "eos_token_id",
                            "pad_token_id"}) {
    EXPECT_EQ(ours.at(field), theirs.at(field)) << field;
  }
  EXPECT_EQ(ours.at("torch_dtype"), "bfloat16");
}

TEST(ImportGgufTest, MakesAModelThatOtherToolsRead) {
  const std::string target = Target();
  ASSERT_EQ(RunTool("import_gguf " + kGguf + "tiny.gguf " + target, {}).exit_code, 0);
  const std::string text = "hello the world 12 \xC3\xA9\n";
  const Outcome ids = RunTool("tokenize --no_special_tokens --model=" + target, {text});
  ASSERT_EQ(ids.lines.size(), 1) << ids.errors;
  EXPECT_LT(ids.lines[0].size(), text.size());
  EXPECT_EQ(RunTool("tokenize --decode --model=" + target, ids.lines).lines, std::vector<json>{text});
  const Outcome prompt = RunTool("tokenize --chat --model=" + target, {"hello"});
  ASSERT_EQ(prompt.exit_code, 0) << prompt.errors;
  EXPECT_EQ(RunTool("tokenize --decode --model=" + target, prompt.lines).lines,
            std::vector<json>{"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"});
  const Outcome log_probs = RunTool("log_probs --model=" + target, {{{"ids", ids.lines[0]}}});
  EXPECT_EQ(log_probs.exit_code, 0) << log_probs.errors;
}

TEST(ImportGgufTest, NamesTheFileAndWhatIsWrongAndLeavesNothingBehind) {
  const std::string bytes = ReadAll(kGguf + "tiny.gguf"), target = Target();
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"GGUF", "cannot be read as GGUF: has 4 bytes"},
      {"GGML" + bytes.substr(4), "cannot be read as GGUF: GGUF magic invalid"},
      {bytes.substr(0, bytes.size() / 2), "cannot be read as GGUF: has 16160 bytes, and would need "},
      {With(bytes, "gpt2", "bert"), "tokenizer.ggml.model is \"bert\"; \"gpt2\" can be imported"},
      {With(bytes, "llama.block_count", "llama.block_cound"), "has no metadata llama.block_count"},
      {With(bytes, "blk.1.ffn_up.weight", "blk.1.ffn_uq.weight"), "has no tensor blk.1.ffn_up.weight"},
      {With(bytes, "output_norm.weight", "output_morm.weight"), "has no tensor output_norm.weight"},
  };
  for (const auto& [changed, message] : wrong) {
    const Outcome outcome = ImportBytes(changed, target);
    EXPECT_EQ(outcome.exit_code, 1) << message;
    EXPECT_THAT(outcome.errors, HasSubstr("/changed.gguf: " + message));
    for (const auto& entry : std::filesystem::directory_iterator(testing::TempDir())) {
      EXPECT_THAT(entry.path().filename().string(), Not(StartsWith("imported"))) << message;
    }
  }
  EXPECT_THAT(RunTool("import_gguf /nowhere.gguf " + target, {}).errors, HasSubstr("/nowhere.gguf"));
  EXPECT_THAT(RunTool("import_gguf " + kGguf + "tiny.gguf " + testing::TempDir(), {}).errors,
              HasSubstr("exists already"));
}

}  // namespace
}  // namespace quartet
