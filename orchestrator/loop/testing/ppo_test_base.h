// What tests of the PPO loop share: a run on services with scripted answers, over real sockets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "core/base/fail_point.h"
#include "core/base/testing/scratch_folder.h"
#include "core/checkpoint/state_folder.h"
#include "core/clients/testing/byte_tokenizer.h"
#include "core/clients/testing/fake_services.h"
#include "core/run_folder/run_start.h"
#include "orchestrator/answers/rollout_answers.h"
#include "orchestrator/loop/ppo.h"

namespace quartet {

class PpoTest : public ::testing::Test {
 protected:
  PpoTest() {
    services_.SetCheckpointRoot(scratch_.path() + "/run/checkpoints");
    terminal_ = open_memstream(&shown_, &shown_size_);
  }
  ~PpoTest() override {
    std::fclose(terminal_);
    std::free(shown_);
    EXPECT_TRUE(SetFailPoints("").ok());
  }

  // As TrainByPpo does, on services that were started with `config`; with `resume`, after that checkpoint.
  absl::StatusOr<PpoSummary> Run(const RunConfig& config,
                                 const std::optional<CheckpointRecord>& resume = std::nullopt) {
    const absl::StatusOr<std::unique_ptr<Prompts>> prompts = Prompts::Open(config, tokenizer_);
    if (!prompts.ok()) return prompts.status();
    const absl::StatusOr<std::vector<EvaluationSet>> evaluation_sets = LoadEvaluationSets(config, tokenizer_);
    if (!evaluation_sets.ok()) return evaluation_sets.status();
    absl::StatusOr<RunStart> start = OpenRun(config, "", {}, [] { return absl::OkStatus(); });
    if (!start.ok()) return start.status();
    services_.SetConfiguration(config);
    absl::StatusOr<Services> clients = ConnectServices(config, &cancellation_);
    if (!clients.ok()) return clients.status();
    std::unique_ptr<AdvantageProgram> advantages;
    if (config.algorithm().advantage_estimator() == "command") {
      absl::StatusOr<std::unique_ptr<AdvantageProgram>> started = AdvantageProgram::Start(config.algorithm());
      if (!started.ok()) return started.status();
      advantages = *std::move(started);
    }
    TerminalView view(terminal_, false);
    RolloutAnswers answers(clients->rollout.get(), &tokenizer_);
    return RunPpo({.config = config,
                   .tokenizer = tokenizer_,
                   .prompts = **prompts,
                   .evaluation_sets = *evaluation_sets,
                   .services = *clients,
                   .answers = answers,
                   .folder = *start->folder,
                   .view = view,
                   .resume = resume.has_value() ? resume : start->resume,
                   .advantages = advantages.get(),
                   .ending = ending_,
                   .ends_continuable = ends_continuable_,
                   .cancellation = told_});
  }

  std::vector<nlohmann::json> Lines(const std::string& name) {
    std::vector<nlohmann::json> lines;
    const std::string text = scratch_.Read(name);
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  // The lines that runs have shown.
  std::vector<std::string> Shown() {
    std::fflush(terminal_);
    return absl::StrSplit(absl::string_view(shown_, shown_size_), '\n', absl::SkipEmpty());
  }

  // What is in the run folder but for its lock, which each orchestrator writes.
  std::map<std::string, std::string> RunFolderContents() {
    std::map<std::string, std::string> contents = scratch_.Contents();
    contents.erase(std::string("run/") + kRunLockName);
    return contents;
  }

  // A run of `steps` steps that can be continued, with a checkpoint every other step.
  RunConfig MakeSavingConfig(int steps) {
    RunConfig config = services_.MakeConfig(scratch_.path(), steps);
    config.mutable_train()->set_save_steps(2);
    config.mutable_train()->set_save_optimizer(true);
    return config;
  }

  // A training state of `steps` optimizer steps, in a folder of its own.
  std::string WriteState(const std::string& name, int64_t steps) {
    std::string folder = scratch_.path() + "/" + name;
    std::filesystem::create_directories(folder);
    StateManifest manifest;
    manifest.optimizer_steps = steps;
    EXPECT_TRUE(WriteStateManifest(folder, manifest).ok());
    return folder;
  }

  // Where `call` first stands among the calls, after position `from`.
  static size_t Find(const std::vector<std::string>& calls, const std::string& call, size_t from) {
    return std::find(calls.begin() + static_cast<std::ptrdiff_t>(from), calls.end(), call) - calls.begin();
  }

  ScratchFolder scratch_;
  FakeServices services_;
  ByteTokenizer tokenizer_;
  Cancellation cancellation_;
  bool ends_continuable_ = false;
  std::function<absl::Status()> ending_ = [] { return absl::OkStatus(); };
  Cancellation* told_ = nullptr;  // as PpoRun::cancellation
  std::FILE* terminal_;

 private:
  char* shown_ = nullptr;
  size_t shown_size_ = 0;
};

}  // namespace quartet
