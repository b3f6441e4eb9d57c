#include "orchestrator/session/run_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"
#include "core/run_folder/testing/training_state.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// A run of fine-tuning up to its services, which run already.
class RunSessionTest : public ::testing::Test {
 protected:
  RunSessionTest() { WriteRows("one"); }
  ~RunSessionTest() override { std::fclose(terminal_); }

  void WriteRows(const std::string& text) { scratch_.Write("rows.jsonl", "{\"text\": \"" + text + "\"}\n"); }
  std::unique_ptr<RunSession> Session(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"run_dir=" + scratch_.path() + "/run", "train.train_batch_size=1",
                                         "actor.pretrain=core/tokenizer/testdata/byte_level",
                                         "sft.data=" + scratch_.path() + "/rows.jsonl"});
    return std::make_unique<RunSession>(Program::kSft, LoadRunConfig("", overrides, "", Program::kSft).value(),
                                        RunOptions(), view_, cancellation_);
  }
  // How the session's reading and opening end; `read` reads its rows before it.
  static absl::Status Start(
      RunSession& session, const std::function<absl::Status()>& read = [] { return absl::OkStatus(); }) {
    const absl::Status status = session.ReadInputs(read);
    if (!status.ok()) return status;
    const auto rows = Dataset::Open(
        {.option = "sft.data", .paths = {session.config().sft().data(0)}},
        [](const Record&) { return absl::OkStatus(); }, nullptr);
    return rows.ok() ? session.OpenFolder(RowInputs(**rows)) : rows.status();
  }
  // With a checkpoint after its first step.
  void MakeRun() {
    const auto session = Session({});
    ASSERT_EQ(Start(*session), absl::OkStatus());
    ASSERT_EQ(session->folder().BeginAfter(0), absl::OkStatus());
    ASSERT_EQ(session->folder().WriteMetrics(0, Metrics()), absl::OkStatus());
    CheckpointRecord record;
    record.step = 1;
    record.rollout_batch_size = 1;
    const std::string folder = session->folder().checkpoint_path("step_1");
    record.policy = WriteTrainingState(folder + "/policy_state", 1);
    ASSERT_EQ(WriteCheckpointRecord(folder, record), absl::OkStatus());
  }
  std::string Said() {
    std::rewind(terminal_);
    std::string text(100000, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), terminal_));
    return text;
  }

  const ScratchFolder scratch_;
  std::FILE* const terminal_ = std::tmpfile();
  TerminalView view_{terminal_, false};
  Cancellation cancellation_;
};

TEST_F(RunSessionTest, GivesWhatNoOtherTryMendsTheCodeOfWrongInput) {
  MakeRun();
  const auto code = [this](std::vector<std::string> overrides) {
    overrides.push_back("train.load_checkpoint=true");
    const absl::Status status = Start(*Session(std::move(overrides)));
    EXPECT_FALSE(status.ok());
    return status.code();
  };
  for (const char* other :
       {"seed=5", "train.train_batch_size=2", "sft.end_token=x", "actor.pretrain=core/tokenizer/testdata"}) {
    EXPECT_EQ(code({other}), absl::StatusCode::kInvalidArgument) << other;
  }
  EXPECT_EQ(code({"actor.load_checkpoint=" + scratch_.path() + "/another"}), absl::StatusCode::kInvalidArgument);
  for (const char* trained : {"actor.optim=sgd", "actor.ema_decay=0.5"}) {
    EXPECT_EQ(code({"actor.learning_rate=0.1", trained}), absl::StatusCode::kInvalidArgument) << trained;
  }
  WriteRows("another");
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  WriteRows("one");
  ASSERT_EQ(Start(*Session({"train.load_checkpoint=true"})), absl::OkStatus());
  const std::string begun = scratch_.Read("run/run.textproto");
  scratch_.Write("run/run.textproto", begun.substr(0, begun.size() / 2));
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  scratch_.Write("run/run.textproto", begun);
  scratch_.Write("run/checkpoints/step_1/policy_state/manifest.json", "{}");
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
}

TEST_F(RunSessionTest, GivesWhatAnotherTryMayMendAnotherCode) {
  MakeRun();
  const std::vector<std::string> again = {"train.load_checkpoint=true"};
  const auto first = Session(again);
  ASSERT_EQ(Start(*first), absl::OkStatus());
  EXPECT_EQ(Start(*Session(again)).code(), absl::StatusCode::kAborted) << "the folder is in use";
  for (const absl::Status& passing :
       {absl::UnavailableError("a disk"), absl::ResourceExhaustedError("out of memory"), absl::UnknownError("EIO")}) {
    EXPECT_EQ(Start(*Session({"run_dir=" + scratch_.path() + "/other"}), [&] { return passing; }), passing);
  }
}

TEST_F(RunSessionTest, RecordsThatARunWithoutACheckpointBeginsAnew) {
  const auto begin = [this] {
    const auto session = Session({"train.load_checkpoint=true"});
    ASSERT_EQ(Start(*session), absl::OkStatus());
    ASSERT_EQ(session->folder().BeginAfter(0), absl::OkStatus());
    session->Begin(3);
    ASSERT_EQ(session->folder().WriteMetrics(0, Metrics()), absl::OkStatus());
    EXPECT_EQ(session->End(absl::InternalError("it broke")).code(), absl::StatusCode::kInternal);
  };
  begin();
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/run/events.jsonl")) << "it is new";
  begin();
  EXPECT_THAT(scratch_.Read("run/events.jsonl"),
              ContainsRegex("^[^\n]*\"kind\":\"restart\"[^\n]*begins anew[^\n]*\n$"));
}

TEST_F(RunSessionTest, OfARunThatGoesOnRecordsWhatItWarnsOfAtTheStepThatItIsAt) {
  MakeRun();
  const auto session = Session({"train.load_checkpoint=true"});
  ASSERT_EQ(Start(*session), absl::OkStatus());
  ASSERT_EQ(session->folder().BeginAfter(1), absl::OkStatus());
  session->Begin(3);
  session->Warn("of all of it");
  EXPECT_THAT(scratch_.Read("run/events.jsonl"),
              ContainsRegex("\"step\":1,\"kind\":\"restart\"[^\n]*the run goes on after step 1[^\n]*\n"
                            "[^\n]*\"step\":1,\"kind\":\"warning\"[^\n]*of all of it"));
  EXPECT_EQ(session->End(absl::OkStatus()), absl::OkStatus());
}

TEST_F(RunSessionTest, WarnsOfADateThatNoTemplateWrites) {
  const std::vector<std::string> plain = {
      "data.apply_chat_template=true", "data.template_date=2024-02-29",
      "data.tokenizer_chat_template=" + scratch_.Write("plain.jinja", "{{ messages[0].content }}")};
  ASSERT_EQ(Start(*Session(plain)), absl::OkStatus());
  EXPECT_THAT(Said(), HasSubstr("warning: data.template_date is 2024-02-29, and the chat template"));
}

class TemplateDateTest : public ::testing::Test {
 protected:
  TemplateDateTest() {
    config_.set_run_dir(scratch_.path() + "/run");
    config_.mutable_actor()->set_pretrain("core/tokenizer/testdata/byte_level");
    config_.mutable_data()->set_apply_chat_template(true);
    config_.mutable_data()->set_tokenizer_chat_template(
        scratch_.Write("dated.jinja", "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}"));
  }
  // What the model reads of a run that begins, or goes on, on this day.
  static std::string Text(absl::CivilDay today, RunConfig* config, bool continues = true) {
    const auto tokenizer = LoadTokenizerOfRun("actor", continues, today, config);
    if (!tokenizer.ok()) return std::string(tokenizer.status().message());
    return (*tokenizer)->ApplyChatTemplate({MakeChatMessage("user", "hi")}, true).value();
  }
  // The run has begun with `config`.
  void Begin(const RunConfig& config) { scratch_.Write("run/run.textproto", PrintRunConfig(config)); }

  const absl::CivilDay first_{2025, 12, 31}, second_{2026, 1, 1};
  const ScratchFolder scratch_;
  RunConfig config_;
};

TEST_F(TemplateDateTest, StaysThatOfTheFirstDay) {
  RunConfig begun = config_;
  EXPECT_EQ(Text(first_, &begun), "31 Dec 2025: hi");
  EXPECT_EQ(begun.data().template_date(), "2025-12-31");
  Begin(begun);
  RunConfig again = config_;
  again.mutable_train()->set_load_checkpoint(true);
  EXPECT_EQ(Text(second_, &again), "31 Dec 2025: hi");
  EXPECT_EQ(again.data().template_date(), "2025-12-31") << "for run.textproto, which is written anew";
}

TEST_F(TemplateDateTest, OfARunThatIsNotContinuedIsItsOwn) {
  RunConfig begun = config_;
  EXPECT_EQ(Text(first_, &begun), "31 Dec 2025: hi");
  Begin(begun);
  RunConfig anew = config_;
  EXPECT_EQ(Text(second_, &anew), "01 Jan 2026: hi");
  RunConfig evaluated = config_;
  evaluated.mutable_train()->set_load_checkpoint(true);
  EXPECT_EQ(Text(second_, &evaluated, /*continues=*/false), "01 Jan 2026: hi");
}

TEST_F(TemplateDateTest, IsWhatTheConfigurationSays) {
  config_.mutable_data()->set_template_date("2024-02-29");
  EXPECT_EQ(Text(first_, &config_), "29 Feb 2024: hi");
  EXPECT_EQ(config_.data().template_date(), "2024-02-29");
}

TEST_F(TemplateDateTest, IsOfNoConfigurationWhoseTemplateWritesNone) {
  RunConfig plain = config_;
  plain.mutable_data()->set_apply_chat_template(false);
  ASSERT_TRUE(LoadTokenizerOfRun("actor", true, first_, &plain).ok());
  EXPECT_EQ(plain.data().template_date(), "");
  config_.mutable_data()->set_tokenizer_chat_template(scratch_.Write("plain.jinja", "{{ messages[0].content }}"));
  EXPECT_EQ(Text(first_, &config_), "hi");
  EXPECT_EQ(config_.data().template_date(), "");
}

TEST_F(RunSessionTest, SaysWhichStepsOfARunThatGoesOnAreNotRecordedAnyMore) {
  MakeRun();
  const auto begin = [this](const std::string& metrics) {
    scratch_.Write("run/metrics.jsonl", metrics);
    const auto session = Session({"train.load_checkpoint=true"});
    ASSERT_EQ(Start(*session), absl::OkStatus());
    ASSERT_EQ(session->folder().BeginAfter(1), absl::OkStatus());
    session->Begin(2);
    EXPECT_EQ(session->End(absl::OkStatus()), absl::OkStatus());
  };
  begin("{\"step\":0}\n");
  EXPECT_THAT(Said(), Not(HasSubstr("no lines")));
  begin("{\"step\":0\n");
  EXPECT_THAT(Said(), HasSubstr("/run/metrics.jsonl has no lines of steps 1, which the run has made"));
  EXPECT_THAT(scratch_.Read("run/events.jsonl"), HasSubstr("has no lines of steps 1"));
}

TEST_F(RunSessionTest, AnEvaluationRecordsWhatAnEvaluationReadsAlone) {
  const RunConfig config = LoadRunConfig("",
                                         {"run_dir=" + scratch_.path() + "/run", "rollout.generate_max_len=9",
                                          "actor.pretrain=core/tokenizer/testdata/byte_level"},
                                         "", Program::kEvaluate)
                               .value();
  RunSession session(Program::kEvaluate, config, {.origins = {{"rollout.generate_max_len", "--set"}}}, view_,
                     cancellation_);
  ASSERT_EQ(session.ReadInputs([] { return absl::OkStatus(); }), absl::OkStatus());
  ASSERT_EQ(session.OpenFolder({}), absl::OkStatus());
  ASSERT_EQ(session.folder().BeginAfter(0), absl::OkStatus());
  const std::string record = scratch_.Read("run/run.textproto");
  EXPECT_THAT(record, AllOf(HasSubstr("generate_max_len: 9  # --set\n"), HasSubstr("temperature: 0  # default 0\n")));
  for (const char* unread :
       {"learning_rate", "critic_trainer", "advantage_estimator", "max_steps", "rollout_batch_size"}) {
    EXPECT_THAT(record, Not(HasSubstr(unread)));
  }
}

}  // namespace
}  // namespace quartet
