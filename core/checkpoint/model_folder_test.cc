#include "core/checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace quartet {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ModelFolder : public testing::Test {
 protected:
  ModelFolder() {
    root_ = fs::path(testing::TempDir()) / "model_folder_test";
    fs::remove_all(root_);
    fs::create_directories(root_ / "source");
    options_.target = (root_ / "target").string();
    options_.dtype = Dtype::kF32;
    config_.model_type = "llama";
    config_.json = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "torch_dtype": "bfloat16"})";
    for (int g = 0; g < 3; ++g) {
      ParameterGroup group;
      group.parameters.push_back({"g" + std::to_string(g) + ".a", {4, 4}, true});
      group.parameters.push_back({"g" + std::to_string(g) + ".b", {2}, false});
      layout_.groups.push_back(group);
    }
  }

  absl::StatusOr<int64_t> WriteAll() {
    auto writer = ModelFolderWriter::Create(config_, layout_, options_);
    if (!writer.ok()) return writer.status();
    for (int g = 0; g < 3; ++g) {
      for (int p = 0; p < 2; ++p) {
        const std::vector<float> values(16, g * 10 + p);
        absl::Status status = (*writer)->Write(g, p, values.data());
        if (!status.ok()) return status;
      }
    }
    return (*writer)->Finish();
  }

  std::set<std::string> Names(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
  }

  void ExpectValues() {
    auto reader = CheckpointReader::Open(options_.target);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->tensors().size(), 6u);
    for (int g = 0; g < 3; ++g) {
      for (int p = 0; p < 2; ++p) {
        std::vector<float> values(p == 0 ? 16 : 2);
        const std::string name = "g" + std::to_string(g) + (p == 0 ? ".a" : ".b");
        ASSERT_TRUE((*reader)->ReadRange(name, 0, values.size(), values.data()).ok());
        EXPECT_THAT(values, testing::Each(g * 10 + p));
      }
    }
  }

  fs::path root_;
  ModelConfig config_;
  ParameterLayout layout_;
  ModelFolderOptions options_;
};

TEST_F(ModelFolder, IsOneFileWhereAllFits) {
  std::ofstream(root_ / "source" / "tokenizer.json") << "{}";
  std::ofstream(root_ / "source" / "chat_template.jinja") << "hi";
  std::ofstream(root_ / "source" / "unrelated.bin") << "x";
  options_.companions = *ReadCompanions((root_ / "source").string());
  fs::remove(root_ / "source" / "tokenizer.json");  // what there was when the model was loaded counts
  auto bytes = WriteAll();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(Names(root_ / "target"),
            (std::set<std::string>{"chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(Names(root_), (std::set<std::string>{"source", "target"}));
  const auto config = nlohmann::json::parse(std::ifstream(root_ / "target" / "config.json"));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["hidden_size"], 4);
  EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  ExpectValues();
}

TEST_F(ModelFolder, IsAnIndexOverFilesThatKeepTheLimit) {
  options_.max_file_bytes = 150;  // two groups of 72 bytes
  ASSERT_TRUE(WriteAll().ok());
  EXPECT_EQ(Names(root_ / "target"),
            (std::set<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors", "model.safetensors.index.json"}));
  const auto index = nlohmann::json::parse(std::ifstream(root_ / "target" / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 3 * 72);
  EXPECT_EQ(index["weight_map"]["g2.b"], "model-00002-of-00002.safetensors");
  ExpectValues();
}

TEST_F(ModelFolder, TellsTransformersThatAScalarHeadHasOneLabel) {
  options_.head = HeadKind::kScalar;
  ASSERT_TRUE(WriteAll().ok());
  const auto config = nlohmann::json::parse(std::ifstream(root_ / "target" / "config.json"));
  EXPECT_EQ(config["architectures"][0], "LlamaForSequenceClassification");
  EXPECT_EQ(config["id2label"].size(), 1u);
}

TEST_F(ModelFolder, HasAScalarHeadUnderTheNameThatItsConfigGives) {
  layout_.groups[2].parameters = {{"score.weight", {1, 16}, true}};
  config_.json = R"({"architectures": ["CriticModel"], "value_head_prefix": "value_head", "mean": 1.5, "std": 2})";
  config_.head = options_.head = HeadKind::kScalar;
  config_.scalar_head = "value_head";
  auto writer = ModelFolderWriter::Create(config_, layout_, options_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<float> values(16, 7);
  for (int g = 0; g < 3; ++g) {
    for (size_t p = 0; p < layout_.groups[g].parameters.size(); ++p) {
      ASSERT_TRUE((*writer)->Write(g, static_cast<int>(p), values.data()).ok());
    }
  }
  ASSERT_TRUE((*writer)->Finish().ok());
  auto reader = CheckpointReader::Open(options_.target);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->tensors().count("value_head.weight"), 1u);
  EXPECT_EQ((*reader)->tensors().count("score.weight"), 0u);
  const auto config = nlohmann::json::parse(std::ifstream(root_ / "target" / "config.json"));
  EXPECT_EQ(config["architectures"][0], "CriticModel");
  EXPECT_EQ(config["value_head_prefix"], "value_head");
  EXPECT_FALSE(config.contains("mean") || config.contains("std")) << "of the values of another head";
}

TEST_F(ModelFolder, OfAdaptersSaysWhichModelsTheyAreAndHowTheirTokenizerIsRead) {
  config_.lora = AdapterConfig{.base_hash = 0xabc, .json = "{}"};
  const auto written = [&](const std::map<std::string, std::string>& companions) {
    fs::remove_all(options_.target);
    options_.companions = companions;
    const auto bytes = WriteAll();
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return Names(options_.target);
  };
  const auto json_of = [&](const std::string& name) {
    return nlohmann::json::parse(std::ifstream(options_.target + "/" + name));
  };
  EXPECT_EQ(written({}),
            (std::set<std::string>{"adapter_base.json", "adapter_config.json", "adapter_model.safetensors"}));
  EXPECT_EQ(json_of("adapter_base.json"), nlohmann::json({{"base_hash", "0000000000000abc"}}));

  const std::string named = R"({"tokenizer_class":  "PreTrainedTokenizerFast"})";
  written({{"tokenizer.json", "{}"}, {"tokenizer_config.json", named}});
  std::stringstream as_it_was;
  as_it_was << std::ifstream(options_.target + "/tokenizer_config.json").rdbuf();
  EXPECT_EQ(as_it_was.str(), named);
  written({{"tokenizer.json", "{}"}, {"tokenizer_config.json", R"({"z": 1, "tokenizer_class": null})"}});
  EXPECT_EQ(json_of("tokenizer_config.json"), nlohmann::json({{"z", 1}, {"tokenizer_class", "LlamaTokenizer"}}));
  config_.json = R"({"tokenizer_class": "CodeLlamaTokenizer"})";
  written({{"tokenizer.json", "{}"}});
  EXPECT_EQ(json_of("tokenizer_config.json"), nlohmann::json({{"tokenizer_class", "CodeLlamaTokenizer"}}));
}

TEST_F(ModelFolder, IsNotThereUntilFinished) {
  {
    auto writer = ModelFolderWriter::Create(config_, layout_, options_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_FALSE(fs::exists(root_ / "target"));
    EXPECT_EQ(Names(root_).size(), 2u);
  }
  EXPECT_EQ(Names(root_), std::set<std::string>{"source"});
}

TEST_F(ModelFolder, IsNotShownWithATensorMissing) {
  {
    auto writer = ModelFolderWriter::Create(config_, layout_, options_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_FALSE((*writer)->Finish().ok());
  }
  EXPECT_EQ(Names(root_), std::set<std::string>{"source"});
}

TEST_F(ModelFolder, DoesNotReplaceWhatIsThere) {
  fs::create_directories(root_ / "target");
  const absl::Status status = WriteAll().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("target"));
}

TEST_F(ModelFolder, NamesThePathThatCannotBeMade) {
  std::ofstream(root_ / "file") << "x";
  options_.target = (root_ / "file" / "target").string();
  const absl::Status status = WriteAll().status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("model_folder_test/file"));
}

}  // namespace
}  // namespace quartet
