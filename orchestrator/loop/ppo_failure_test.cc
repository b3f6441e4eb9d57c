// What the loop does where a service, a weight sync or a reply fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/fail_point.h"
#include "orchestrator/loop/ppo.h"
#include "orchestrator/loop/testing/ppo_test_base.h"
#include "proto/protocol_version.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using PpoFailureTest = PpoTest;

TEST_F(PpoFailureTest, EndsInAnErrorWhenAWeightSyncIsSuppressed) {
  ASSERT_TRUE(SetFailPoints("orchestrator.weight_sync.skip=trip@2").ok());
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 5));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("policy version 2 was asked for, but 1 is in use"));
  EXPECT_EQ(Lines("run/metrics.jsonl").size(), 2) << "no step was made of stale samples";
}

TEST_F(PpoFailureTest, EndsInAnErrorWhenTheLastWeightSyncIsSuppressed) {
  ASSERT_TRUE(SetFailPoints("orchestrator.weight_sync.skip=trip@2").ok());
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 2));
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("a weight sync was lost"));
}

TEST_F(PpoFailureTest, GivesUpAStagedVersionThatDoesNotVerify) {
  services_.SetHook([](const std::string& call) {
    return call == "rollout.BeginUpdate" ? grpc::Status(grpc::DATA_LOSS, "hash of model.norm.weight differs")
                                         : grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 2));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("model.norm.weight"));
  EXPECT_THAT(services_.calls(), Contains("rollout.AbortUpdate"));
}

TEST_F(PpoFailureTest, GivesUpWhatIsStagedWhereItIsNotCommitted) {
  services_.SetHook([](const std::string& call) {
    return call == "rollout.CommitUpdate" ? grpc::Status(grpc::INTERNAL, "it broke") : grpc::Status::OK;
  });
  const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 2)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it broke"));
  EXPECT_THAT(services_.calls(), Contains("rollout.AbortUpdate"));
}

TEST_F(PpoFailureTest, EndsBeforeTheFirstStepWhereTheRolloutIsPaused) {
  services_.SetPaused(true);
  const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rollout at "), HasSubstr("is paused"), HasSubstr("Rollout.Resume")));
  EXPECT_THAT(services_.calls(), Not(Contains("rollout.Generate")));
}

TEST_F(PpoFailureTest, WakesNoRolloutThatSleepsByNoWishOfTheRun) {
  services_.SetPaused(true, /*asleep=*/true);
  const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 1)).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("is paused"));
}

TEST_F(PpoFailureTest, LetsTheRolloutAnswerOthersWhereItFailsToTakeWeightsAfterItsSleep) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 2);
  config.mutable_rollout()->set_enable_sleep(true);
  services_.SetHook([](const std::string& call) {
    return call == "rollout.BeginUpdate" ? grpc::Status(grpc::DATA_LOSS, "it is garbled") : grpc::Status::OK;
  });
  EXPECT_THAT(std::string(Run(config).status().message()), HasSubstr("it is garbled"));
  EXPECT_EQ(services_.calls().back(), "rollout.Resume");
}

TEST_F(PpoFailureTest, GoesOnWithARolloutThatARunHasLeftPausedInTheMidstOfASync) {
  services_.SetPaused(true);
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_rollout()->set_enable_sleep(true);
  const absl::StatusOr<PpoSummary> summary = Run(config);
  EXPECT_TRUE(summary.ok()) << summary.status();
}

TEST_F(PpoFailureTest, StopsWhenTrainerAndRolloutDisagree) {
  services_.trainer_log_prob = -2;
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 2));
  EXPECT_THAT(std::string(summary.status().message()),
              AllOf(HasSubstr("differ by 1 on average"), HasSubstr("train.max_log_prob_diff_mean")));
  EXPECT_THAT(services_.calls(), Not(Contains("policy_trainer.Update")));
}

TEST_F(PpoFailureTest, NamesTheServiceThatIsNotThere) {
  services_.Kill("scorer");
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_train()->set_call_timeout_seconds(2);
  const absl::StatusOr<PpoSummary> summary = Run(config);
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(summary.status().message()),
              AllOf(HasSubstr("scorer at " + services_.address("scorer")), HasSubstr("GetInfo"),
                    HasSubstr("bazelw run //scorer"), HasSubstr("--launch")));
}

TEST_F(PpoFailureTest, WaitsForServicesThatAreStillLoading) {
  // Not on this stack: of gRPC's own locks ThreadSanitizer sees nothing.
  const auto rollout = std::make_shared<std::atomic<int>>(0), scorer = std::make_shared<std::atomic<int>>(0);
  services_.SetHook([rollout, scorer](const std::string& call) {
    const bool loading = (call == "rollout.GetInfo" && ++*rollout < 3) || (call == "scorer.GetInfo" && ++*scorer < 3);
    return loading ? grpc::Status(grpc::UNAVAILABLE, "it is still loading its model") : grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 1));
  ASSERT_TRUE(summary.ok()) << summary.status();
  // One line a service, not one each time that it is asked.
  std::vector<std::string> waits = Shown();
  waits.erase(
      std::remove_if(waits.begin(), waits.end(), [](const auto& line) { return !absl::StartsWith(line, "waiting"); }),
      waits.end());
  EXPECT_THAT(waits,
              ElementsAre("waiting for the rollout at " + services_.address("rollout") + ", which is loading its model",
                          "waiting for the scorer at " + services_.address("scorer") + ", which is loading its model"));
}

TEST_F(PpoFailureTest, StopsWaitingForAServiceThatIsLoadingWhenItIsCancelled) {
  services_.SetHook(
      [](const std::string&) { return grpc::Status(grpc::UNAVAILABLE, "it is still loading its model"); });
  std::thread canceller([this] {
    while (services_.calls().size() < 3) absl::SleepFor(absl::Milliseconds(10));
    cancellation_.Cancel(absl::UnavailableError("the policy_trainer ended by itself"));
  });
  EXPECT_EQ(Run(services_.MakeConfig(scratch_.path(), 1)).status(),
            absl::UnavailableError("the policy_trainer ended by itself"));
  canceller.join();
}

TEST_F(PpoFailureTest, EndsInAnErrorWhenAServiceDiesInTheMiddleOfAStep) {
  std::promise<void> in_update;
  std::once_flag once;
  std::thread killer([&] {
    in_update.get_future().wait();
    services_.Kill("critic_trainer");
  });
  services_.SetHook([&](const std::string& call) {
    if (call == "critic_trainer.Update") {
      std::call_once(once, [&] { in_update.set_value(); });
      absl::SleepFor(absl::Milliseconds(300));
    }
    return grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 3));
  std::call_once(once, [&] { in_update.set_value(); });
  killer.join();
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("critic_trainer at "));
}

TEST_F(PpoFailureTest, DoesNotWaitLongerThanTheDeadline) {
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_train()->set_call_timeout_seconds(1);
  services_.SetHook([](const std::string& call) {
    if (call == "critic_trainer.Values") absl::SleepFor(absl::Milliseconds(1500));
    return grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(config);
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(summary.status().message()),
              AllOf(HasSubstr("critic_trainer at "), HasSubstr("Values"), HasSubstr("call_timeout_seconds is 1")));
}

TEST_F(PpoFailureTest, EndsWithTheReasonWhenItIsCancelled) {
  services_.SetHook([this](const std::string& call) {
    if (call == "scorer.Score") cancellation_.Cancel(absl::CancelledError("stopped by SIGINT"));
    return grpc::Status::OK;
  });
  const absl::StatusOr<PpoSummary> summary = Run(services_.MakeConfig(scratch_.path(), 1));
  EXPECT_EQ(summary.status(), absl::CancelledError("stopped by SIGINT"));
}

TEST_F(PpoFailureTest, TakesNoRepliesThatAreNotWhole) {
  const auto message = [this] { return std::string(Run(services_.MakeConfig(scratch_.path(), 1)).status().message()); };
  const auto again = [this] { std::filesystem::remove_all(scratch_.path() + "/run"); };

  services_.spoil_generated = [](GeneratedSequence* s) { s->mutable_policy_versions()->Set(1, 7); };
  EXPECT_THAT(message(), HasSubstr("a token of policy version 7 instead of 0"));
  again();
  services_.spoil_generated = [](GeneratedSequence* s) { s->set_sample(0); };
  EXPECT_THAT(message(), HasSubstr("came twice"));
  again();
  services_.spoil_generated = [](GeneratedSequence* s) { s->mutable_log_probs()->RemoveLast(); };
  EXPECT_THAT(message(), HasSubstr("2 log-probabilities"));
  again();
  services_.spoil_generated = nullptr;
  services_.spoil_values = [](TokenValues* v) { v->mutable_values()->Set(0, NAN); };
  EXPECT_THAT(message(), HasSubstr("not finite"));
  again();
  services_.spoil_values = [](TokenValues* v) { v->mutable_values()->RemoveLast(); };
  EXPECT_THAT(message(), HasSubstr("3 action tokens but 2 values"));
  again();
  RunConfig config = services_.MakeConfig(scratch_.path(), 1);
  config.mutable_algorithm()->set_old_log_prob_source("trainer");  // for more than one sequence
  services_.spoil_values = [](TokenValues* v) { v->set_index(0); };
  EXPECT_THAT(std::string(Run(config).status().message()), HasSubstr("answered twice"));
}

TEST_F(PpoFailureTest, RefusesServicesThatDoNotFitTogether) {
  // Their models and lengths are as the configuration says: no other try finds them otherwise.
  absl::StatusCode code = absl::StatusCode::kOk;
  const auto message = [&] {
    const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 1)).status();
    code = status.code();
    return std::string(status.message());
  };
  const auto again = [this] { std::filesystem::remove_all(scratch_.path() + "/run"); };

  services_.spoil_info = [](ServiceInfo* info) {
    if (info->service() != "scorer") return;
    info->set_protocol_version(99);
    info->set_min_protocol_version(98);
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("scorer"), HasSubstr("speaks protocol versions 98 to 99"),
                               HasSubstr(absl::StrCat(" to ", kProtocolVersion))));
  again();
  services_.spoil_info = [](ServiceInfo* info) {
    if (info->service() == "critic_trainer") (*info->mutable_tokenizer_vocab_size())["model"] = 256;
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("critic_trainer"), HasSubstr("its model takes 256 token ids"),
                               HasSubstr("the tokenizer has 128")));
  EXPECT_EQ(code, absl::StatusCode::kInvalidArgument);
  again();
  services_.spoil_info = [](ServiceInfo* info) {
    for (auto& [role, size] : *info->mutable_vocab_size()) size = 100;
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("vocabulary of 100"), HasSubstr("the tokenizer has 128")));
  EXPECT_EQ(code, absl::StatusCode::kInvalidArgument);
  again();
  services_.spoil_info = [](ServiceInfo* info) {
    for (RankInfo& rank : *info->mutable_ranks()) rank.set_cpu_kernels("avx512_bf16");
    if (info->service() == "scorer") info->mutable_ranks(1)->set_cpu_kernels("fp32");
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("rank 0 of the rollout by avx512_bf16, rank 1 of the scorer by fp32"),
                               HasSubstr("QUARTET_CPU_KERNELS=fp32")));
  EXPECT_EQ(code, absl::StatusCode::kFailedPrecondition) << "other hosts may be of one kind";
  again();
  services_.spoil_info = [](ServiceInfo* info) { info->set_max_model_len(12); };
  EXPECT_THAT(message(), AllOf(HasSubstr("at most 12"), HasSubstr("13")));
  EXPECT_EQ(code, absl::StatusCode::kInvalidArgument);
  again();
  services_.spoil_info = [](ServiceInfo* info) {
    if (info->service() == "rollout") info->set_service("scorer");
  };
  EXPECT_THAT(message(), HasSubstr("is the service \"scorer\", not \"rollout\""));
}

TEST_F(PpoFailureTest, RefusesServicesOfAnotherConfigurationWithEveryDifference) {
  services_.spoil_info = [this](ServiceInfo* info) {
    auto& fields = *info->mutable_configuration();
    if (info->service() == "policy_trainer") {
      fields["run_dir"] = absl::StrCat("\"", scratch_.path(), "/first\"");
      fields["actor.max_norm"] = "0.5";
    }
    if (info->service() == "critic_trainer") fields.erase("critic.dtype");
    if (info->service() == "scorer") fields["reward.source.0.rule"] = "\"number\"";
    if (info->service() == "rollout") {
      // The same folder by another name.
      fields["rollout.pretrain"] =
          absl::StrCat("\"", scratch_.path(), "/../", std::filesystem::path(scratch_.path()).filename().string(), "\"");
      // The default of one that took the GPUs for its own.
      EXPECT_EQ(fields["rollout.kv_cache_bytes"], "1073741824");
      fields.erase("rollout.kv_cache_bytes");
      fields["rollout.gpu_memory_utilization"] = "0.9";
    }
  };
  const absl::Status status = Run(services_.MakeConfig(scratch_.path(), 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const std::string differences = absl::StrCat(
      "policy_trainer at ", services_.address("policy_trainer"),
      ": actor.max_norm is 0.5 there and 1 here, run_dir is \"", scratch_.path(), "/first\" there and \"",
      scratch_.path(), "/run\" here; critic_trainer at ", services_.address("critic_trainer"),
      ": critic.dtype is not set there and \"bf16\" here; scorer at ", services_.address("scorer"),
      ": reward.source.0.rule is \"number\" there and \"exact_match\" here. End them and start them again");
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(differences), Not(HasSubstr("rollout.kv_cache_bytes")),
                                                   Not(HasSubstr("gpu_memory_utilization"))));
  EXPECT_THAT(services_.calls(), Not(Contains("rollout.Generate")));
}

TEST_F(PpoFailureTest, NamesTheRowWhoseLabelTheScorerAloneFindsWrong) {
  services_.SetHook([](const std::string& call) {
    return call == "scorer.Score" ? grpc::Status(grpc::INVALID_ARGUMENT, "sequence 3, reward \"code\": it cannot fail")
                                  : grpc::Status::OK;
  });
  EXPECT_THAT(std::string(Run(services_.MakeConfig(scratch_.path(), 1)).status().message()),
              AllOf(StartsWith("data.prompt_data: /"), ContainsRegex("line [0-9]+: scorer at "),
                    HasSubstr("sequence 3, reward \"code\": it cannot fail")));
}

TEST_F(PpoFailureTest, PassesOnWhatAnUpdateFailedOf) {
  services_.SetHook([](const std::string& call) {
    return call == "policy_trainer.Update" ? grpc::Status(grpc::INTERNAL, "rank 1: out of memory") : grpc::Status::OK;
  });
  EXPECT_THAT(std::string(Run(services_.MakeConfig(scratch_.path(), 1)).status().message()),
              AllOf(HasSubstr("policy_trainer at "), HasSubstr("Update: rank 1: out of memory")));
}

}  // namespace
}  // namespace quartet
