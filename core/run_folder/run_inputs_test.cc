#include "core/run_folder/run_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_replace.h"
#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"
#include "core/model/initialize.h"
#include "core/run_folder/continuation.h"
#include "core/run_folder/run_start.h"
#include "core/run_folder/testing/training_state.h"
#include "core/safetensors/writer.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RunInputsTest : public ::testing::Test {
 protected:
  RunInputsTest() {
    scratch_.Write("model/config.json", "{}");
    scratch_.Write("reward/config.json", "{}");
    WriteWeights("model", 1);
    WriteWeights("reward", 1);
    WriteRows("{\"q\": \"1\", \"a\": \"2\"}\n{\"q\": \"2\", \"a\": \"3\"}\n");
    config_ = LoadRunConfig("",
                            {"run_dir=" + scratch_.path() + "/run", "actor.pretrain=" + scratch_.path() + "/model",
                             "data.prompt_data=" + scratch_.path() + "/rows.jsonl",
                             "reward.source.0.model=" + scratch_.path() + "/reward"},
                            "")
                  .value();
  }

  // Two tensors; `value` is in the middle of one.
  void WriteWeights(const std::string& folder, float value) {
    auto writer = SafetensorsWriter::Create(scratch_.path() + "/" + folder + "/model.safetensors",
                                            {{"embed", Dtype::kF32, {100, 100}}, {"norm", Dtype::kF32, {3}}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::vector<float> embed(10000);
    embed[5000] = value;
    const float norm[3] = {1, 2, 3};
    ASSERT_TRUE((*writer)->Write(0, 0, embed.data(), embed.size() * sizeof(float)).ok());
    ASSERT_TRUE((*writer)->Write(1, 0, norm, sizeof(norm)).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }
  void WriteRows(const std::string& rows) { scratch_.Write("rows.jsonl", rows); }

  std::vector<RunInput> Inputs(
      int64_t checked_rows = 0, const Dataset::Use& check = [](const Record&) { return absl::OkStatus(); }) const {
    std::vector<RunInput> inputs = ModelInputs(config_);
    const auto rows = Dataset::Open({.option = "data.prompt_data",
                                     .paths = {scratch_.path() + "/rows.jsonl"},
                                     .checked_rows = checked_rows,
                                     .drop_malformed = true},
                                    check, nullptr);
    EXPECT_TRUE(rows.ok()) << rows.status();
    for (RunInput& input : RowInputs(**rows)) inputs.push_back(std::move(input));
    return inputs;
  }
  std::vector<std::string> ChangesSince(const std::vector<RunInput>& before) const {
    std::vector<std::string> changes;
    for (const ChangedInput& input : ChangedInputs(before, Inputs())) {
      changes.push_back(input.option + ": " + input.change);
    }
    return changes;
  }

  // With a checkpoint after its first step.
  void BeginRun() const {
    const auto start = OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); });
    ASSERT_TRUE(start.ok()) << start.status();
    ASSERT_TRUE(start->folder->BeginAfter(0).ok());
    CheckpointRecord record;
    record.step = 1;
    record.rollout_batch_size = 2;
    const std::string folder = start->folder->checkpoints_path() + "/step_1";
    record.policy = WriteTrainingState(folder + "/policy_state", 1);
    ASSERT_TRUE(WriteCheckpointRecord(folder, record).ok());
  }

  ScratchFolder scratch_;
  RunConfig config_;
};

TEST_F(RunInputsTest, AreTheSameWhereNothingHasChanged) {
  const auto read = ParseRunInputs(PrintRunInputs(Inputs()), "inputs.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->size(), 4) << "actor, reference, reward model, rows";
  EXPECT_THAT(ChangesSince(*read), IsEmpty());
  for (const char* text : {"", "{}", "{\"inputs\": []}", "[1]", "[{\"option\": \"a\", \"path\": \"b\"}]"}) {
    EXPECT_THAT(std::string(ParseRunInputs(text, "inputs.json").status().message()), HasSubstr("inputs.json")) << text;
  }
}

TEST_F(RunInputsTest, ThatWereAlteredAreKnown) {
  const std::string text = PrintRunInputs(Inputs());
  const std::string entry =
      text.substr(text.find("{\n      \"option\""), text.find("},\n    {") + 7 - text.find("{\n      \"option\""));
  for (const auto& [part, other] : std::vector<std::pair<std::string, std::string>>{
           {entry, ""}, {"actor.pretrain", "critic.pretrain"}, {"\"hashes\": {", "\"hashes\": {}, \"other\": {"}}) {
    ASSERT_THAT(text, HasSubstr(part));
    const absl::Status status = ParseRunInputs(absl::StrReplaceAll(text, {{part, other}}), "run/inputs.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << other;
    EXPECT_THAT(std::string(status.message()), HasSubstr("run/inputs.json: does not have the hash")) << other;
  }
}

// As a run of an earlier build has them.
TEST_F(RunInputsTest, AreReadWithoutAHash) {
  BeginRun();
  config_.mutable_train()->set_load_checkpoint(true);
  const std::string text = scratch_.Read("run/inputs.json");
  const size_t begin = text.find('['), end = text.rfind(']') + 1;
  scratch_.Write("run/inputs.json", text.substr(begin, end - begin) + "\n");
  const auto open = [&] { return OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); }); };
  const std::string note = "/run/inputs.json has no hash of its own";
  EXPECT_THAT(open()->notes, ElementsAre(HasSubstr(note)));
  WriteWeights("model", 2);
  EXPECT_THAT(std::string(open().status().message()), HasSubstr("has other weights"));
  WriteWeights("model", 1);
}

// Where it has none nothing else says that it is whole.
TEST_F(RunInputsTest, WithoutAHashLackNothingThatTheRunHas) {
  BeginRun();
  config_.mutable_train()->set_load_checkpoint(true);
  using Json = nlohmann::ordered_json;
  const std::string text = scratch_.Read("run/inputs.json");
  const Json whole = Json::parse(text).value("inputs", Json());
  ASSERT_EQ(whole.size(), 4) << text;
  const auto error = [&](const Json& list) {
    scratch_.Write("run/inputs.json", list.dump());
    const absl::Status status = OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); }).status();
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error(whole), "");
  EXPECT_THAT(error(Json::array()), HasSubstr("inputs.json: has nothing of actor.pretrain, /"));
  for (size_t i = 0; i < whole.size(); ++i) {
    const std::string of = " of " + std::string(whole[i]["option"]) + ", " + std::string(whole[i]["path"]);
    Json other = whole;
    other.erase(i);
    EXPECT_THAT(error(other), AllOf(HasSubstr("is not known: "), HasSubstr("inputs.json: has nothing" + of),
                                    HasSubstr("train.allow_changed_run=true")));
    other = whole;
    other[i]["hashes"].clear();
    EXPECT_THAT(error(other), HasSubstr("inputs.json: has no hash" + of));
  }
  EXPECT_THAT(std::string(whole[3]["option"]), "data.prompt_data");
  // What the run does not read now is not asked for: the configuration says that it changed.
  config_.mutable_data()->set_prompt_data(0, "/other.jsonl");
  Json without_rows = whole;
  without_rows.erase(3);
  scratch_.Write("run/inputs.json", without_rows.dump());
  EXPECT_THAT(
      std::string(OpenRun(config_, "", ModelInputs(config_), [] { return absl::OkStatus(); }).status().message()),
      AllOf(HasSubstr("cannot go on"), HasSubstr("data.prompt_data")));
}

TEST_F(RunInputsTest, OfAModelThatHasMoreFilesOrFewerAreOthers) {
  const std::vector<RunInput> before = Inputs();
  scratch_.Write("reward/chat_template.jinja", "{{ messages }}");
  EXPECT_THAT(ChangesSince(before), ElementsAre(HasSubstr("reward has a chat_template.jinja more than when the run")));
  const std::vector<RunInput> more = Inputs();
  std::filesystem::remove(scratch_.path() + "/reward/chat_template.jinja");
  EXPECT_THAT(ChangesSince(more), ElementsAre(HasSubstr("reward has a chat_template.jinja less than when")));
  std::filesystem::remove_all(scratch_.path() + "/reward");
  EXPECT_THAT(ChangesSince(more), IsEmpty()) << "it cannot be read from here";
}

TEST_F(RunInputsTest, SayWhatHasChangedUnderTheSameName) {
  const std::vector<RunInput> before = Inputs();
  WriteWeights("model", 2);
  const std::string change = "model has other weights than when the run began";
  EXPECT_THAT(ChangesSince(before), ElementsAre(AllOf(HasSubstr("actor.pretrain: /"), HasSubstr(change)),
                                                AllOf(HasSubstr("reference.pretrain: /"), HasSubstr(change))));
  WriteWeights("model", 1);
  scratch_.Write("reward/config.json", "{\"torch_dtype\": \"float32\"}");
  EXPECT_THAT(ChangesSince(before),
              ElementsAre(AllOf(HasSubstr("reward.source[0].model: /"), HasSubstr("reward has other config.json"))));
  scratch_.Write("reward/config.json", "{}");
  WriteRows("{\"q\": \"2\", \"a\": \"3\"}\n{\"q\": \"1\", \"a\": \"2\"}\n");
  EXPECT_THAT(ChangesSince(before),
              ElementsAre(AllOf(HasSubstr("data.prompt_data: /"), HasSubstr("rows.jsonl has other rows"))));
}

// As PEFT writes them, without a hash of their own of what they belong to.
TEST_F(RunInputsTest, OfAdaptersHaveTheWeightsOfTheirModel) {
  std::filesystem::copy("core/model/testdata/llama_lora", scratch_.path() + "/adapters");
  const auto config = nlohmann::json::parse(scratch_.Read("adapters/adapter_config.json"));
  std::filesystem::remove(scratch_.path() + "/adapters/adapter_config.json");
  scratch_.Write("adapters/adapter_config.json",
                 absl::StrReplaceAll(config.dump(), {{"core/model/testdata/llama\"", scratch_.path() + "/base\""}}));
  const ModelConfig llama = *ReadModelConfig("core/model/testdata/llama");
  const auto write = [&](uint64_t seed) {
    const std::string base = scratch_.path() + "/base";
    ASSERT_TRUE(WriteRandomModel(llama, HeadKind::kVocabulary, seed, Dtype::kF32, base).ok());
  };
  write(7);
  config_.mutable_reference()->set_pretrain(scratch_.path() + "/adapters");
  const std::vector<RunInput> before = Inputs();
  write(7);
  EXPECT_THAT(ChangesSince(before), IsEmpty());
  write(8);
  EXPECT_THAT(ChangesSince(before),
              ElementsAre(AllOf(HasSubstr("reference.pretrain: "),
                                HasSubstr("/adapters has other base weights or config.json than"))));
}

TEST_F(RunInputsTest, HaveTheChatTemplateOfAFileOfItsOwn) {
  config_.mutable_data()->set_apply_chat_template(true);
  config_.mutable_data()->set_tokenizer_chat_template(scratch_.Write("chat.jinja", "{{ messages }}"));
  const std::vector<RunInput> before = Inputs();
  EXPECT_THAT(ChangesSince(before), IsEmpty());
  scratch_.Write("chat.jinja", "<s>{{ messages }}");
  EXPECT_THAT(ChangesSince(before), ElementsAre(AllOf(HasSubstr("data.tokenizer_chat_template: /"),
                                                      HasSubstr("chat.jinja has other text than when the run began"))));
  EXPECT_TRUE(DecidesWhatIsLearned("data.tokenizer_chat_template"));
}

TEST_F(RunInputsTest, LetARunGoOnWithRowsThatWereMended) {
  const std::string good = "{\"q\": \"1\", \"a\": \"2\"}\n", bad = "{\"q\": \"1\", \"a\": \"two\"}\n";
  std::string others;
  for (int i = 0; i < 3; ++i) others += good;
  WriteRows(good + bad + others);
  const auto open = [&] { return OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); }); };
  {
    const auto start = open();
    ASSERT_TRUE(start.ok() && start->folder->BeginAfter(0).ok());
    CheckpointRecord record;
    record.step = 1;
    record.rollout_batch_size = 2;
    const std::string folder = start->folder->checkpoints_path() + "/step_1";
    record.policy = WriteTrainingState(folder + "/policy_state", 1);
    ASSERT_TRUE(WriteCheckpointRecord(folder, record).ok());
  }
  config_.mutable_train()->set_load_checkpoint(true);
  EXPECT_FALSE(open()->resume->rows_are_mended);
  WriteRows(good + good + others);
  // As often as the run is continued before its next checkpoint.
  for (int time = 0; time < 2; ++time) {
    const auto start = open();
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_THAT(start->notes, ElementsAre(AllOf(HasSubstr("data.prompt_data: /"),
                                                HasSubstr("rows.jsonl has rows that were changed since the run began, "
                                                          "the first row 2; the others are the same"))));
    EXPECT_TRUE(start->resume->rows_are_mended);
    ASSERT_TRUE(start->folder->BeginAfter(1).ok());
  }
  WriteRows(bad + good + others);
  EXPECT_THAT(std::string(open().status().message()), HasSubstr("rows.jsonl has other rows")) << "two of five";
  WriteRows(good + bad + others + good);
  EXPECT_THAT(std::string(open().status().message()), HasSubstr("rows.jsonl has other rows")) << "one more";
}

// It learns from none of them, so it goes on, and its checkpoint's prompts must still be the same.
TEST_F(RunInputsTest, LetARunGoOnWithOtherHeldOutRowsAndSaySo) {
  const auto open = [&] {
    std::vector<RunInput> inputs = Inputs();
    const auto rows = Dataset::Open(
        {.option = "eval.data", .paths = {scratch_.path() + "/held_out.jsonl"}},
        [](const Record&) { return absl::OkStatus(); }, nullptr);
    EXPECT_TRUE(rows.ok()) << rows.status();
    for (RunInput& input : RowInputs(**rows)) inputs.push_back(std::move(input));
    return OpenRun(config_, "", inputs, [] { return absl::OkStatus(); });
  };
  scratch_.Write("held_out.jsonl", "{\"q\": \"1\"}\n{\"q\": \"2\"}\n{\"q\": \"3\"}\n");
  {
    const auto start = open();
    ASSERT_TRUE(start.ok() && start->folder->BeginAfter(0).ok());
    CheckpointRecord record;
    record.step = 1;
    record.rollout_batch_size = 2;
    const std::string folder = start->folder->checkpoints_path() + "/step_1";
    record.policy = WriteTrainingState(folder + "/policy_state", 1);
    ASSERT_TRUE(WriteCheckpointRecord(folder, record).ok());
  }
  config_.mutable_train()->set_load_checkpoint(true);
  EXPECT_THAT(open()->notes, IsEmpty());
  scratch_.Write("held_out.jsonl", "{\"q\": \"1\"}\n{\"q\": \"two\"}\n{\"q\": \"3\"}\n");
  {
    const auto mended = open();
    ASSERT_TRUE(mended.ok()) << mended.status();
    EXPECT_THAT(mended->notes, ElementsAre(AllOf(HasSubstr("changed since the run began: eval.data: /"),
                                                 HasSubstr("held_out.jsonl has rows that were changed since the run "
                                                           "began, the first row 2; the others are the same"))));
    EXPECT_FALSE(mended->resume->rows_are_mended);
  }
  scratch_.Write("held_out.jsonl", "{\"q\": \"4\"}\n");
  const auto other = open();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(other->notes, ElementsAre(HasSubstr("held_out.jsonl has other rows than when the run began")));
}

TEST_F(RunInputsTest, KeepARunFromGoingOnWithOtherRowsInUseOfTheSameFile) {
  WriteRows("{\"q\": \"1\"}\n{\"q\": \"two\"}\n{\"q\": \"3\"}\n");
  const auto inputs = [&](int64_t checked_rows) {
    return Inputs(checked_rows, [](const Record& row) {
      return row.row == 2 ? absl::InvalidArgumentError("no number") : absl::OkStatus();
    });
  };
  const std::vector<RunInput> before = inputs(1);
  EXPECT_THAT(ChangedInputs(before, inputs(1)), IsEmpty());
  const std::vector<ChangedInput> changed = ChangedInputs(before, inputs(2));
  ASSERT_EQ(changed.size(), 1);
  EXPECT_EQ(changed[0].change, "the run uses 2 of the 3 rows of " + scratch_.path() +
                                   "/rows.jsonl, not 3 as when it began (data.checked_rows and data.skip_malformed "
                                   "decide it, too)");
  EXPECT_FALSE(changed[0].is_mended);
  EXPECT_THAT(std::string(ChangesOfRun(config_, config_, changed).status().message()),
              AllOf(HasSubstr("cannot go on"), HasSubstr("data.prompt_data: the run uses 2 of the 3 rows")));
}

TEST_F(RunInputsTest, KeepARunFromGoingOnWithOthers) {
  const auto open = [&] { return OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); }); };
  BeginRun();
  config_.mutable_train()->set_load_checkpoint(true);
  EXPECT_THAT(open()->notes, IsEmpty());
  EXPECT_TRUE(CheckChanges(config_, Inputs()).ok());

  WriteWeights("model", 2);
  EXPECT_EQ(CheckChanges(config_, Inputs()), open().status()) << "as who submits a job asks";
  EXPECT_THAT(
      std::string(open().status().message()),
      AllOf(HasSubstr("cannot go on"), HasSubstr("\n  actor.pretrain: /"),
            HasSubstr("model has other weights than when the run began"), HasSubstr("train.allow_changed_run=true")));
  config_.mutable_train()->set_allow_changed_run(true);
  EXPECT_THAT(open()->notes, ElementsAre(HasSubstr("actor.pretrain"), HasSubstr("reference.pretrain")));
  EXPECT_TRUE(CheckChanges(config_, Inputs()).ok());
  config_.mutable_train()->set_allow_changed_run(false);
  WriteWeights("model", 1);

  WriteWeights("reward", 2);
  EXPECT_THAT(open()->notes, ElementsAre(HasSubstr("has other weights"))) << "rewards may change";
  WriteWeights("reward", 1);

  WriteRows("{\"q\": \"1\", \"a\": \"2\"}\n");
  EXPECT_THAT(std::string(open().status().message()), HasSubstr("data.prompt_data: /"));

  std::filesystem::remove(scratch_.path() + "/run/inputs.json");
  EXPECT_THAT(open()->notes, ElementsAre(HasSubstr("is not known")));
}

TEST_F(RunInputsTest, ARunThatGoesOnRefusesWhatOnlyANewOneBeginsWith) {
  const auto open = [&] {
    const absl::Status status = OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); }).status();
    EXPECT_EQ(CheckChanges(config_, Inputs()), status) << "as who submits a job asks";
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const std::string first = scratch_.path() + "/first_state";
  config_.mutable_actor()->set_load_checkpoint(first);
  BeginRun();
  config_.mutable_train()->set_load_checkpoint(true);
  EXPECT_EQ(open(), "") << "it had it from its begin";
  config_.mutable_actor()->clear_load_checkpoint();
  EXPECT_EQ(open(), "");
  config_.mutable_actor()->set_load_checkpoint(scratch_.path() + "/run/checkpoints/step_1/../step_1/policy_state");
  EXPECT_EQ(open(), "") << "the one that it goes on with";
  config_.mutable_train()->set_allow_changed_run(true);
  config_.mutable_actor()->set_load_checkpoint("/another_state");
  EXPECT_THAT(open(), AllOf(HasSubstr("actor.load_checkpoint: /another_state would have no effect: the run in "),
                            HasSubstr("/run/checkpoints/step_1. Leave it out; or"), HasSubstr("another run_dir")));
  config_.mutable_actor()->set_load_checkpoint(first);
  config_.mutable_critic()->set_load_checkpoint(first);
  EXPECT_THAT(open(), HasSubstr("critic.load_checkpoint: " + first + " would have no effect"));
  config_.mutable_critic()->clear_load_checkpoint();

  KlConfig& kl = *config_.mutable_algorithm()->mutable_kl();
  const float begun = kl.init_kl_coef();
  kl.set_init_kl_coef(begun + 1);
  EXPECT_EQ(open(), "") << "it does not adapt";
  kl.set_kl_target(6);
  EXPECT_THAT(open(), AllOf(HasSubstr("algorithm.kl.init_kl_coef: 1.01 would have no effect"),
                            HasSubstr("Set it as it was, 0.01; or"), HasSubstr("algorithm.kl.kl_target=0")));
  kl.set_init_kl_coef(begun);
  EXPECT_EQ(open(), "");
}

TEST_F(RunInputsTest, ARunWithoutItsConfigurationGoesOnOnlyWhereItMayBeAnother) {
  const auto open = [&] { return OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); }); };
  BeginRun();
  std::filesystem::remove(scratch_.path() + "/run/run.textproto");
  EXPECT_THAT(
      std::string(open().status().message()),
      AllOf(HasSubstr("it has checkpoints/step_1); give a new folder; to continue its run: bring its "
                      "run.textproto back, which is missing (train.allow_changed_run=true does without it), then "
                      "--set=train.load_checkpoint=true"),
            Not(HasSubstr("remove this one"))));
  config_.mutable_train()->set_load_checkpoint(true);
  EXPECT_TRUE(CheckRunDir(config_, "").ok());
  EXPECT_THAT(std::string(open().status().message()),
              AllOf(HasSubstr("/run/run.textproto is missing, though " + scratch_.path() + "/run/checkpoints has"),
                    HasSubstr("train.allow_changed_run=true")));
  config_.mutable_train()->set_allow_changed_run(true);
  const auto start = open();
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_THAT(start->notes, ElementsAre(HasSubstr("run.textproto is missing")));
  ASSERT_TRUE(start->resume.has_value());
  ASSERT_TRUE(start->folder->BeginAfter(1).ok());
  EXPECT_THAT(scratch_.Read("run/run.textproto"), HasSubstr("allow_changed_run: true"));
}

TEST_F(RunInputsTest, AFileCutShortThatSaysHowTheRunBeganIsAnErrorUnlessItMayBeAnother) {
  const auto open = [&] { return OpenRun(config_, "", Inputs(), [] { return absl::OkStatus(); }); };
  BeginRun();
  config_.mutable_train()->set_load_checkpoint(true);
  for (const std::string name : {"run/inputs.json", "run/run.textproto"}) {
    const std::string text = scratch_.Read(name);
    // In the last line; after the last message; in the middle; after the first line.
    for (const size_t size : {text.size() - 3, text.rfind("\n}\n") + 3, text.size() / 2, size_t{45}}) {
      if (size >= text.size()) continue;
      scratch_.Write(name, text.substr(0, size));
      const absl::Status status = open().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << name << " " << size << " " << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("is not known: "), HasSubstr("/" + name), HasSubstr("train.allow_changed_run=true")));
      EXPECT_EQ(ConfigBefore(config_).has_value(), name != "run/run.textproto") << size;
    }
    config_.mutable_train()->set_allow_changed_run(true);
    EXPECT_THAT(open()->notes, ElementsAre(HasSubstr("is not known: ")));
    config_.mutable_train()->set_allow_changed_run(false);
    scratch_.Write(name, text);
    EXPECT_THAT(open()->notes, IsEmpty());
  }
  // Of a release that called a field otherwise.
  const std::string run = scratch_.Read("run/run.textproto");
  scratch_.Write("run/run.textproto", absl::StrReplaceAll(run, {{"max_steps: ", "num_steps: "}}));
  EXPECT_THAT(std::string(open().status().message()),
              AllOf(HasSubstr("num_steps"), HasSubstr("docs/migrating.md, \"Earlier versions\"")));
  scratch_.Write("run/run.textproto", run);
  // As release 0.1.0 wrote it.
  const std::string text = scratch_.Read("run/run.textproto");
  scratch_.Write("run/run.textproto", text.substr(text.find('\n') + 1, text.rfind("# end") - text.find('\n') - 1));
  EXPECT_THAT(open()->notes, IsEmpty());
}

}  // namespace
}  // namespace quartet
