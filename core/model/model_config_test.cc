#include "core/model/model_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model/testing/golden_models.h"

namespace quartet {
namespace {

using nlohmann::json;
using testing::TempDir;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 1000},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 512}};
}

json Qwen2() {
  json config = Llama();
  config["model_type"] = "qwen2";
  config["architectures"] = {"Qwen2ForCausalLM"};
  return config;
}

json Mistral() {
  json config = Llama();
  config["model_type"] = "mistral";
  config["architectures"] = {"MistralForCausalLM"};
  return config;
}

// A folder of its own for each test.
std::string Folder() {
  const std::string folder = TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::create_directories(folder);
  return folder;
}

absl::StatusOr<ModelConfig> Read(const std::string& config, const std::string& generation_config = "") {
  const std::string folder = Folder();
  std::ofstream(folder + "/config.json") << config;
  if (!generation_config.empty()) std::ofstream(folder + "/generation_config.json") << generation_config;
  return ReadModelConfig(folder);
}

absl::StatusOr<ModelConfig> Read(const json& config) { return Read(config.dump()); }

// Refused, and the message holds every part.
void ExpectRefused(const json& config, const std::vector<std::string>& parts) {
  const auto read = Read(config);
  ASSERT_FALSE(read.ok()) << config;
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(read.status().message().find("config.json"), std::string::npos) << read.status();
  for (const std::string& part : parts) {
    EXPECT_NE(read.status().message().find(part), std::string::npos) << read.status() << "\nwithout: " << part;
  }
}

json With(json config, const std::string& field, json value) {
  config[field] = std::move(value);
  return config;
}

// `before` with the changes of a golden row: "(absent)" takes a key out.
json Changed(json before, const json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (value == "(absent)") {
      before.erase(key);
    } else {
      before[key] = value;
    }
  }
  return before;
}

// A reading as tools/golden/make_config_defaults.py writes them.
json Reading(const ModelConfig& config) {
  const auto or_null = [](const auto& value) { return value.has_value() ? json(*value) : json(nullptr); };
  json scaling = nullptr;
  if (config.rope_scaling.has_value()) {
    scaling = {{"factor", config.rope_scaling->factor},
               {"low_freq_factor", config.rope_scaling->low_freq_factor},
               {"high_freq_factor", config.rope_scaling->high_freq_factor},
               {"original_max_position_embeddings", config.rope_scaling->original_max_position_embeddings}};
  }
  const BlockSpec& block = config.block;
  json norms = json::array();
  for (const std::string_view name :
       {block.attention_input_norm, block.attention_output_norm, block.mlp_input_norm, block.mlp_output_norm}) {
    if (!name.empty()) norms.push_back(name);
  }
  return {{"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rms_norm_eps", config.rms_norm_eps},
          {"rope_theta", config.rope_theta},
          {"rope_scaling", scaling},
          {"sliding_window", or_null(config.sliding_window)},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"qkv_bias", block.qkv_bias},
          {"o_bias", block.o_bias},
          {"mlp_bias", block.mlp_bias},
          {"qk_norm", block.qk_norm == QkNorm::kNone       ? "none"
                      : block.qk_norm == QkNorm::kEachHead ? "each head"
                                                           : "all heads"},
          {"norms", norms},
          {"multipliers",
           {config.embedding_multiplier, block.residual_multiplier, block.attention_multiplier.value_or(0),
            config.logits_scaling}},
          {"initializer_range", config.initializer_range},
          {"attention_dropout", 0.0},  // no other is taken
          {"bos_token_id", or_null(config.bos_token_id)},
          {"pad_token_id", or_null(config.pad_token_id)},
          {"eos_token_ids", config.eos_token_ids}};
}

// What transformers' classes make of a file that states every key, of one that states none, and of those that lack one
// key or have a null in its place.
TEST(ModelConfig, FillsInWhatTransformersFillsIn) {
  std::ifstream file("core/model/testdata/config_defaults.json");
  const json golden = json::parse(file);
  ASSERT_EQ(golden.size(), 6);
  for (const auto& [family, golden_family] : golden.items()) {
    const json &full = golden_family["config"], &full_reading = golden_family["reading"];
    ASSERT_GE(golden_family["rows"].size(), full.size() * 2);
    const auto whole = Read(full);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(Reading(*whole), full_reading);
    for (const json& row : golden_family["rows"]) {
      const auto config = Read(Changed(full, row[0]));
      if (row[1].is_null()) {
        EXPECT_FALSE(config.ok()) << family << " " << row[0];
        EXPECT_NE(config.status().message().find(row[0].begin().key()), std::string::npos) << config.status();
      } else {
        ASSERT_TRUE(config.ok()) << family << " " << row[0] << ": " << config.status();
        EXPECT_EQ(Reading(*config), Changed(full_reading, row[1])) << family << " " << row[0];
      }
    }
  }
}

TEST(ModelConfig, KeepsTheFileAsItIs) {
  const auto config = Read(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head, HeadKind::kVocabulary);
  EXPECT_EQ(json::parse(config->json), Llama());
}

TEST(ModelConfig, ReadsWhatTransformersWrites) {
  const std::string root = "core/model/testdata/";
  const auto qwen2 = ReadModelConfig(root + "qwen2");
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_TRUE(qwen2->block.qkv_bias);
  EXPECT_FALSE(qwen2->block.o_bias);
  const auto qwen3 = ReadModelConfig(root + "qwen3");
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_EQ(qwen3->block.qk_norm, QkNorm::kEachHead);
  EXPECT_TRUE(qwen3->tie_word_embeddings);
  EXPECT_EQ(qwen3->head_dim, 16);
  const auto llama3 = ReadModelConfig(root + "llama_tied_llama3_rope");
  ASSERT_TRUE(llama3.ok()) << llama3.status();
  ASSERT_TRUE(llama3->rope_scaling.has_value());
  EXPECT_EQ(llama3->rope_scaling->factor, 8);
  EXPECT_EQ(llama3->rope_scaling->original_max_position_embeddings, 16);
  const auto critic = ReadModelConfig(root + "llama_critic");
  ASSERT_TRUE(critic.ok()) << critic.status();
  EXPECT_EQ(critic->head, HeadKind::kScalar);
  const auto mistral = ReadModelConfig(root + "mistral");
  ASSERT_TRUE(mistral.ok()) << mistral.status();
  EXPECT_EQ(mistral->eos_token_ids, std::vector<int64_t>{2});
}

TEST(ModelConfig, PrefersTheStopTokensOfTheGenerationConfig) {
  const std::string config = With(Llama(), "eos_token_id", 2).dump();
  EXPECT_EQ(Read(config)->eos_token_ids, (std::vector<int64_t>{2}));
  EXPECT_EQ(Read(config, R"({"eos_token_id": [7, 9]})")->eos_token_ids, (std::vector<int64_t>{7, 9}));
  const auto outside = Read(config, R"({"eos_token_id": 1000})");
  ASSERT_FALSE(outside.ok());
  EXPECT_NE(outside.status().message().find("generation_config.json: eos_token_id is 1000"), std::string::npos);
}

TEST(ModelConfig, ReadsRopeParametersOfTransformers5) {
  const auto config = Read(With(Llama(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_theta, 5e5);
}

TEST(ModelConfig, RefusesUnsupportedArchitecturesByName) {
  ExpectRefused(With(Llama(), "model_type", "gpt2"), {"model_type", "\"gpt2\"", "\"llama\""});
  ExpectRefused(With(Llama(), "architectures", {"LlamaForQuestionAnswering"}),
                {"LlamaForQuestionAnswering", "LlamaForCausalLM"});
  ExpectRefused(With(Llama(), "architectures", {"Qwen2ForCausalLM"}), {"Qwen2ForCausalLM", "LlamaForCausalLM"});
  ExpectRefused(With(Llama(), "hidden_act", "gelu"), {"hidden_act", "gelu", "silu"});
  ExpectRefused(With(Llama(), "quantization_config", {{"bits", 4}}), {"quantization_config"});
  ExpectRefused(With(Llama(), "attention_dropout", 0.1), {"attention_dropout", "0.1"});
}

TEST(ModelConfig, RefusesRopeVariantsByName) {
  for (const std::string type : {"dynamic", "yarn", "longrope", "linear"}) {
    ExpectRefused(With(Llama(), "rope_scaling", {{"rope_type", type}, {"factor", 2.0}}),
                  {"rope_scaling.rope_type", "\"" + type + "\"", "\"llama3\""});
    ExpectRefused(With(Llama(), "rope_scaling", {{"type", type}, {"factor", 2.0}}),
                  {"rope_scaling.type", "\"" + type + "\""});
  }
  ExpectRefused(With(Llama(), "partial_rotary_factor", 0.5), {"partial_rotary_factor", "0.5"});
  ExpectRefused(With(Llama(), "rope_scaling", {{"rope_type", "llama3"}}), {"rope_scaling.factor is missing"});
  ExpectRefused(With(Llama(), "rope_scaling",
                     {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 4.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 64}}),
                {"high_freq_factor", "greater than low_freq_factor"});
}

TEST(ModelConfig, AllowsSequencesWithinTheWindowAlone) {
  const auto check = [](const json& config, int64_t length) {
    const auto read = Read(config);
    EXPECT_TRUE(read.ok()) << read.status();
    return CheckLengthInWindow(*read, "models/m", "actor.max_len", length);
  };
  EXPECT_TRUE(check(With(Mistral(), "sliding_window", 128), 128).ok());
  const absl::Status beyond = check(With(Mistral(), "sliding_window", 128), 129);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string part : {"actor.max_len is 129", "at most 128", "models/m/config.json", "sliding_window"}) {
    EXPECT_NE(beyond.message().find(part), std::string::npos) << beyond;
  }
  EXPECT_TRUE(check(Mistral(), 4096).ok());  // the default
  EXPECT_FALSE(check(Mistral(), 4097).ok());
  EXPECT_FALSE(check(With(Mistral(), "sliding_window", 512), 513).ok()) << "as long as max_position_embeddings";
  EXPECT_TRUE(check(With(Mistral(), "sliding_window", nullptr), 1 << 20).ok());
  EXPECT_TRUE(check(With(Qwen2(), "sliding_window", 128), 1 << 20).ok())
      << "Qwen2 states a window that it does not use";
  EXPECT_TRUE(check(Llama(), 1 << 20).ok());
}

TEST(ModelConfig, RefusesLayerTypesThatItCannotFollow) {
  const json mixed = {"full_attention", "sliding_attention", "full_attention"};
  ExpectRefused(With(Llama(), "layer_types", mixed), {"layer_types", "sliding_attention", "llama"});
  ExpectRefused(With(Qwen2(), "layer_types", mixed), {"use_sliding_window is missing", "layer_types"});
  ExpectRefused(With(Qwen2(), "layer_types", {"full_attention", "chunked_attention", "full_attention"}),
                {"layer_types", "chunked_attention", "full_attention"});
  ExpectRefused(With(Qwen2(), "layer_types", "full_attention"), {"layer_types is \"full_attention\"", "list"});
  ExpectRefused(With(Mistral(), "sliding_window", 0), {"sliding_window is 0"});
}

TEST(ModelConfig, RefusesMissingAndNonsensicalFields) {
  json nameless = Llama();
  nameless.erase("model_type");
  ExpectRefused(nameless, {"model_type is missing"});
  for (const std::string field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                  "num_attention_heads", "max_position_embeddings"}) {
    for (const json& value : {json(0), json(-1), json(1.5), json("8"), json(uint64_t{1} << 63), json::array({8})}) {
      ExpectRefused(With(Llama(), field, value), {field + " is " + value.dump(), "integer in [1, "});
    }
  }
  // Where arithmetic in fp32 is none: norms of 0 / 0, angles that are infinite.
  for (const json& value : {json(0), json(1e-40), json(1e30), json("small")}) {
    ExpectRefused(With(Llama(), "rms_norm_eps", value), {"rms_norm_eps is " + value.dump(), "[1e-20, 0.1]"});
  }
  for (const json& value : {json(-1.0), json(1e-300), json(1e300), json(nullptr)}) {
    ExpectRefused(With(Llama(), "rope_theta", value), {"rope_theta is " + value.dump(), "[1, 1e+12]"});
    ExpectRefused(With(Llama(), "rope_parameters", {{"rope_theta", value}}),
                  {"rope_parameters.rope_theta is " + value.dump()});
  }
  ExpectRefused(With(Llama(), "tie_word_embeddings", 1), {"tie_word_embeddings", "true or false"});
  ExpectRefused(With(Llama(), "eos_token_id", 1000), {"eos_token_id", "[0, 1000)"});
}

TEST(ModelConfig, RefusesShapesThatDoNotFitTogether) {
  ExpectRefused(With(Llama(), "num_key_value_heads", 3), {"num_key_value_heads is 3", "8"});
  ExpectRefused(With(Llama(), "hidden_size", 60), {"hidden_size is 60", "num_attention_heads"});
  ExpectRefused(With(Llama(), "hidden_size", 72), {"hidden_size is 72", "9 dimensions"});
  ExpectRefused(With(Llama(), "head_dim", 7), {"head_dim is 7"});
  EXPECT_TRUE(Read(With(With(Llama(), "hidden_size", 60), "head_dim", 16)).ok());
  json qwen = Qwen2();
  qwen.erase("num_key_value_heads");
  ExpectRefused(qwen, {"num_key_value_heads is missing", "8"});  // transformers takes 32
}

// transformers has no classifier of the family: the head is that of OpenRLHF's classes.
TEST(ModelConfig, WritesAScalarHeadForEveryFamily) {
  for (const std::string& name : kGoldenModels) {
    const auto config = ReadModelConfig("core/model/testdata/" + name);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto critic = Read(ConfigJson(*config, HeadKind::kScalar));
    ASSERT_TRUE(critic.ok()) << critic.status();
    EXPECT_EQ(critic->head, HeadKind::kScalar) << name;
    EXPECT_EQ(critic->scalar_head, "score") << name;
  }
}

TEST(ModelConfig, RefusesClassifiersOfSeveralLabels) {
  const json critic = With(Llama(), "architectures", {"LlamaForSequenceClassification"});
  ExpectRefused(critic, {"id2label is missing", "one label"});
  ExpectRefused(With(critic, "id2label", {{"0", "bad"}, {"1", "good"}}), {"id2label", "num_labels=1"});
  EXPECT_EQ(Read(With(critic, "id2label", {{"0", "LABEL_0"}}))->head, HeadKind::kScalar);
}

TEST(ModelConfig, ReadsTheHeadsThatOpenRlhfNames) {
  const json reward = With(Llama(), "architectures", {"RewardModel"});
  EXPECT_EQ(Read(reward)->head, HeadKind::kScalar);
  EXPECT_EQ(Read(reward)->scalar_head, "score");
  EXPECT_EQ(Read(With(reward, "value_head_prefix", "value_head"))->scalar_head, "value_head");
  EXPECT_EQ(Read(With(With(Llama(), "architectures", {"CriticModel"}), "value_head_prefix", "v"))->scalar_head, "v");
}

TEST(ModelConfig, IsReadAgainAsItWasTrained) {
  for (const std::string& name : kGoldenModels) {
    const auto config = ReadModelConfig("core/model/testdata/" + name);
    ASSERT_TRUE(config.ok()) << config.status();
    const std::string trained = TrainedConfigJson(*config, HeadKind::kScalar, "bfloat16");
    const auto critic = Read(trained);
    ASSERT_TRUE(critic.ok()) << critic.status();
    EXPECT_EQ(critic->head, HeadKind::kScalar) << name;
    EXPECT_EQ(critic->scalar_head, "score") << name;
    EXPECT_EQ(Read(TrainedConfigJson(*critic, HeadKind::kScalar, "bfloat16"))->json, trained) << name;
    EXPECT_EQ(Read(TrainedConfigJson(*config, HeadKind::kVocabulary, "float32"))->head, HeadKind::kVocabulary) << name;
  }
  json critic = With(With(Llama(), "architectures", {"CriticModel"}), "value_head_prefix", "v");
  const auto config = Read(With(With(critic, "mean", 0.5), "std", 2));
  const json trained = json::parse(TrainedConfigJson(*config, HeadKind::kScalar, "float32"));
  EXPECT_EQ(trained["architectures"], json({"CriticModel"}));
  EXPECT_FALSE(trained.contains("mean"));
  EXPECT_FALSE(trained.contains("std"));
  EXPECT_EQ(Read(trained)->scalar_head, "v");
  EXPECT_EQ(Read(ConfigJson(*config, HeadKind::kScalar))->scalar_head, "v");
}

TEST(ModelConfig, NamesTheFileThatIsNoJson) {
  EXPECT_EQ(ReadModelConfig(Folder() + "/absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(Read(std::string("{")).ok());
  EXPECT_FALSE(Read(std::string("[]")).ok());
}

TEST(ModelConfig, SurvivesARoundTripThroughConfigJson) {
  std::vector<std::string> names(std::begin(kGoldenModels), std::end(kGoldenModels));
  names.push_back("llama_critic");
  for (const std::string& name : names) {
    const auto config = ReadModelConfig("core/model/testdata/" + name);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto again = Read(ConfigJson(*config, config->head));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->head, config->head);
    EXPECT_EQ(again->head_dim, config->head_dim);
    EXPECT_EQ(again->eos_token_ids, config->eos_token_ids);
    EXPECT_EQ(again->bos_token_id, config->bos_token_id);
    EXPECT_EQ(again->pad_token_id, config->pad_token_id);
    // Every field that transformers wrote and that matters stands in ours with the same value.
    const json theirs = json::parse(config->json), ours = json::parse(again->json);
    for (const auto& [field, value] : ours.items()) {
      if (theirs.contains(field) && field != "head_dim") {  // null where it follows from the others
        EXPECT_EQ(value, theirs[field]) << name << " " << field;
      }
    }
    EXPECT_EQ(Reading(*again), Reading(*config));
  }
}

}  // namespace
}  // namespace quartet
