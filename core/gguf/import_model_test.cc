// Against what transformers makes of the same file (tools/golden/make_gguf.py).

#include "core/gguf/import_model.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files.h"
#include "core/gguf/reader.h"
#include "core/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

constexpr char kTestdata[] = "core/gguf/testdata/";
const std::string kFile = std::string(kTestdata) + "tiny.gguf";

std::string Target(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

std::string Read(const std::string& path) { return ReadFile(path).value(); }
nlohmann::json ReadJson(const std::string& path) { return nlohmann::json::parse(Read(path)); }

std::string Write(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// `bytes` with `from` replaced by `to`, of the same length.
std::string With(std::string bytes, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return bytes.replace(at, to.size(), to);
}

TEST(ImportGguf, MakesTheWeightsThatTransformersMakes) {
  for (const auto& [name, dtype] : {std::pair("fp32", Dtype::kF32), std::pair("bf16", Dtype::kBF16)}) {
    const std::string target = Target(name);
    const absl::Status status = ImportGguf(kFile, target, dtype);
    ASSERT_TRUE(status.ok()) << status;
    const auto expected = CheckpointReader::Open(std::string(kTestdata) + name);
    const auto found = CheckpointReader::Open(target);
    ASSERT_TRUE(expected.ok() && found.ok());
    ASSERT_EQ((*found)->tensors().size(), 20u);
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

TEST(ImportGguf, MakesTheTokenizerAndConfigurationThatTransformersMakes) {
  const std::string target = Target("companions"), expected = std::string(kTestdata) + "fp32";
  ASSERT_TRUE(ImportGguf(kFile, target, Dtype::kBF16).ok());
  EXPECT_EQ(ReadJson(target + "/tokenizer.json"), ReadJson(expected + "/tokenizer.json"));
  EXPECT_EQ(Read(target + "/chat_template.jinja"), Read(expected + "/chat_template.jinja"));
  const nlohmann::json ours = ReadJson(target + "/config.json"), theirs = ReadJson(expected + "/config.json");
  for (const char* field :
       {"architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
        "rope_theta", "rope_scaling", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"}) {
    EXPECT_EQ(ours.at(field), theirs.at(field)) << field;
  }
  EXPECT_EQ(ours.at("torch_dtype"), "bfloat16");
  const auto tokenizer = Tokenizer::Load(target);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "hello the world 12 \xC3\xA9\n";
  const auto ids = (*tokenizer)->Encode(text, /*add_special_tokens=*/false);
  ASSERT_TRUE(ids.ok());
  EXPECT_LT(ids->size(), text.size());
  EXPECT_EQ((*tokenizer)->Decode(*ids, false), text);
  EXPECT_EQ(*(*tokenizer)->ApplyChatTemplate({{"user", "hello"}}, true),
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ImportGguf, LeavesNothingBehindWhereItFails) {
  const std::string bytes = Read(kFile), target = Target("failed");
  const auto message = [&](const std::string& changed) {
    const absl::Status status = ImportGguf(Write("changed.gguf", changed), target, Dtype::kBF16);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_FALSE(std::filesystem::exists(target));
    return std::string(status.message());
  };
  EXPECT_THAT(message("GGUF"), HasSubstr("version 0"));
  EXPECT_THAT(message("GGML" + bytes.substr(4)), HasSubstr("is no GGUF file"));
  EXPECT_THAT(message(bytes.substr(0, bytes.size() / 2)), HasSubstr("ends before the last byte of tensor"));
  EXPECT_THAT(message(With(bytes, "blk.1.ffn_up.weight", "blk.1.ffn_uq.weight")),
              HasSubstr("has no tensor blk.1.ffn_up.weight, which model.layers.1.mlp.up_proj.weight would be made of"));
  EXPECT_THAT(message(With(bytes, "gpt2", "bert")), HasSubstr("tokenizer.ggml.model is \"bert\"; \"gpt2\""));
  EXPECT_THAT(message(With(bytes, "output_norm.weight", "output_morm.weight")), HasSubstr("has no tensor output_norm"));
  EXPECT_EQ(ImportGguf("/nowhere.gguf", target, Dtype::kBF16).code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directory(target);
  EXPECT_EQ(ImportGguf(kFile, target, Dtype::kBF16).code(), absl::StatusCode::kAlreadyExists);
}

// Whatever a file says: an error, or tensors that lie in it.
TEST(GgufFile, BelievesNothing) {
  const std::string bytes = Read(kFile);
  std::mt19937 random(1);
  int opened = 0;
  for (int i = 0; i < 500; ++i) {
    std::string changed = bytes.substr(0, i % 3 == 0 ? random() % bytes.size() : bytes.size());
    for (int change = 0; change < 1 + i % 4 && !changed.empty(); ++change) {
      changed[random() % std::min<size_t>(changed.size(), 8000)] = static_cast<char>(random());
    }
    const auto file = GgufFile::Open(Write("spoiled.gguf", changed + " "));
    if (!file.ok()) continue;
    ++opened;
    for (const auto& [name, tensor] : (*file)->tensors()) EXPECT_EQ(std::ssize(Dequantise(tensor)), tensor.numel());
  }
  EXPECT_GT(opened, 10);
}

}  // namespace
}  // namespace quartet
