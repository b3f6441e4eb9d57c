#include "orchestrator/checks/input_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"
#include "core/model/initialize.h"
#include "core/model/model_config.h"
#include "core/model/testing/letters_tokenizer.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/testing/training_state.h"
#include "core/safetensors/writer.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ModelConfig TinyModel() {
  ModelConfig config;
  config.model_type = "mistral";
  config.vocab_size = 32;
  config.hidden_size = 8;
  config.intermediate_size = 16;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  config.eos_token_ids = {2};
  return config;
}

class CheckInputsTest : public ::testing::Test {
 protected:
  // A run whose actor, critic, rollout and reference are one folder, and whose reward is a model.
  CheckInputsTest() {
    WriteModel("model", HeadKind::kVocabulary);
    WriteModel("reward", HeadKind::kScalar);
    config_.set_run_dir(scratch_.path() + "/run");
    config_.mutable_data()->set_prompt_max_len(8);
    config_.mutable_rollout()->set_generate_max_len(8);
    config_.mutable_actor()->set_pretrain(scratch_.path() + "/model");
    config_.mutable_critic()->set_pretrain(scratch_.path() + "/model");
    config_.mutable_reward()->add_source()->set_model(scratch_.path() + "/reward");
    for (const std::string& service : kServiceNames) {
      MutablePlacementOf(&config_, service)->set_listen("127.0.0.1:0");
    }
    const absl::Status resolved = ResolveRunConfig(&config_, "");
    EXPECT_TRUE(resolved.ok()) << resolved;
  }
  void WriteModel(const std::string& name, HeadKind head, const ModelConfig& model = TinyModel()) {
    const absl::Status written = WriteRandomModel(model, head, 7, Dtype::kF32, scratch_.path() + "/" + name);
    EXPECT_TRUE(written.ok()) << written;
  }
  std::string Error(ServicesStart start = ServicesStart::kHere) const {
    return std::string(CheckInputs(config_, Program::kPpo, start).message());
  }
  std::string InScratch(const std::string& name) const { return scratch_.path() + "/" + name; }

  ScratchFolder scratch_;
  RunConfig config_;
};

TEST_F(CheckInputsTest, TakesAdaptersWhereAModelIsOnlyRead) {
  const auto write = [&](const std::string& name, const nlohmann::json& fields, int64_t inputs) {
    const std::string folder = InScratch(name);
    fs::create_directories(folder);
    nlohmann::json config = {{"peft_type", "LORA"},
                             {"base_model_name_or_path", InScratch("model")},
                             {"r", 2},
                             {"lora_alpha", 4},
                             {"target_modules", {"q_proj"}}};
    config.update(fields);
    std::ofstream(folder + "/adapter_config.json") << config;
    const std::string prefix = "base_model.model.model.layers.0.self_attn.q_proj.";
    const auto writer = *SafetensorsWriter::Create(
        folder + "/adapter_model.safetensors",
        {{prefix + "lora_A.weight", Dtype::kF32, {2, inputs}}, {prefix + "lora_B.weight", Dtype::kF32, {8, 2}}});
    const std::vector<float> values(2 * std::max<int64_t>(inputs, 8));
    ASSERT_TRUE(writer->Write(0, 0, values.data(), 8 * inputs).ok());
    ASSERT_TRUE(writer->Write(1, 0, values.data(), 64).ok());
    ASSERT_TRUE(writer->Close().ok());
  };
  write("adapters", nlohmann::json::object(), 8);
  config_.mutable_reference()->set_pretrain(InScratch("adapters"));
  EXPECT_EQ(Error(), "");
  write("wide", nlohmann::json::object(), 9);
  config_.mutable_reference()->set_pretrain(InScratch("wide"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("q_proj.lora_A.weight has shape [2, 9]"), HasSubstr("needs [2, 8]")));
  write("more", {{"target_modules", {"q_proj", "v_proj"}}}, 8);
  config_.mutable_reference()->set_pretrain(InScratch("more"));
  EXPECT_THAT(Error(), HasSubstr("v_proj.lora_A.weight"));
  write("far", {{"base_model_name_or_path", "org/model"}}, 8);
  config_.mutable_reference()->set_pretrain(InScratch("far"));
  EXPECT_THAT(Error(),
              AllOf(StartsWith("reference.pretrain: "), HasSubstr("base_model_name_or_path is \"org/model\"")));
  config_.mutable_reference()->set_pretrain(InScratch("model"));
  config_.mutable_rollout()->set_pretrain(InScratch("adapters"));
  EXPECT_THAT(Error(), AllOf(StartsWith("rollout.pretrain: "), HasSubstr("adapters")));
  config_.mutable_rollout()->set_pretrain(InScratch("model"));
  config_.mutable_critic()->set_pretrain(InScratch("adapters"));
  EXPECT_THAT(Error(), AllOf(StartsWith("critic.pretrain: "), HasSubstr("set critic.lora, as they are, to train")));
  config_.mutable_critic()->set_pretrain(InScratch("model"));
  config_.mutable_actor()->set_pretrain(InScratch("adapters"));
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.pretrain: "), HasSubstr("set actor.lora, as they are, to train them")));
}

TEST_F(CheckInputsTest, AsksWhichReferenceIsMeantWhereAFolderOfAdaptersIsTrainedOn) {
  config_.mutable_actor()->mutable_lora();
  config_.clear_reference();
  EXPECT_TRUE(CheckReferenceIsClear(config_).ok());
  fs::create_directories(InScratch("adapters"));
  std::ofstream(InScratch("adapters/adapter_config.json")) << "{}";
  config_.mutable_actor()->set_pretrain(InScratch("adapters"));
  EXPECT_THAT(std::string(CheckReferenceIsClear(config_).message()), HasSubstr("reference.pretrain is not set; "));
  config_.mutable_reference()->set_pretrain(InScratch("adapters"));
  EXPECT_TRUE(CheckReferenceIsClear(config_).ok());
}

TEST_F(CheckInputsTest, TakesAdaptersThatAreToBeTrained) {
  config_.mutable_actor()->mutable_lora();
  ASSERT_TRUE(ResolveRunConfig(&config_, "").ok());
  for (const Program program : {Program::kPpo, Program::kSft, Program::kDpo}) {
    const absl::Status status = CheckInputs(config_, program, ServicesStart::kHere);
    EXPECT_TRUE(status.ok()) << status;
  }
  config_.mutable_actor()->mutable_lora()->set_target_modules(0, "lm_head");
  EXPECT_THAT(Error(),
              StartsWith("actor.lora.target_modules is [\"lm_head\"]; it must be \"all-linear\" or a list of"));
  config_.mutable_actor()->clear_lora();
  config_.mutable_critic()->mutable_lora();
  ASSERT_TRUE(ResolveRunConfig(&config_, "").ok());
  for (const Program program : {Program::kPpo, Program::kRewardModel}) {
    const absl::Status status = CheckInputs(config_, program, ServicesStart::kHere);
    EXPECT_TRUE(status.ok()) << status;
  }
  config_.mutable_critic()->mutable_lora()->set_target_modules(0, "score");
  EXPECT_THAT(Error(), StartsWith("critic.lora.target_modules is [\"score\"]; it must be"));
}

TEST_F(CheckInputsTest, NamesAStopTokenBeyondTheVocabulary) {
  config_.mutable_rollout()->add_stop_token_ids(31);
  EXPECT_EQ(Error(), "");
  config_.mutable_rollout()->add_stop_token_ids(32);
  EXPECT_EQ(Error(), "rollout.stop_token_ids holds 32; allowed: 0 to 31");
  // The last rows stand for no token then.
  WriteLettersTokenizer(config_.actor().pretrain(), 30);
  config_.mutable_rollout()->clear_stop_token_ids();
  config_.mutable_rollout()->add_stop_token_ids(29);
  EXPECT_EQ(Error(), "");
  config_.mutable_rollout()->add_stop_token_ids(30);
  EXPECT_EQ(Error(), "rollout.stop_token_ids holds 30; allowed: 0 to 29");
}

TEST_F(CheckInputsTest, AcceptsWhatServicesCanLoad) {
  for (const ServicesStart start : {ServicesStart::kByOthers, ServicesStart::kHere, ServicesStart::kOnCluster}) {
    for (const Program program :
         {Program::kPpo, Program::kSft, Program::kDpo, Program::kRewardModel, Program::kEvaluate}) {
      const absl::Status status = CheckInputs(config_, program, start);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST_F(CheckInputsTest, RefusesAModelOfACheckpointOfWhichABitIsFlipped) {
  WriteModel("step_3/policy", HeadKind::kVocabulary);
  CheckpointRecord record;
  record.step = 3;
  record.rollout_batch_size = 1;
  const auto models = HashModels(InScratch("step_3"));
  ASSERT_TRUE(models.ok()) << models.status();
  record.models = *models;
  ASSERT_TRUE(WriteCheckpointRecord(InScratch("step_3"), record).ok());
  config_.mutable_actor()->set_pretrain(InScratch("step_3/policy"));
  EXPECT_EQ(Error(), "");
  const std::string file = InScratch("step_3/policy/model.safetensors");
  {
    std::fstream weights(file, std::ios::in | std::ios::out | std::ios::binary);
    weights.seekg(-1, std::ios::end);
    const auto last = static_cast<char>(weights.get() ^ 1);
    weights.seekp(-1, std::ios::end);
    weights.put(last);
  }
  EXPECT_EQ(Error(), absl::StrCat("actor.pretrain: ", file, ": does not have the bytes that it had when it was saved"));
}

TEST_F(CheckInputsTest, NamesTheOptionOfAFolderThatDoesNotExist) {
  config_.mutable_actor()->set_pretrain(InScratch("Qwen/Qwen2.5-0.5B"));
  for (const ServicesStart start : {ServicesStart::kByOthers, ServicesStart::kHere, ServicesStart::kOnCluster}) {
    EXPECT_EQ(Error(start),
              absl::StrCat("actor.pretrain: the folder ", InScratch("Qwen/Qwen2.5-0.5B"),
                           " does not exist; names of a model hub are not resolved: download the model and give its "
                           "folder (relative paths start at ",
                           fs::current_path().string(), ")"));
  }
  config_.mutable_actor()->set_pretrain(InScratch("model"));
  config_.mutable_critic()->set_pretrain(InScratch("no_critic"));
  EXPECT_THAT(Error(), StartsWith("critic.pretrain: the folder "));
  EXPECT_EQ(Error(ServicesStart::kByOthers), "") << "a critic trainer that runs already may have it";
}

TEST_F(CheckInputsTest, SaysHowWeightsAreConverted) {
  fs::rename(InScratch("model/model.safetensors"), InScratch("model/pytorch_model.bin"));
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.pretrain: "), HasSubstr("pytorch_model.bin"),
                             HasSubstr("safe_serialization=True")));
}

TEST_F(CheckInputsTest, NamesTheOptionOfAFolderThatIsNoModel) {
  fs::remove(InScratch("model/config.json"));
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.pretrain: "), HasSubstr("/model/config.json does not exist")));
}

TEST_F(CheckInputsTest, NamesTheModelsInAFolderOfCheckpoints) {
  const std::string step = InScratch("run/checkpoints/step_3");
  for (const char* model : {"/policy", "/critic"}) {
    fs::create_directories(step + model);
    fs::copy(InScratch("model"), step + model);
  }
  fs::create_directory_symlink("step_3", InScratch("run/checkpoints/latest"));
  for (const auto& [given, found] :
       {std::pair("run", "run/checkpoints/latest/"), std::pair("run/checkpoints", "run/checkpoints/latest/"),
        std::pair("run/checkpoints/latest", "run/checkpoints/latest/"),
        std::pair("run/checkpoints/step_3", "run/checkpoints/step_3/")}) {
    config_.mutable_actor()->set_pretrain(InScratch(given));
    EXPECT_THAT(
        Error(),
        AllOf(StartsWith("actor.pretrain: "), HasSubstr(InScratch(given) + "/config.json does not exist"),
              HasSubstr("there is one in " + InScratch(found) + "policy, and in " + InScratch(found) + "critic")));
  }
}

TEST_F(CheckInputsTest, SaysHowARewardModelHasOneLabel) {
  std::string config = scratch_.Read("reward/config.json");
  const std::string one = "\"LABEL_0\"\n";
  ASSERT_NE(config.find(one), std::string::npos) << config;
  fs::remove(InScratch("reward/config.json"));
  scratch_.Write("reward/config.json", config.replace(config.find(one), one.size(), "\"bad\", \"1\": \"good\"\n"));
  EXPECT_THAT(Error(), AllOf(StartsWith("reward.source[0].model: "), HasSubstr("/reward/config.json: id2label is "),
                             HasSubstr("num_labels=1")));
  // A model without a scalar head.
  config_.mutable_reward()->mutable_source(0)->set_model(InScratch("model"));
  EXPECT_THAT(Error(), AllOf(StartsWith("reward.source[0].model: "), HasSubstr("no tensor score.weight"),
                             HasSubstr("num_labels=1")));
}

TEST_F(CheckInputsTest, ReadsAHeadByItsName) {
  ModelConfig named = TinyModel();
  named.scalar_head = "value_head";
  WriteModel("named", HeadKind::kScalar, named);
  config_.mutable_reward()->mutable_source(0)->set_model(InScratch("named"));
  EXPECT_EQ(Error(), "");
  config_.mutable_reward()->mutable_source(0)->set_value_head_prefix("other");
  EXPECT_THAT(Error(), AllOf(StartsWith("reward.source[0].model: "), HasSubstr("no tensor other.weight")));
}

TEST_F(CheckInputsTest, RefusesARewardModelWithoutTheScaleThatIsAskedFor) {
  config_.mutable_reward()->mutable_source(0)->set_normalize_reward(true);
  EXPECT_THAT(Error(), AllOf(StartsWith("reward.source[0].normalize_reward: "),
                             HasSubstr("/reward/config.json has no number \"mean\"")));
  nlohmann::json config = nlohmann::json::parse(scratch_.Read("reward/config.json"));
  config.update({{"mean", 0.5}, {"std", 2}});
  fs::remove(InScratch("reward/config.json"));
  scratch_.Write("reward/config.json", config.dump());
  EXPECT_EQ(Error(), "");
}

TEST_F(CheckInputsTest, RefusesABiasOfAHead) {
  // Everything of the reward model, and a bias.
  const std::string file = InScratch("reward/model.safetensors");
  const auto reader = *CheckpointReader::OpenFile(file);
  std::vector<SafetensorsWriter::Entry> entries = {{"score.bias", Dtype::kF32, {1}}};
  for (const auto& [name, tensor] : reader->tensors()) entries.push_back({name, tensor.dtype, tensor.shape});
  fs::create_directory(InScratch("biased"));
  fs::copy_file(InScratch("reward/config.json"), InScratch("biased/config.json"));
  const auto writer = *SafetensorsWriter::Create(InScratch("biased/model.safetensors"), entries);
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    const auto tensor = reader->tensors().find(entries[i].name);
    std::string bytes(tensor == reader->tensors().end() ? 4 : tensor->second.bytes, '\0');
    if (tensor != reader->tensors().end()) {
      ASSERT_TRUE(reader->ReadRange(tensor->first, 0, tensor->second.numel(), bytes.data()).ok());
    }
    ASSERT_TRUE(writer->Write(i, 0, bytes.data(), bytes.size()).ok());
  }
  ASSERT_TRUE(writer->Close().ok());
  const std::string said = ": the head has a bias, score.bias; a scalar head has none (bias=False)";
  config_.mutable_reward()->mutable_source(0)->set_model(InScratch("biased"));
  EXPECT_EQ(Error(), absl::StrCat("reward.source[0].model: ", InScratch("biased"), said));
  config_.mutable_reward()->mutable_source(0)->set_model(InScratch("reward"));
  config_.mutable_critic()->set_pretrain(InScratch("biased"));
  EXPECT_EQ(Error(), absl::StrCat("critic.pretrain: ", InScratch("biased"), said));
}

TEST_F(CheckInputsTest, RefusesATrainedHeadOfANameThatTheClassDoesNotFollow) {
  ModelConfig named = TinyModel();
  named.scalar_head = "value_head";
  WriteModel("named", HeadKind::kScalar, named);
  const std::string of_openrlhf = scratch_.Read("named/config.json");
  for (const std::string architecture : {"MistralForSequenceClassification", "MistralForCausalLM"}) {
    SCOPED_TRACE(architecture);
    nlohmann::json config = nlohmann::json::parse(of_openrlhf);
    ASSERT_EQ(config["architectures"], nlohmann::json({"RewardModel"}));
    config["architectures"] = {architecture};
    fs::remove(InScratch("named/config.json"));
    scratch_.Write("named/config.json", config.dump());
    const std::string said =
        "/named/config.json: value_head_prefix is \"value_head\", and the weights have "
        "value_head.weight and no score.weight";
    config_.mutable_critic()->set_pretrain(InScratch("named"));
    EXPECT_THAT(Error(), AllOf(StartsWith("critic.pretrain: "), HasSubstr(said)));
    config_.mutable_critic()->set_pretrain(InScratch("model"));
    config_.mutable_reward()->mutable_source(0)->set_model(InScratch("named"));
    EXPECT_THAT(Error(), AllOf(StartsWith("reward.source[0].model: "), HasSubstr(said)));
    // The option comes before either.
    config_.mutable_reward()->mutable_source(0)->set_value_head_prefix("value_head");
    EXPECT_EQ(Error(), "");
    config_.mutable_reward()->mutable_source(0)->clear_value_head_prefix();
    config_.mutable_reward()->mutable_source(0)->set_model(InScratch("reward"));
  }
}

TEST_F(CheckInputsTest, RefusesACriticAsALanguageModel) {
  config_.mutable_actor()->set_pretrain(InScratch("reward"));
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.pretrain: "), HasSubstr("/reward/config.json: architectures"),
                             HasSubstr("MistralForCausalLM")));
}

TEST_F(CheckInputsTest, RefusesACriticThatHasLostItsHead) {
  fs::copy_file(InScratch("model/model.safetensors"), InScratch("reward/model.safetensors"),
                fs::copy_options::overwrite_existing);
  config_.mutable_critic()->set_pretrain(InScratch("reward"));
  EXPECT_THAT(Error(), AllOf(StartsWith("critic.pretrain: "), HasSubstr("no tensor score.weight"),
                             HasSubstr("config.json says")));
}

TEST_F(CheckInputsTest, NamesATensorOfAnotherShape) {
  ModelConfig wide = TinyModel();
  wide.intermediate_size = 24;
  WriteModel("wide", HeadKind::kVocabulary, wide);
  fs::copy_file(InScratch("wide/model.safetensors"), InScratch("model/model.safetensors"),
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.pretrain: "), HasSubstr("mlp."), HasSubstr("has shape [24, 8]"),
                             HasSubstr("the model needs [16, 8]")));
}

TEST_F(CheckInputsTest, NamesModelsOfDifferentVocabularies) {
  ModelConfig small = TinyModel();
  small.vocab_size = 24;
  WriteModel("critic", HeadKind::kScalar, small);
  config_.mutable_critic()->set_pretrain(InScratch("critic"));
  EXPECT_THAT(Error(), AllOf(StartsWith("critic.pretrain: "), HasSubstr("24"), HasSubstr("32")));
}

TEST_F(CheckInputsTest, TakesModelsOfOneTokenizerWhateverTheirPadding) {
  ModelConfig padded = TinyModel();
  padded.vocab_size = 48;
  WriteModel("critic", HeadKind::kScalar, padded);
  for (const char* name : {"model", "reward", "critic"}) WriteLettersTokenizer(InScratch(name), 30);
  config_.mutable_critic()->set_pretrain(InScratch("critic"));
  EXPECT_EQ(Error(), "");
  // But for the rollout, which is given the actor's weights.
  WriteModel("padded", HeadKind::kVocabulary, padded);
  WriteLettersTokenizer(InScratch("padded"), 30);
  config_.mutable_rollout()->set_pretrain(InScratch("padded"));
  EXPECT_THAT(Error(), AllOf(StartsWith("rollout.pretrain: vocab_size in "), HasSubstr("/padded/config.json is 48"),
                             HasSubstr("/model, is 32; they must be equal")));
  config_.mutable_rollout()->set_pretrain(InScratch("model"));
  WriteLettersTokenizer(InScratch("critic"), 31);
  EXPECT_THAT(Error(), AllOf(StartsWith("critic.pretrain: "), HasSubstr("another tokenizer")));
}

TEST_F(CheckInputsTest, NamesInWhatTheRolloutsModelIsAnotherThanTheActors) {
  const auto error_with = [this](const auto& change) {
    ModelConfig other = TinyModel();
    change(&other);
    WriteModel("other", HeadKind::kVocabulary, other);
    config_.mutable_rollout()->set_pretrain(InScratch("other"));
    return Error();
  };
  EXPECT_THAT(error_with([](ModelConfig* other) { other->intermediate_size = 24; }),
              AllOf(StartsWith("rollout.pretrain: intermediate_size in "), HasSubstr("/other/config.json is 24"),
                    HasSubstr("/model, is 16; they must be equal")));
  EXPECT_THAT(error_with([](ModelConfig* other) { other->rope_theta = 500; }),
              AllOf(StartsWith("rollout.pretrain: rope_theta in "), HasSubstr(" is 500.0,")))
      << "which no tensor's shape tells";
  EXPECT_EQ(error_with([](ModelConfig* other) {
              other->eos_token_ids = {3};
              other->max_position_embeddings = 640;
            }),
            "")
      << "another end token changes nothing of the weights";
}

TEST_F(CheckInputsTest, NamesALengthBeyondTheModelsWindow) {
  ModelConfig windowed = TinyModel();
  windowed.sliding_window = 12;
  WriteModel("windowed", HeadKind::kVocabulary, windowed);
  config_.mutable_actor()->set_pretrain(InScratch("windowed"));
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.max_len is 16; at most 12"), HasSubstr("sliding_window")));
}

TEST_F(CheckInputsTest, NamesALengthBeyondThePositionsThatTheRolloutMayUse) {
  config_.mutable_rollout()->set_max_model_len(65);
  EXPECT_THAT(Error(), AllOf(StartsWith("rollout.max_model_len is 65; at most 64 is allowed"),
                             HasSubstr("max_position_embeddings")));
  EXPECT_TRUE(CheckInputs(config_, Program::kSft, ServicesStart::kHere).ok());
}

TEST_F(CheckInputsTest, NamesACacheThatHoldsNoSequenceOfTheGreatestLength) {
  // Keys and values of one layer with 2 heads of 4 elements, in bf16: 32 bytes a token.
  config_.mutable_rollout()->set_kv_cache_bytes(16 * 32);
  EXPECT_EQ(Error(), "");
  config_.mutable_rollout()->set_kv_cache_bytes(16 * 32 - 1);
  EXPECT_THAT(Error(), AllOf(StartsWith("rollout.kv_cache_bytes is 511; a sequence of 16 tokens"),
                             HasSubstr("takes 512 bytes in blocks of 16 tokens")));
  config_.mutable_rollout()->set_max_model_len(0);
  config_.mutable_rollout()->mutable_http()->set_listen("127.0.0.1:0");
  EXPECT_THAT(Error(), StartsWith("rollout.kv_cache_bytes is 511; a sequence of 16 tokens"));
}

TEST_F(CheckInputsTest, LooksAtWhatServicesLoadThatAreStartedAlone) {
  fs::rename(InScratch("model/model.safetensors"), InScratch("model/pytorch_model.bin"));
  EXPECT_THAT(std::string(CheckInputs(config_, Program::kEvaluate, ServicesStart::kHere).message()),
              AllOf(StartsWith("rollout.pretrain: "), HasSubstr("pytorch_model.bin")));
}

TEST_F(CheckInputsTest, ReadsOfModelsThatAreOnlyPlannedTheirConfigurationAlone) {
  fs::remove(InScratch("model/model.safetensors"));
  fs::remove(InScratch("reward/model.safetensors"));
  EXPECT_TRUE(CheckModelConfigs(config_, kServiceNames).ok());
  config_.mutable_critic()->set_pretrain(InScratch("no_critic"));
  EXPECT_THAT(std::string(CheckModelConfigs(config_, kServiceNames).message()),
              StartsWith("critic.pretrain: the folder "));
  EXPECT_TRUE(CheckModelConfigs(config_, {"rollout", "policy_trainer"}).ok());
}

TEST_F(CheckInputsTest, NamesAnAddressThatIsInUse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string taken = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  config_.mutable_services()->mutable_scorer()->set_listen(taken);
  EXPECT_THAT(Error(), AllOf(StartsWith("services.scorer.listen: cannot listen on " + taken),
                             HasSubstr("in use by another process")));
  EXPECT_EQ(Error(ServicesStart::kByOthers), "") << "the scorer may be what listens there";
  config_.mutable_services()->mutable_scorer()->set_listen("127.0.0.1:0");
  config_.mutable_rollout()->mutable_http()->set_listen(taken);
  EXPECT_THAT(Error(), StartsWith("rollout.http.listen: cannot listen on " + taken));
  close(fd);
  EXPECT_EQ(Error(), "");
  config_.mutable_services()->mutable_rollout()->set_listen(taken);
  EXPECT_THAT(Error(), StartsWith("rollout.http.listen and services.rollout.listen are both " + taken));
}

TEST_F(CheckInputsTest, NamesAModelThatCannotBeDivided) {
  config_.mutable_rollout()->set_tensor_parallel_size(3);
  EXPECT_EQ(Error(),
            "rollout.tensor_parallel_size: 3 is not allowed; it must divide services.rollout.ranks, which is 1");
  config_.mutable_services()->mutable_rollout()->set_ranks(3);
  EXPECT_THAT(Error(), AllOf(StartsWith("rollout.tensor_parallel_size: "), HasSubstr("num_attention_heads is 2")));
}

TEST_F(CheckInputsTest, NamesAShardSizeThatLeavesRanksOver) {
  config_.mutable_services()->mutable_policy_trainer()->set_ranks(4);
  config_.mutable_actor()->set_shard_size(3);
  EXPECT_EQ(Error(), "actor.shard_size: 3 is not allowed; it must divide services.policy_trainer.ranks, which is 4");
}

// Where they wait in a queue before they could say it themselves.
TEST_F(CheckInputsTest, LooksAtWhatServicesWillLoadThatAClusterStarts) {
  config_.mutable_critic()->set_pretrain(InScratch("nowhere"));
  EXPECT_THAT(Error(ServicesStart::kOnCluster), StartsWith("critic.pretrain: "));
  config_.mutable_critic()->set_pretrain(InScratch("model"));
  config_.mutable_services()->mutable_scorer()->set_ranks(3);
  config_.mutable_services()->mutable_scorer()->set_listen("127.0.0.1:1");  // for another host to say
  EXPECT_EQ(Error(ServicesStart::kOnCluster), "");
  config_.mutable_rollout()->set_tensor_parallel_size(3);
  EXPECT_THAT(Error(ServicesStart::kOnCluster), StartsWith("rollout.tensor_parallel_size: 3 is not allowed"));
}

TEST_F(CheckInputsTest, NamesTheOptionWithWhichATrainingStateCannotBeGoneOnFrom) {
  WriteTrainingState(InScratch("state"), 3);
  config_.mutable_actor()->set_load_checkpoint(InScratch("state"));
  EXPECT_EQ(Error(), "");
  config_.mutable_actor()->set_optim("sgd");
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.optim: \"sgd\" is not allowed"), HasSubstr("set it to \"adam\"")));
  config_.mutable_actor()->set_optim("adam");
  config_.mutable_actor()->set_ema_decay(0.5);
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.ema_decay: only 0 is allowed"), HasSubstr("(it has master)")));
  config_.mutable_actor()->set_ema_decay(0);
  config_.mutable_actor()->mutable_lora();
  ASSERT_TRUE(ResolveRunConfig(&config_, "").ok());
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.lora: a value is not allowed"), HasSubstr("which is of a whole model")));
}

TEST_F(CheckInputsTest, NamesTheOptionsOfFilesThatAreNotThere) {
  config_.mutable_actor()->set_load_checkpoint(InScratch("no_state"));
  EXPECT_THAT(Error(), AllOf(StartsWith("actor.load_checkpoint: "), HasSubstr("/no_state")));
  config_.mutable_actor()->clear_load_checkpoint();
  config_.mutable_rollout()->mutable_http()->set_api_key_file(InScratch("no_key"));
  EXPECT_EQ(Error(), absl::StrCat("rollout.http.api_key_file: cannot open ", InScratch("no_key"),
                                  ": No such file or directory"));
  TlsConfig* tls = config_.mutable_tls();
  tls->set_ca_file(scratch_.Write("ca.pem", ""));
  tls->set_cert_file(InScratch("no_cert.pem"));
  tls->set_key_file(InScratch("no_key.pem"));
  for (const ServicesStart start : {ServicesStart::kByOthers, ServicesStart::kHere, ServicesStart::kOnCluster}) {
    EXPECT_EQ(Error(start),
              absl::StrCat("tls.cert_file: cannot open ", InScratch("no_cert.pem"), ": No such file or directory"));
  }
}

TEST_F(CheckInputsTest, NamesTheServiceWhoseDeviceIsNotThere) {
  config_.mutable_services()->mutable_scorer()->set_device("cuda");
  config_.mutable_services()->mutable_scorer()->set_ranks(1000);
  EXPECT_THAT(Error(), StartsWith("services.scorer."));
  EXPECT_THAT(Error(), HasSubstr("cuda"));
}

TEST(CheckBatch, RefusesMorePromptsThanThereAre) {
  RunConfig config;
  config.mutable_data()->add_prompt_data("/data/prompts.jsonl");
  config.mutable_rollout()->set_rollout_batch_size(128);
  EXPECT_TRUE(CheckBatch(config, 128).ok());
  const absl::Status status = CheckBatch(config, 40);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("rollout.rollout_batch_size is 128, but there are 40 prompts (/data/prompts.jsonl)"),
                    HasSubstr("lower it to 40"), HasSubstr("n_samples_per_prompt")));
}

}  // namespace
}  // namespace quartet
