#include "core/model/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "core/base/testing/scratch_folder.h"
#include "core/model/adapter_base.h"
#include "core/model/initialize.h"
#include "core/model/tensor_parallel.h"
#include "core/safetensors/writer.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kAdaptersOfLlama[] = "core/model/testdata/llama_lora";

json AdapterConfigOf(const std::string& folder) { return json::parse(std::ifstream(folder + "/adapter_config.json")); }

// Of a folder with those fields beside, or in place of, llama_lora's.
absl::StatusOr<ModelConfig> ReadAdapters(const json& fields) {
  const std::string folder = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::create_directories(folder);
  json config = AdapterConfigOf(kAdaptersOfLlama);
  config.update(fields);
  std::ofstream(folder + "/adapter_config.json") << config;
  return ReadModelConfig(folder);
}

TEST(LoraConfig, OfAFolderOfAdaptersIsReadWithItsModelsConfig) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(kAdaptersOfLlama);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_type, "llama");
  EXPECT_EQ(config->vocab_size, 101);
  ASSERT_TRUE(config->lora.has_value());
  EXPECT_EQ(config->lora->base_folder, std::filesystem::absolute("core/model/testdata/llama").string());
  EXPECT_EQ(config->lora->r, 8);
  EXPECT_EQ(config->lora->scale, 2);
  EXPECT_EQ(config->lora->dropout, 0.1);
  EXPECT_EQ(config->lora->targets.size(), 7);
  EXPECT_FALSE(config->lora->has_head);
  EXPECT_FALSE(ReadModelConfig("core/model/testdata/llama")->lora.has_value());
}

TEST(LoraConfig, IsScaledByTheRootOfTheRankWithRslora) {
  const auto config = ReadAdapters({{"use_rslora", true}, {"r", 16}, {"lora_alpha", 8}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->lora->scale, 2);
}

TEST(LoraConfig, FindsItsTargetsByNamesEndingsAndPaths) {
  using Names = std::vector<std::string>;
  for (const auto& [targets, expected] : std::vector<std::pair<json, Names>>{
           {"all-linear", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
           {{"down_proj", "q_proj"}, {"q_proj", "down_proj"}},
           {{"self_attn.o_proj", "mlp.up_proj"}, {"o_proj", "up_proj"}},
           {{"model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.v_proj"}, {"v_proj"}}}) {
    const auto config = ReadAdapters({{"target_modules", targets}});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->lora->targets, expected) << targets;
  }
}

TEST(LoraConfig, RefusesByNameWhatItDoesNotUnderstand) {
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, json>>{{"use_dora", true},
                                                 {"bias", "all"},
                                                 {"lora_bias", true},
                                                 {"rank_pattern", {{"q_proj", 4}}},
                                                 {"alpha_pattern", {{"q_proj", 4}}},
                                                 {"layers_to_transform", {0}},
                                                 {"layer_replication", {{0, 1}}},
                                                 {"exclude_modules", {"q_proj"}},
                                                 {"modules_to_save", {"embed_tokens"}},
                                                 {"modules_to_save", "all"},
                                                 {"target_modules", {"q_proj", "lm_head"}},
                                                 {"target_modules", {"layers.0.self_attn.q_proj"}},
                                                 {"target_modules", ".*q_proj"},
                                                 {"target_modules", json::array()},
                                                 {"target_parameters", {"mlp.experts"}},
                                                 {"trainable_token_indices", {1}},
                                                 {"init_lora_weights", "pissa"},
                                                 {"peft_type", "IA3"},
                                                 {"r", 0},
                                                 {"lora_alpha", "16"},
                                                 {"a_field_of_tomorrow", 1}}) {
    const absl::Status status = ReadAdapters({{field, value}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << ": " << status;
    EXPECT_NE(status.message().find(field + " is "), std::string::npos) << status;
    EXPECT_NE(status.message().find("adapter_config.json"), std::string::npos) << status;
  }
}

TEST(LoraConfig, NamesTheProductThatSomeLayersAloneHave) {
  const absl::Status status = ReadAdapters({{"target_modules", {"q_proj", "layers.0.self_attn.k_proj"}}}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("in all layers or in none, but k_proj is named in 1 of 2"));
}

TEST(LoraConfig, SaysWhereItsModelIsNoFolder) {
  const absl::Status status = ReadAdapters({{"base_model_name_or_path", "meta-llama/Llama-3.2-1B"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_NE(status.message().find("base_model_name_or_path is \"meta-llama/Llama-3.2-1B\""), std::string::npos)
      << status;
  EXPECT_FALSE(ReadAdapters({{"base_model_name_or_path", kAdaptersOfLlama}}).ok());
}

TEST(LoraConfig, IsNamedWhereTheFolderOfItsCheckpointIsGiven) {
  const std::string run = testing::TempDir() + "/run_of_adapters", policy = run + "/checkpoints/latest/policy";
  std::filesystem::create_directories(policy);
  std::ofstream(policy + "/adapter_config.json") << "{}";
  for (const std::string& folder : {run, run + "/checkpoints", run + "/checkpoints/latest"}) {
    const absl::Status status = ReadModelConfig(folder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_NE(status.message().find("there is one in " + policy), std::string::npos) << status;
  }
}

TEST(LoraConfig, OfASequenceClassifierBringsTheHead) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig("core/model/testdata/llama_critic_lora");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->lora->has_head);
  EXPECT_EQ(config->head, HeadKind::kScalar);
  const absl::Status status = CheckHead(*config, "folder", HeadKind::kVocabulary);
  EXPECT_NE(status.message().find("modules_to_save"), std::string::npos) << status;
}

TEST(LoraLayout, HasTheTensorsOfTheFolderInTheirShapes) {
  for (const char* name :
       {"llama_lora", "llama_biases_lora", "qwen3_lora", "granite_lora", "olmo2_lora", "llama_critic_lora"}) {
    SCOPED_TRACE(name);
    const std::string folder = std::string("core/model/testdata/") + name;
    const ModelConfig config = *ReadModelConfig(folder);
    const ParameterLayout layout = MakeLoraLayout(config, MakeParameterLayout(config, config.head));
    const auto reader = OpenAdapters(folder, layout);
    ASSERT_TRUE(reader.ok()) << reader.status();
    size_t count = 0;
    for (const ParameterGroup& group : layout.groups) {
      for (const ParameterSpec& parameter : group.parameters) {
        ++count;
        ASSERT_TRUE((*reader)->tensors().contains(parameter.name)) << parameter.name;
        EXPECT_EQ((*reader)->tensors().at(parameter.name).shape, parameter.shape) << parameter.name;
      }
    }
    EXPECT_EQ(count, (*reader)->tensors().size());
  }
}

TEST(LoraLayout, OfAShareCutsAWhereColumnsAreCutAndBWhereRowsAre) {
  const ModelConfig config = *ReadModelConfig(kAdaptersOfLlama);
  const TensorParallel place = {.rank = 1, .size = 2};
  const ParameterLayout layout = MakeLoraLayout(config, ShareOfLayout(config, HeadKind::kVocabulary, place));
  for (const ParameterSpec& factor : layout.groups[0].parameters) {
    const bool is_a = factor.name.find("lora_A") != std::string::npos;
    const bool by_columns = factor.in_block == BlockTensor::kO || factor.in_block == BlockTensor::kDown;
    ASSERT_EQ(factor.slice.has_value(), is_a == by_columns) << factor.name;
    if (!factor.slice.has_value()) continue;
    const int dimension = is_a ? 1 : 0;
    EXPECT_EQ(factor.slice->dimension, dimension);
    EXPECT_EQ(factor.slice->begin, factor.shape[dimension]);
    EXPECT_EQ(factor.stored_shape()[dimension], 2 * factor.shape[dimension]);
    EXPECT_EQ(factor.stored_shape()[1 - dimension], factor.shape[1 - dimension]);
  }
}

TEST(LoraLayout, HasNoPlaceForTensorsThatTheConfigDoesNotName) {
  const std::string folder = testing::TempDir() + "/no_place";
  std::filesystem::create_directories(folder);
  auto writer = SafetensorsWriter::Create(folder + "/adapter_model.safetensors",
                                          {{"base_model.model.model.embed_tokens.weight", Dtype::kF32, {2}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const float values[] = {1, 2};
  ASSERT_TRUE((*writer)->Write(0, 0, values, sizeof values).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  const ModelConfig config = *ReadModelConfig(kAdaptersOfLlama);
  const ParameterLayout layout = MakeLoraLayout(config, MakeParameterLayout(config, HeadKind::kVocabulary));
  const absl::Status status = OpenAdapters(folder, layout).status();
  EXPECT_NE(status.message().find("embed_tokens"), std::string::npos) << status;
}

TEST(ReadTrainedConfig, GivesAModelNewAdaptersWhoseFileReadsAsThey) {
  const std::string llama = "core/model/testdata/llama";
  const auto config = ReadTrainedConfig(llama, LoraOptions{.r = 4, .alpha = 8, .targets = {}, .use_rslora = true},
                                        HeadKind::kVocabulary);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->lora.has_value());
  EXPECT_TRUE(config->lora->are_new);
  EXPECT_EQ(config->lora->scale, 4);
  EXPECT_EQ(config->lora->targets.size(), 7);

  const std::string folder = testing::TempDir() + "/new_adapters";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json") << config->lora->json;
  const auto read = ReadModelConfig(folder);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->lora->are_new);
  const std::string absolute = std::filesystem::absolute(llama);
  EXPECT_EQ(read->lora->base_folder, absolute);
  EXPECT_EQ(json::parse(config->lora->json).at("base_model_name_or_path"), absolute);
  EXPECT_EQ(read->lora->r, 4);
  EXPECT_EQ(read->lora->scale, 4);
  EXPECT_EQ(read->lora->targets, config->lora->targets);

  EXPECT_FALSE(ReadTrainedConfig(llama, std::nullopt, HeadKind::kVocabulary)->lora.has_value());
  const absl::Status other =
      ReadTrainedConfig(llama, LoraOptions{.targets = {"lm_head"}}, HeadKind::kVocabulary).status();
  EXPECT_THAT(std::string(other.message()), StartsWith("actor.lora.target_modules is [\"lm_head\"]; it must be "));
}

TEST(ReadTrainedConfig, TrainsAFolderOfAdaptersOnAsItIsAlone) {
  const auto same = ReadTrainedConfig(kAdaptersOfLlama, LoraOptions{.r = 8, .alpha = 16, .targets = {"all-linear"}},
                                      HeadKind::kVocabulary);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_FALSE(same->lora->are_new);
  for (const auto& [lora, differs] : std::vector<std::pair<LoraOptions, std::string>>{
           {{.r = 16, .alpha = 32}, "actor.lora.r is 16 and not 8; actor.lora.alpha is 32 and not 16: "},
           {{.r = 16, .alpha = 16}, "actor.lora.r is 16 and not 8: "},
           {{.r = 8, .alpha = 8}, "actor.lora.alpha is 8 and not 16: "},
           {{.r = 8, .alpha = 16, .targets = {"q_proj"}}, "actor.lora.target_modules is q_proj and not q_proj,k_proj,"},
           {{.r = 8, .alpha = 16, .use_rslora = true}, "actor.lora.use_rslora is true and not false: "}}) {
    const absl::Status status = ReadTrainedConfig(kAdaptersOfLlama, lora, HeadKind::kVocabulary).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith(differs), HasSubstr("llama_lora are, which are trained on")));
  }
}

class AdapterBase : public testing::Test {
 protected:
  AdapterBase() {
    WriteModel("base", 7);
    std::filesystem::create_directories(Path("adapters"));
    json config = AdapterConfigOf(kAdaptersOfLlama);
    config["base_model_name_or_path"] = Path("base");
    config["target_modules"] = {"q_proj"};
    scratch_.Write("adapters/adapter_config.json", config.dump());
  }
  std::string Path(const std::string& name) const { return scratch_.path() + "/" + name; }
  void WriteModel(const std::string& name, uint64_t seed) {
    std::filesystem::remove_all(Path(name));
    const ModelConfig llama = *ReadModelConfig("core/model/testdata/llama");
    ASSERT_TRUE(WriteRandomModel(llama, HeadKind::kVocabulary, seed, Dtype::kF32, Path(name)).ok());
  }
  void WriteBaseFile() {
    const auto config = ReadModelConfig(Path("adapters"));
    ASSERT_TRUE(config.ok()) << config.status();
    scratch_.Write("adapters/adapter_base.json", AdapterBaseJson(config->lora->base_hash.value()));
  }
  std::string Error() const { return std::string(ReadModelConfig(Path("adapters")).status().message()); }

  ScratchFolder scratch_;
};

TEST_F(AdapterBase, OfOtherWeightsUnderTheSamePathIsRefusedWithBothHashesAndTheWayOut) {
  WriteBaseFile();
  const uint64_t was = *HashBase(Path("base"), *ReadModelConfig(Path("base")));
  WriteModel("base", 8);
  const uint64_t is = *HashBase(Path("base"), *ReadModelConfig(Path("base")));
  EXPECT_THAT(Error(), AllOf(HasSubstr(Path("adapters")), HasSubstr("is in " + Path("base") + " now"),
                             HasSubstr(absl::StrFormat("%016x", was)), HasSubstr(absl::StrFormat("%016x", is)),
                             HasSubstr("base_model_name_or_path of adapter_config.json"),
                             HasSubstr("leave adapter_base.json out")));
  EXPECT_FALSE(TokenizerFolder(Path("adapters")).ok());
  std::filesystem::remove(Path("adapters/adapter_base.json"));
  EXPECT_EQ(Error(), "") << "a folder that peft wrote has no such file";
}

TEST_F(AdapterBase, OfTheSameWeightsIsTakenWhereverTheyAreAndHoweverOld) {
  WriteBaseFile();
  WriteModel("base", 7);  // other files of the same content
  EXPECT_EQ(Error(), "");
  std::filesystem::rename(Path("base"), Path("moved"));
  EXPECT_THAT(Error(), HasSubstr("base_model_name_or_path is \"" + Path("base") + "\"; it must be the folder"));
  json config = AdapterConfigOf(Path("adapters"));
  config["base_model_name_or_path"] = Path("moved");
  scratch_.Write("adapters/adapter_config.json", config.dump());
  EXPECT_EQ(Error(), "");
}

TEST_F(AdapterBase, OfAnotherArithmeticUnderTheSamePathIsRefused) {
  WriteBaseFile();
  const json was = json::parse(scratch_.Read("base/config.json"));
  const auto error_with = [&](const std::string& field, const json& value) {
    json config = was;
    config[field] = value;
    scratch_.Write("base/config.json", config.dump());
    return Error();
  };
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{
           {"rope_theta", 50000}, {"rms_norm_eps", 0.01}, {"num_key_value_heads", was.at("num_attention_heads")}}) {
    EXPECT_NE(was.at(field), value) << field;
    EXPECT_THAT(error_with(field, value), HasSubstr("is in " + Path("base") + " now")) << field;
  }
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, json>>{{"transformers_version", "9"}, {"max_position_embeddings", 9999}}) {
    EXPECT_EQ(error_with(field, value), "") << field;
  }
}

TEST_F(AdapterBase, OfARelativePathIsNamedByAnAbsoluteOne) {
  json config = AdapterConfigOf(Path("adapters"));
  config["base_model_name_or_path"] = std::filesystem::relative(Path("base")).string();
  scratch_.Write("adapters/adapter_config.json", config.dump());
  const auto read = ReadModelConfig(Path("adapters"));
  ASSERT_TRUE(read.ok()) << read.status();
  // As a checkpoint has it, which is read wherever one is.
  EXPECT_EQ(std::filesystem::weakly_canonical(read->lora->base_folder),
            std::filesystem::weakly_canonical(Path("base")));
  json written = json::parse(read->lora->json);
  EXPECT_EQ(written.at("base_model_name_or_path"), read->lora->base_folder);
  EXPECT_TRUE(std::filesystem::path(read->lora->base_folder).is_absolute());
  written["base_model_name_or_path"] = config["base_model_name_or_path"];
  EXPECT_EQ(written, config) << "all else is as it was";
}

TEST_F(AdapterBase, IsWrittenInSixteenHexadecimalDigits) {
  for (const char* text :
       {"{}", "[]", "{\"base_hash\": 5}", "{\"base_hash\": \"00ff\"}", "{\"base_hash\": \"0123456789abcdeg\"}"}) {
    scratch_.Write("adapters/adapter_base.json", text);
    EXPECT_THAT(Error(), HasSubstr(Path("adapters/adapter_base.json"))) << text;
  }
}

TEST_F(AdapterBase, ThatCannotBeReadIsNamedWithTheFolderThatNamesIt) {
  std::filesystem::remove(Path("base/config.json"));
  EXPECT_THAT(Error(), AllOf(StartsWith(Path("adapters/adapter_config.json: base_model_name_or_path: ")),
                             HasSubstr(Path("base/config.json"))));
}

// Each begins with the model's head, where it has one.
TEST(ReadTrainedConfig, GivesNewAdaptersOfACriticItsHead) {
  for (const auto& [model, own] : {std::pair{"llama", HeadKind::kVocabulary}, {"llama_critic", HeadKind::kScalar}}) {
    const std::string base = std::string("core/model/testdata/") + model;
    const auto config = ReadTrainedConfig(base, LoraOptions{.r = 4}, HeadKind::kScalar);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(config->lora->has_head);
    EXPECT_EQ(config->head, own);
    const ParameterLayout layout = MakeTrainedLayout(*config, HeadKind::kScalar);
    const ParameterSpec& head = layout.groups[layout.head_group].parameters.at(0);
    EXPECT_EQ(layout.head_group, config->num_hidden_layers);
    EXPECT_EQ(head.name, "base_model.model.score.weight");
    EXPECT_EQ(PartOf(head), AdapterPart::kHead);
    EXPECT_EQ(head.numel(), config->hidden_size);

    // As peft writes it, but for fields that are off.
    const auto written = nlohmann::json::parse(config->lora->json);
    const auto pefts =
        nlohmann::json::parse(std::ifstream("core/model/testdata/llama_critic_lora/adapter_config.json"));
    for (const char* field : {"task_type", "modules_to_save"}) EXPECT_EQ(written.at(field), pefts.at(field)) << field;
    const std::string folder = testing::TempDir() + "/new_adapters_of_" + model;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/adapter_config.json") << config->lora->json;
    const auto read = ReadModelConfig(folder);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(read->lora->has_head);
    EXPECT_EQ(read->head, HeadKind::kScalar);
  }
}

TEST(ReadTrainedConfig, TrainsAdaptersOfACriticOnWhereTheyBringItsHead) {
  const std::string folder = "core/model/testdata/llama_critic_lora";
  const LoraOptions lora{.r = 8, .alpha = 8, .targets = {"gate_proj", "k_proj"}};
  const auto same = ReadTrainedConfig(folder, lora, HeadKind::kScalar);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_FALSE(same->lora->are_new);
  const auto error = [](const std::string& of, const LoraOptions& with) {
    return std::string(ReadTrainedConfig(of, with, HeadKind::kScalar).status().message());
  };
  EXPECT_THAT(error(folder, {.r = 4}), StartsWith("critic.lora.r is 4 and not 8"));
  EXPECT_THAT(
      error(kAdaptersOfLlama, {.r = 8, .alpha = 16}),
      AllOf(HasSubstr("critic.lora is set, which trains the scalar head as well"), HasSubstr("//tools:merge_lora")));
}

}  // namespace
}  // namespace quartet
