// The small tools as people and scripts use them, against what transformers says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/model/testing/edited_folder.h"
#include "core/safetensors/reader.h"
#include "core/safetensors/writer.h"

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
  EXPECT_EQ(outcome.exit_code, 2);
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

// `of` is where what was computed elsewhere stands, if not beside the model.
void ExpectLogProbsOfGoldenLogits(const std::string& model, const std::string& of = "") {
  constexpr int kSequences = 2, kLength = 13;
  const auto ids = ModelGolden<int64_t>(of.empty() ? model : of, "ids");
  const auto logits = ModelGolden<float>(of.empty() ? model : of, "logits");
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
  EXPECT_EQ(outcome.exit_code, 2);
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
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("has numbers that are not finite"));
}

TEST(LogProbsTest, NameTheLineAndTheIdThatIsNotInTheVocabulary) {
  const Outcome outcome =
      RunTool(std::string("log_probs --dtype=fp32 --model=") + kModel, {json{{"ids", json::array({1, -5})}}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("standard input, line 1: id -5 at index 1 is not an integer in [0, "));
}

// Of tools/golden/make_merged_lora.py: what peft makes of the adapters of core/model/testdata.
const std::string kMerged = "tools/model/testdata/merged_lora/";
constexpr const char* kAdapters[] = {"llama_lora",   "llama_biases_lora", "qwen3_lora",
                                     "granite_lora", "olmo2_lora",        "llama_critic_lora"};

// A path at which nothing is.
std::string NewPath(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

std::string AdaptersOf(const std::string& name) { return "core/model/testdata/" + name; }

// A copy of the adapters with `fields` in their adapter_config.json.
std::string EditedAdapters(const std::string& name, const json& fields) {
  const std::string copy = NewPath("edited_adapters"), config = copy + "/adapter_config.json";
  std::filesystem::create_directories(copy);
  std::filesystem::copy_file(AdaptersOf(name) + "/adapter_model.safetensors", copy + "/adapter_model.safetensors");
  json object = json::parse(ReadAll(AdaptersOf(name) + "/adapter_config.json"));
  object.update(fields);
  std::ofstream(config) << object;
  return copy;
}

// The elements of a tensor of fp32 or bf16.
std::vector<float> ElementsOf(const CheckpointReader& reader, const std::string& tensor) {
  const TensorInfo& info = reader.tensors().at(tensor);
  std::vector<char> bytes(info.bytes);
  EXPECT_TRUE(reader.ReadRange(tensor, 0, info.numel(), bytes.data()).ok());
  std::vector<float> values(info.numel());
  for (int64_t i = 0; i < info.numel(); ++i) {
    uint32_t bits = 0;
    if (info.dtype == Dtype::kF32) {
      std::memcpy(&bits, bytes.data() + 4 * i, 4);
    } else {
      EXPECT_EQ(info.dtype, Dtype::kBF16) << tensor;
      std::memcpy(reinterpret_cast<char*>(&bits) + 2, bytes.data() + 2 * i, 2);
    }
    std::memcpy(&values[i], &bits, 4);
  }
  return values;
}

TEST(MergeLoraTest, MakesTheWeightsThatPeftMakesInTheTypeOfTheModelOrInAnother) {
  for (const std::string name : kAdapters) {
    for (const std::string flag : {"", "--dtype=bf16 "}) {
      if (!flag.empty() && name != "qwen3_lora") continue;  // one is enough of a type
      SCOPED_TRACE(name + flag);
      const std::string target = NewPath("merged");
      const Outcome outcome = RunTool("merge_lora " + flag + "--model=" + AdaptersOf(name) + " --to=" + target, {});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
      const auto expected = CheckpointReader::OpenFile(kMerged + name + ".safetensors");
      const auto found = CheckpointReader::Open(target);
      ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
      EXPECT_EQ((*found)->tensors().size(), (*expected)->tensors().size());
      const float tolerance = flag.empty() ? 1e-6F : 0x1.01p-8F;  // half of a last bit
      for (const auto& [tensor, info] : (*expected)->tensors()) {
        ASSERT_TRUE((*found)->tensors().contains(tensor)) << tensor;
        EXPECT_EQ((*found)->tensors().at(tensor).shape, info.shape) << tensor;
        const std::vector<float> theirs = ElementsOf(**expected, tensor), ours = ElementsOf(**found, tensor);
        for (size_t i = 0; i < theirs.size(); ++i) {
          ASSERT_NEAR(ours[i], theirs[i], tolerance * std::abs(theirs[i]) + 1e-6F) << tensor << " at " << i;
        }
      }
      const json config = json::parse(ReadAll(target + "/config.json"));
      EXPECT_EQ(config.at("torch_dtype"), flag.empty() ? "float32" : "bfloat16");
      EXPECT_FALSE(std::filesystem::exists(target + "/adapter_config.json"));
    }
  }
}

TEST(MergeLoraTest, MakesAModelWhoseLogitsAreThoseOfPeft) {
  for (const std::string name : {"llama_lora", "granite_lora"}) {
    const std::string target = NewPath("merged");
    const Outcome outcome = RunTool("merge_lora --model=" + AdaptersOf(name) + " --to=" + target, {});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
    EXPECT_TRUE(std::filesystem::exists(target + "/generation_config.json"));
    ExpectLogProbsOfGoldenLogits(target, AdaptersOf(name));
  }
}

TEST(MergeLoraTest, TellsWhatPartOfTheUpdateRoundingHasLost) {
  const json expected = json::parse(ReadAll(kMerged + "lost.json"));
  for (const std::string name : {"granite_lora", "llama_biases_lora", "llama_critic_lora"}) {
    for (const std::string dtype : {"bf16", "fp16"}) {
      SCOPED_TRACE(name + " " + dtype);
      const Outcome outcome =
          RunTool("merge_lora --dtype=" + dtype + " --model=" + AdaptersOf(name) + " --to=" + NewPath("merged"), {});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
      EXPECT_EQ(outcome.errors, "");
      const json& lost = expected.at(name).at(dtype);
      double sum = 0, most = 0;
      std::string in;
      for (const auto& [product, part] : lost.items()) {
        sum += part.get<double>();
        if (part > most) in = product;
        most = std::max(most, part.get<double>());
      }
      const json told = outcome.lines.at(0);
      EXPECT_EQ(told.at("dtype"), dtype);
      EXPECT_EQ(told.at("products"), lost.size());
      EXPECT_NEAR(told.at("lost").at("mean").get<double>(), sum / lost.size(), 1e-3 * sum / lost.size());
      EXPECT_NEAR(told.at("lost").at("most").get<double>(), most, 1e-3 * most);
      EXPECT_EQ(told.at("lost").at("in"), in);
    }
  }
}

TEST(MergeLoraTest, WarnsWhereRoundingLosesTheUpdate) {
  const std::string adapters = EditedAdapters("llama_lora", {{"lora_alpha", 0.01}});
  const auto merge = [&](const std::string& dtype) {
    return RunTool("merge_lora --dtype=" + dtype + " --model=" + adapters + " --to=" + NewPath("merged"), {});
  };
  const Outcome bf16 = merge("bf16");
  EXPECT_EQ(bf16.exit_code, 0) << bf16.errors;
  EXPECT_GT(bf16.lines.at(0).at("lost").at("mean"), 0.5);
  EXPECT_THAT(bf16.errors, HasSubstr("warning: rounding to bf16 has lost "));
  EXPECT_THAT(bf16.errors, HasSubstr(bf16.lines.at(0).at("lost").at("in").get<std::string>()));
  const Outcome fp32 = merge("fp32");
  EXPECT_LT(fp32.lines.at(0).at("lost").at("most"), 0.001);
  EXPECT_EQ(fp32.errors, "");
}

TEST(MergeLoraTest, SaysThatAdaptersAddNothing) {
  const std::string adapters = EditedAdapters("llama_lora", {{"lora_alpha", 0}});
  const Outcome outcome = RunTool("merge_lora --model=" + adapters + " --to=" + NewPath("merged"), {});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_EQ(outcome.lines.at(0).at("changed"), 0);
  EXPECT_THAT(outcome.errors, HasSubstr("the adapters add nothing"));
}

TEST(MergeLoraTest, TakesTheTokenizerOfTheAdaptersOrElseThatOfTheModel) {
  const std::string base = EditedFolder(kModel, json::object());
  const std::string adapters = EditedAdapters("llama_lora", {{"base_model_name_or_path", base}});
  const auto tokenizer = [&] {
    const std::string target = NewPath("merged");
    const Outcome outcome = RunTool("merge_lora --model=" + adapters + " --to=" + target, {});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
    EXPECT_TRUE(std::filesystem::exists(target + "/generation_config.json"));
    return ReadAll(target + "/tokenizer.json");
  };
  std::ofstream(base + "/tokenizer.json") << "of the model";
  EXPECT_EQ(tokenizer(), "of the model");
  std::ofstream(adapters + "/tokenizer.json") << "of the adapters";
  EXPECT_EQ(tokenizer(), "of the adapters");
}

// A copy of the folder in which one tensor is bf16.
std::string OfTwoTypes(const std::string& model, const std::string& tensor) {
  const std::string copy = EditedFolder(model, json::object()), path = copy + "/model.safetensors";
  const auto reader = *CheckpointReader::Open(model);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, info] : reader->tensors()) {
    entries.push_back({name, name == tensor ? Dtype::kBF16 : info.dtype, info.shape});
  }
  std::filesystem::remove(path);
  const auto writer = *SafetensorsWriter::Create(path, entries);
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorInfo& info = reader->tensors().at(entries[i].name);
    const std::vector<char> zeros(info.numel() * DtypeSize(entries[i].dtype));
    EXPECT_TRUE(writer->Write(static_cast<int>(i), 0, zeros.data(), zeros.size()).ok());
  }
  EXPECT_TRUE(writer->Close().ok());
  return copy;
}

TEST(MergeLoraTest, NamesWhatIsWrongAndLeavesNothingBehind) {
  const std::string mixed = OfTwoTypes(kModel, "model.norm.weight");
  const std::string target = NewPath("merged");
  const auto errors = [&](const std::string& adapters, const std::string& flags = "") {
    const Outcome outcome = RunTool("merge_lora --model=" + adapters + " --to=" + target + flags, {});
    EXPECT_EQ(outcome.exit_code, 2) << adapters;
    EXPECT_FALSE(std::filesystem::exists(target)) << adapters;
    for (const auto& entry : std::filesystem::directory_iterator(testing::TempDir())) {
      EXPECT_THAT(entry.path().filename().string(), Not(StartsWith("merged"))) << adapters;
    }
    return outcome.errors;
  };
  EXPECT_THAT(errors(kModel), HasSubstr("it must be a folder of adapters as PEFT writes it"));
  EXPECT_THAT(errors(EditedAdapters("llama_lora", {{"base_model_name_or_path", "nowhere"}})),
              HasSubstr("adapter_config.json: base_model_name_or_path is \"nowhere\""));
  EXPECT_THAT(errors(EditedAdapters("llama_lora", {{"r", 4}})),
              HasSubstr("has shape [8, 32], the model needs [4, 32]"));
  EXPECT_THAT(errors(EditedAdapters("llama_lora", {{"target_modules", {"q_proj"}}})),
              HasSubstr("adapter_model.safetensors: there is no place for the tensor "));
  EXPECT_THAT(errors(EditedAdapters("llama_lora", {{"lora_alpha", 1e6}, {"use_rslora", true}}), " --dtype=fp16"),
              HasSubstr(" has elements that are no finite numbers in fp16"));
  EXPECT_THAT(errors(EditedAdapters("llama_lora", {{"base_model_name_or_path", mixed}})),
              HasSubstr("model.norm.weight is BF16; say with --dtype which type is to be written"));
  EXPECT_THAT(RunTool("merge_lora --model=x", {}).errors, HasSubstr("--to=DIR is missing"));
  std::filesystem::create_directories(target);
  EXPECT_THAT(RunTool("merge_lora --model=" + AdaptersOf("llama_lora") + " --to=" + target, {}).errors,
              HasSubstr("exists already"));
}

// Of tools/golden/make_gguf.py: a GGUF file, and what transformers makes of it.
const std::string kGguf = "tools/model/testdata/gguf/";

std::string Target() { return NewPath("imported"); }

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
