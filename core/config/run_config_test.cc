#include "core/config/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/config/field_paths.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Strings = std::vector<std::string>;

std::string Written(const std::string& text) {
  std::string path = ::testing::TempDir() + "/config_XXXXXX";
  close(mkstemp(path.data()));
  EXPECT_TRUE(AtomicWriteFile(path, text).ok());
  return path;
}

// The message of the error that `overrides` give; "" if there is none.
std::string ErrorOf(const Strings& overrides, Program program = Program::kPpo) {
  absl::StatusOr<RunConfig> config = LoadRunConfig("", overrides, "", program);
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << config.status();
  return std::string(config.status().message());
}

void ExpectError(const Strings& overrides, const Strings& words, Program program = Program::kPpo) {
  const std::string error = ErrorOf(overrides, program);
  EXPECT_NE(error, "") << ::testing::PrintToString(overrides);
  for (const std::string& word : words) {
    EXPECT_NE(error.find(word), std::string::npos) << "'" << word << "' is missing in: " << error;
  }
}

TEST(RunConfig, FillsInTheDefaultsOfItsComments) {
  RunConfig c = LoadRunConfig("", {"actor.pretrain=/m"}, "").value();
  EXPECT_EQ(c.seed(), 42);
  EXPECT_EQ(c.data().input_key(), "prompt");
  EXPECT_EQ(c.data().prompt_max_len(), 1024);
  EXPECT_EQ(c.rollout().rollout_batch_size(), 128);
  EXPECT_EQ(c.rollout().top_k(), -1);
  EXPECT_EQ(c.rollout().kv_cache_bytes(), 1073741824);
  EXPECT_EQ(c.rollout().max_model_len(), 2048);
  EXPECT_EQ(c.rollout().pretrain(), "/m");
  EXPECT_EQ(c.reference().pretrain(), "/m");
  EXPECT_EQ(c.algorithm().eps_clip_low(), 0.2f);
  EXPECT_EQ(c.algorithm().kl().init_kl_coef(), 0.01f);
  EXPECT_EQ(c.actor().learning_rate(), 1e-6);
  EXPECT_EQ(c.critic().learning_rate(), 9e-6);
  EXPECT_EQ(c.critic().zero_stage(), 3);
  EXPECT_EQ(c.train().train_batch_size(), 128);
  EXPECT_EQ(c.services().scorer().listen(), "127.0.0.1:50054");
  EXPECT_EQ(c.services().rollout().collective_timeout_seconds(), 300);
  EXPECT_EQ(c.services().rollout().device_memory_budget(), 0);
  EXPECT_EQ(c.services().rollout().collective_backend(), "auto");
  EXPECT_EQ(c.rollout().max_calls(), 1024);
  EXPECT_EQ(c.services().scorer().max_call_items(), 1 << 20);
  EXPECT_EQ(c.services().scorer().max_call_bytes(), int64_t{1} << 30);
  EXPECT_EQ(c.services().scorer().max_calls_bytes(), int64_t{4} << 30);
  EXPECT_NE(c.run_dir().find("/runs/"), std::string::npos);
}

TEST(RunConfig, OverridesTheFile) {
  const std::string path = Written("seed: 1 rollout { temperature: 0.5 stop_token_ids: 7 }");
  RunConfig c = LoadRunConfig(path,
                              {"seed=9", "rollout.stop_token_ids=8", "actor.gradient_checkpointing=false",
                               "actor.learning_rate=1e-5", "data.input_key=question=x", "reward.source.0.rule=number",
                               "reward.source.1.rule=exact_match", "reward.source.1.weight=0.5"},
                              "")
                    .value();
  EXPECT_EQ(c.seed(), 9);
  EXPECT_EQ(c.rollout().temperature(), 0.5f);
  ASSERT_EQ(c.rollout().stop_token_ids_size(), 1) << "a list is set whole";
  EXPECT_EQ(c.rollout().stop_token_ids(0), 8);
  EXPECT_FALSE(c.actor().gradient_checkpointing());
  EXPECT_EQ(c.actor().learning_rate(), 1e-5);
  EXPECT_EQ(c.data().input_key(), "question=x");
  ASSERT_EQ(c.reward().source_size(), 2);
  EXPECT_EQ(c.reward().source(0).name(), "number");
  EXPECT_EQ(c.reward().source(1).weight(), 0.5f);
}

TEST(RunConfig, ExplainsOverridesThatItCannotApply) {
  ExpectError({"rollout.temprature=1"}, {"rollout.temprature", "temprature", "temperature"});
  ExpectError({"rollout"}, {"path.to.field=value"});
  ExpectError({"rollout=1"}, {"rollout", "group of fields"});
  ExpectError({"seed.x=1"}, {"seed", "single value"});
  ExpectError({"seed=-1"}, {"-1", "whole number"});
  ExpectError({"rollout.top_k=1.5"}, {"1.5", "whole number"});
  ExpectError({"rollout.top_p=nan"}, {"nan"});
  ExpectError({"actor.gradient_checkpointing=yes"}, {"yes", "true", "false"});
  ExpectError({"reward.source.1.rule=number"}, {"reward.source.0"});
  ExpectError({"reward.source=number"}, {"list"});
}

TEST(RunConfig, RefusesValuesOutOfRange) {
  ExpectError({"actor.dtype=fp16"}, {"actor.dtype", "fp16", "bf16", "fp32"});
  ExpectError({"rollout.max_calls=0"}, {"rollout.max_calls: 0", "at least 1 and at most 16384"});
  ExpectError({"services.scorer.max_call_items=0"}, {"services.scorer.max_call_items: 0", "at least 1"});
  ExpectError({"services.scorer.max_call_bytes=11", "services.scorer.max_calls_bytes=10"},
              {"services.scorer.max_call_bytes: 11", "1 to 10"});
  ExpectError({"rollout.dtype=int8"}, {"rollout.dtype", "int8", "bf16", "fp32"});
  ExpectError({"rollout.rollout_batch_size=-4"}, {"rollout.rollout_batch_size", "-4", "at least 1"});
  ExpectError({"rollout.temperature=0"}, {"rollout.temperature", "1e-5"});
  ExpectError({"rollout.top_p=0"}, {"rollout.top_p", "greater than 0"});
  ExpectError({"rollout.top_p=1.01"}, {"rollout.top_p", "1.01", "at most 1"});
  ExpectError({"rollout.rollout_batch_size=6", "rollout.n_samples_per_prompt=2", "train.train_batch_size=5"},
              {"train.train_batch_size", "5", "12"});
  ExpectError({"algorithm.advantage_estimator=gea"}, {"gea", "gae", "reinforce_plus_plus_baseline", "dr_grpo"});
  ExpectError({"algorithm.dual_clip=0.5"}, {"algorithm.dual_clip", "0.5", "greater than 1"});
  ExpectError({"actor.zero_stage=1"}, {"actor.zero_stage", "0, 2, 3"});
  ExpectError({"rollout.tensor_parallel_size=0"}, {"rollout.tensor_parallel_size", "0"});
  ExpectError({"rollout.tensor_parallel_size=2", "rollout.zero_stage=3"},
              {"rollout.tensor_parallel_size", "rollout.zero_stage is 3"});
  ExpectError({"actor.learning_rate=0"}, {"actor.learning_rate", "allow_zero_learning_rate"});
  ExpectError({"actor.adam_beta2=1"}, {"actor.adam_beta2"});
  ExpectError({"rollout.generate_max_len=8", "rollout.min_tokens=9"}, {"rollout.min_tokens", "9", "0 to 8"});
  ExpectError({"algorithm.reward_clip_min=3", "algorithm.reward_clip_max=2"}, {"reward_clip_min", "3", "2"});
  ExpectError({"data.label_extract=regex"}, {"data.label_extract", "after_####"});
  ExpectError({"services.scorer.listen=localhost"}, {"services.scorer.listen", "host:port"});
  ExpectError({"services.scorer.listen=localhost:70000"}, {"services.scorer.listen", "65535"});
  ExpectError({"services.scorer.device=tpu"}, {"tpu", "cpu", "cuda"});
  ExpectError({"services.scorer.device=cpu", "services.rollout.device=cpu", "services.policy_trainer.device=cpu",
               "services.critic_trainer.device=cpu", "services.device=cuda"},
              {"services.device has no effect", "set services.rollout.device, services.policy_trainer.device"});
  ExpectError({"services.scorer.device_memory_budget=-1"},
              {"services.scorer.device_memory_budget", "-1", "at least 0"});
  ExpectError({"services.scorer.collective_backend=mpi"}, {"mpi", "auto", "gloo", "shm"});
  ExpectError({"services.scorer.collective_backend=gloo", "services.scorer.device=cuda"},
              {"services.scorer.collective_backend has no effect", "NCCL"});
  ExpectError({"tls.ca_file=/ca.pem"}, {"tls", "cert_file"});
  ExpectError({"rollout.http.served_model_name=m"}, {"rollout.http.listen is not set", "127.0.0.1:8000"});
  ExpectError({"rollout.http.listen=8000"}, {"rollout.http.listen", "8000", "host:port"});
  ExpectError({"rollout.http.listen=127.0.0.1:0", "rollout.http.max_bodies_bytes=5"},
              {"rollout.http.max_bodies_bytes: 5", "at least 16777216"});
  ExpectError({"rollout.http.listen=127.0.0.1:0", "rollout.http.cert_file=/c"}, {"rollout.http.key_file", "both"});
  ExpectError({"data.prompt_max_len=2000000000"}, {"data.prompt_max_len"});
  ExpectError({"actor.shard_size=-1"}, {"actor.shard_size", "at least 0"});
  ExpectError({"actor.ema_decay=1"}, {"actor.ema_decay", "below 1"});
  ExpectError({"actor.zero_stage=0", "actor.adam_offload=true"}, {"actor.adam_offload", "zero_stage is 0", "2 or 3"});
  ExpectError({"actor.zero_stage=2", "actor.adam_offload=true", "actor.offload_param=true"},
              {"actor.offload_param", "zero_stage is 2", "needs 3"});
  ExpectError({"actor.offload_param=true"}, {"actor.offload_param", "set actor.adam_offload too"});
  ExpectError({"reference.zero_stage=0", "reference.offload_param=true"},
              {"reference.offload_param", "reference.zero_stage is 0", "needs 3"});
  ExpectError({"services.rollout.device=cuda", "rollout.gpu_memory_utilization=1.5"},
              {"rollout.gpu_memory_utilization", "1.5", "at most 1"});
  ExpectError({"cluster.gpu=A100"}, {"cluster.gpu", "A100-80G", "gpu_memory_bytes"});
  ExpectError({"cluster.gpu=MI300X"}, {"cluster.gpu: \"MI300X\"", "AMD", "H200-141G"});
  for (const char* gpu : {"H200", "H200-141G", "GH200", "H20", "B200", "L40S", "A10", "RTX4090"}) {
    EXPECT_EQ(ErrorOf({absl::StrCat("cluster.gpu=", gpu), "services.critic_trainer.device=cuda"}), "");
  }
  ExpectError({"cluster.gpu=A100-80G", "cluster.gpu_memory_bytes=1"}, {"cluster.gpu_memory_bytes", "A100-80G"});
  ExpectError({"cluster.num_nodes=0"}, {"cluster.num_nodes", "0"});
}

TEST(RunConfig, LetsOtherMachinesInOverHttpWithKeyAndCertificateOnly) {
  const std::string listen = "rollout.http.listen=0.0.0.0:8000";
  const std::string key = "rollout.http.api_key_file=/k";
  const std::string cert_file = "rollout.http.cert_file=/c";
  const std::string key_file = "rollout.http.key_file=/p";
  ExpectError({listen}, {"rollout.http.listen", "0.0.0.0:8000", "api_key_file is not set", "127.0.0.1"});
  ExpectError({listen, key}, {"cert_file and key_file are not set"});
  ExpectError({listen, cert_file, key_file}, {"api_key_file is not set"});
  EXPECT_EQ(ErrorOf({listen, key, cert_file, key_file}), "");
  EXPECT_EQ(ErrorOf({"rollout.http.listen=[::1]:8000"}), "");
}

TEST(RunConfig, LetsOtherMachinesLookAtARunWithKeyAndCertificateOnly) {
  const std::string key = "monitor.api_key_file=/k", cert_file = "monitor.cert_file=/c",
                    key_file = "monitor.key_file=/p";
  for (const std::string field : {"monitor.listen", "services.critic_trainer.metrics_listen"}) {
    EXPECT_EQ(ErrorOf({field + "=127.0.0.1:0"}), "");
    ExpectError({field + "=here"}, {field, "host:port"});
    ExpectError({field + "=0.0.0.0:9400"}, {field, "0.0.0.0:9400", "api_key_file is not set", "127.0.0.1"});
    ExpectError({field + "=0.0.0.0:9400", key}, {"cert_file and key_file are not set"});
    ExpectError({field + "=127.0.0.1:0", cert_file}, {"monitor.key_file is not set"});
    EXPECT_EQ(ErrorOf({field + "=0.0.0.0:9400", key, cert_file, key_file}), "");
  }
  ExpectError({key}, {"monitor.api_key_file has no effect", "monitor.listen", "metrics_listen"});
}

TEST(RunConfig, CallsTheServedModelAfterTheRunOrItsFolder) {
  const auto name = [](std::vector<std::string> overrides) {
    overrides.push_back("rollout.http.listen=127.0.0.1:0");
    return LoadRunConfig("", overrides, "").value().rollout().http().served_model_name();
  };
  EXPECT_EQ(name({"rollout.pretrain=models/SmolLM2"}), "SmolLM2");
  EXPECT_EQ(name({"rollout.pretrain=/models/a/b/"}), "b");
  EXPECT_EQ(name({"rollout.pretrain=/runs/gsm8k/checkpoints/step_20/policy"}), "gsm8k/step_20");
  EXPECT_EQ(name({"run_dir=/runs/gsm8k", "actor.pretrain=models/SmolLM2"}), "gsm8k");
  EXPECT_EQ(name({"run_dir=/runs/gsm8k", "actor.pretrain=/m", "rollout.http.served_model_name=mine"}), "mine");
  EXPECT_FALSE(LoadRunConfig("", {"actor.pretrain=/m"}, "")->rollout().has_http());
}

TEST(RunConfig, GivesTheOverlongPenaltyDaposShareOfTheLength) {
  const auto buffer = [](std::vector<std::string> overrides) {
    overrides.push_back("rollout.generate_max_len=20480");
    return LoadRunConfig("", overrides, "").value().algorithm().overlong_buffer_len();
  };
  EXPECT_EQ(buffer({}), 0);
  EXPECT_EQ(buffer({"algorithm.overlong_penalty_factor=1"}), 4096);
  EXPECT_EQ(buffer({"algorithm.overlong_penalty_factor=0"}), 0);
  EXPECT_EQ(buffer({"algorithm.overlong_penalty_factor=1", "algorithm.overlong_buffer_len=200"}), 200);
  EXPECT_EQ(LoadRunConfig("", {"algorithm.overlong_buffer_len=200"}, "").value().algorithm().overlong_penalty_factor(),
            1);
  ExpectError({"algorithm.overlong_penalty_factor=1", "algorithm.overlong_buffer_len=0"},
              {"algorithm.overlong_penalty_factor has no effect"});
}

TEST(RunConfig, WhoTalksToThePolicyHasTheModelsLengthUnlessItIsSaid) {
  const auto length = [](std::vector<std::string> overrides) {
    overrides.push_back("actor.pretrain=/m");
    return LoadRunConfig("", overrides, "").value().rollout().max_model_len();
  };
  EXPECT_EQ(length({"data.prompt_max_len=100", "rollout.generate_max_len=28"}), 128);
  EXPECT_EQ(length({"rollout.http.listen=127.0.0.1:0"}), 0);
  EXPECT_EQ(length({"rollout.http.listen=127.0.0.1:0", "rollout.max_model_len=300"}), 300);
  ExpectError({"rollout.max_model_len=1"}, {"rollout.max_model_len: 1", "2 to"});
}

TEST(RunConfig, PlacesOneRankOnEachGpu) {
  const std::vector<std::string> cluster = {"cluster.num_nodes=2", "cluster.num_gpus_per_node=4",
                                            "services.scorer.device=cuda", "placement.0.service=scorer"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), cluster.begin(), cluster.end());
    return more;
  };
  EXPECT_EQ(LoadRunConfig("", cluster, "").value().services().scorer().ranks(), 8);
  EXPECT_EQ(
      LoadRunConfig("", with({"placement.0.nodes=1", "placement.0.gpus=0,3"}), "").value().services().scorer().ranks(),
      2);
  ExpectError(with({"services.scorer.ranks=3"}), {"services.scorer.ranks", "3", "placement[0]", "8 GPUs"});
  ExpectError(with({"placement.0.nodes=2"}), {"placement[0].nodes", "2", "0 to 1"});
  ExpectError(with({"placement.0.gpus=1,1"}), {"placement[0].gpus", "twice"});
  ExpectError(with({"placement.1.service=scorer", "placement.1.nodes=1"}), {"placement[1].service", "already"});
  ExpectError(with({"services.policy_trainer.device=cuda", "services.policy_trainer.ranks=9"}),
              {"services.policy_trainer.ranks", "9", "2 x 4"});
}

TEST(RunConfig, PutsAServiceWithoutAPlacementOnEveryGpu) {
  const auto ranks = [](const Strings& more) {
    Strings all = {"cluster.num_nodes=2", "services.rollout.device=cuda", "services.scorer.device=cuda"};
    all.insert(all.end(), more.begin(), more.end());
    const RunConfig c = LoadRunConfig("", all, "").value();
    return std::vector<int>{c.services().rollout().ranks(), c.services().scorer().ranks(),
                            c.services().critic_trainer().ranks()};
  };
  EXPECT_EQ(ranks({}), (std::vector<int>{16, 16, 1}));
  EXPECT_EQ(ranks({"services.rollout.ranks=4"}), (std::vector<int>{4, 16, 1}));
  EXPECT_EQ(ranks({"placement.0.service=scorer", "placement.0.gpus=7"}), (std::vector<int>{16, 2, 1}));
  EXPECT_EQ(LoadRunConfig("", {"services.rollout.device=cuda"}, "").value().services().rollout().ranks(), 1)
      << "of no cluster nothing is known";
}

TEST(RunConfig, RefusesWhatCannotHaveAnEffect) {
  ExpectError({"algorithm.kl.init_kl_coef=0", "algorithm.kl.kl_target=6"}, {"kl_target has no effect"});
  ExpectError({"algorithm.kl.init_kl_coef=0", "reference.pretrain=/m"}, {"reference.pretrain has no effect"});
  ExpectError({"actor.sleep_offload=true"}, {"actor.sleep_offload has no effect", "enable_sleep"});
  EXPECT_TRUE(LoadRunConfig("", {"rollout.enable_sleep=false", "actor.sleep_offload=false"}, "").ok()) << "it is off";
  ExpectError({"services.rollout.device=cpu", "rollout.gpu_memory_utilization=0.5"},
              {"rollout.gpu_memory_utilization has no effect", "cpu", "kv_cache_bytes"});
  ExpectError({"services.rollout.device=cuda", "rollout.gpu_memory_utilization=0.5", "rollout.kv_cache_bytes=1"},
              {"rollout.kv_cache_bytes has no effect"});
  ExpectError({"rollout.enforce_eager=true"},
              {"rollout.enforce_eager has no effect", "services.rollout.device", "cpu"});
  ExpectError({"services.rollout.device=cuda", "rollout.enforce_eager=true", "rollout.dtype=fp32"},
              {"rollout.enforce_eager has no effect", "rollout.dtype", "fp32"});
  ExpectError({"services.rollout.device=cuda", "rollout.enforce_eager=true", "rollout.zero_stage=3"},
              {"rollout.enforce_eager has no effect", "rollout.zero_stage", "3"});
  ExpectError({"services.rollout.device=cuda", "services.rollout.ranks=2", "rollout.enforce_eager=true",
               "rollout.tensor_parallel_size=2"},
              {"rollout.enforce_eager has no effect", "rollout.tensor_parallel_size", "2"});
  EXPECT_EQ(ErrorOf({"services.rollout.device=cuda", "rollout.enforce_eager=true"}), "");
  ExpectError({"placement.0.service=scorer"}, {"placement has no effect", "cluster"});
  ExpectError({"cluster.num_nodes=2", "placement.0.service=scorer"}, {"placement[0] has no effect", "cpu"});
  ExpectError({"algorithm.kl.kl_horizon=5"}, {"kl_horizon has no effect"});
  ExpectError({"algorithm.kl.kl_target=6", "algorithm.kl.kl_horizon=25"}, {"kl_horizon", "25", "above 25.6", "128"});
  ExpectError({"algorithm.policy_loss=reinforce", "algorithm.old_log_prob_source=rollout"},
              {"old_log_prob_source has no effect", "reinforce"});
  ExpectError({"algorithm.eps_clip=0.3", "algorithm.eps_clip_low=0.1", "algorithm.eps_clip_high=0.2"},
              {"eps_clip has no effect"});
  ExpectError({"reward.source.0.rule=number", "reward.source.0.model=/m"}, {"reward.source[0]", "both"});
  ExpectError({"reward.source.0.weight=2"}, {"reward.source[0]", "neither"});
  EXPECT_TRUE(LoadRunConfig("", {"reward.source.0.rule=number", "reward.source.0.weight=0"}, "").ok()) << "a monitor";
  ExpectError({"reward.source.0.rule=number", "reward.source.0.dtype=bf16"}, {"dtype has no effect"});
  ExpectError({"reward.source.0.rule=number", "reward.source.1.rule=number"}, {"reward.source[1].name"});
  ExpectError({"reward.source.0.rule=number", "reward.source.0.only=math,math"},
              {"reward.source[0].only", "each once"});
  ExpectError({"reward.source.0.rule=guess"}, {"reward.source[0].rule", "guess", "open_reasoner_zero"});
  ExpectError({"reward.source.0.rule=regex"}, {"reward.source[0].pattern", "regular expression"});
  ExpectError({"reward.source.0.rule=json_field"}, {"reward.source[0].field"});
  ExpectError({"reward.source.0.rule=number", "reward.source.0.pattern=a"}, {"pattern has no effect", "format"});
  ExpectError({"reward.source.0.rule=choice", "reward.source.0.choices=abc"}, {"choices", "abc", "capital letters"});
  ExpectError({"reward.source.0.rule=choice", "reward.source.0.choices=ABA"}, {"choices", "each once"});
  EXPECT_TRUE(LoadRunConfig("", {"reward.source.0.rule=choice", "reward.source.0.choices=1234"}, "").ok());
  for (const char* name :
       {"mean", "std", "shaped_std", "clipped", "groups_without_signal", "failed", "overlong_penalty"}) {
    ExpectError({"reward.source.0.rule=number", absl::StrCat("reward.source.0.name=", name)},
                {"reward.source[0].name", name, "the metric reward/"});
  }
  ExpectError({"reward.source.0.rule=number", "reward.source.0.name=a/b"}, {"reward.source[0].name", "a/b", "without"});
  EXPECT_TRUE(LoadRunConfig("",
                            {"reward.source.0.rule=number", "reward.source.1.rule=format", "reward.source.1.pattern=a",
                             "reward.source.1.gate=true", "reward.source.1.reasoning_delimiter=</think>"},
                            "")
                  .ok());
  ExpectError({"reward.source.0.rule=number", "reward.source.0.gate=true"}, {"reward.source", "all are gates"});
  ExpectError({"reward.source.0.rule=number", "reward.source.1.rule=finished", "reward.source.1.gate=true",
               "reward.source.1.weight=0.5"},
              {"reward.source[1].weight", "0.5", "must be 1"});
  for (const char* field : {"gate=true", "reasoning_delimiter=</think>"}) {
    for (const char* source : {"rule=length", "model=/m"}) {
      ExpectError({absl::StrCat("reward.source.0.", source), absl::StrCat("reward.source.0.", field)},
                  {"reward.source[0]", "has no effect", "other than \"length\""});
    }
  }
  ExpectError({"reward.source.0.rule=length", "reward.source.0.min_len=9", "reward.source.0.max_len=8"},
              {"max_len", "8"});
  ExpectError({"reward.source.0.rule=number", "reward.on_error=zero"}, {"reward.on_error", "zero", "stop", "drop"});
  ExpectError({"reward.source.0.remote_url=localhost:5000"}, {"remote_url", "localhost:5000", "grpc://host:port"});
  ExpectError({"reward.source.0.remote_url=http://a,grpc://b:1"}, {"two sources"});
  ExpectError({"reward.source.0.remote_url=http://a", "reward.source.0.memory_limit_bytes=1"}, {"has no effect"});
  ExpectError({"reward.source.0.command=x", "reward.source.0.timeout_seconds=0"}, {"timeout_seconds", "0"});
  ExpectError({"reward.source.0.rule=number", "reward.source.0.max_batch_size=2"}, {"max_batch_size has no effect"});
  ExpectError({"reward.source.0.code=ruby"}, {"reward.source[0].code", "ruby", "python"});
  ExpectError({"reward.source.0.code=python", "reward.source.0.memory_limit_bytes=1000"},
              {"memory_limit_bytes", "1000"});
  ExpectError({"train.max_steps=5", "train.num_episodes=2"}, {"num_episodes has no effect"});
  ExpectError({"actor.allow_zero_learning_rate=true"}, {"allow_zero_learning_rate has no effect"});
  ExpectError({"actor.lr_scheduler=constant", "actor.min_lr_ratio=0.5"}, {"min_lr_ratio has no effect"});
  ExpectError({"train.eval_steps=5"}, {"train.eval_steps has no effect"});
  ExpectError({"data.tokenizer_chat_template=/t"},
              {"data.tokenizer_chat_template has no effect", "apply_chat_template"});
  ExpectError({"sft.multiturn=true"}, {"sft.multiturn has no effect", "apply_chat_template"}, Program::kSft);
  ExpectError({"services.rollout.host_memory_budget=5"},
              {"services.rollout.host_memory_budget has no effect", "device_memory_budget"});
  ExpectError({"services.critic_trainer.host_memory_budget=5"},
              {"services.critic_trainer.host_memory_budget has no effect"});
  ExpectError({"actor.zero_stage=0", "actor.shard_size=8"}, {"actor.shard_size has no effect", "zero_stage is 0"});
  ExpectError({"critic.zero_stage=0", "critic.no_sync=true"}, {"critic.no_sync has no effect"});
  ExpectError({"actor.sleep_offload=true"}, {"actor.sleep_offload has no effect", "rollout.enable_sleep is false"});
  ExpectError({"rollout.enable_sleep=true", "critic.sleep_offload=true", "critic.adam_offload=true"},
              {"critic.sleep_offload", "critic.adam_offload is set", "all the time"});
  ExpectError({"critic.sleep_offload=true"}, {"critic.sleep_offload"}, Program::kRewardModel);
  ExpectError({"actor.activation_offload=true", "actor.gradient_checkpointing=false"},
              {"actor.activation_offload has no effect", "gradient_checkpointing"});
  ExpectError({"train.max_ckpt_num=5"}, {"max_ckpt_num has no effect", "train.save_steps"});
  ExpectError({"train.load_checkpoint=true"}, {"run_dir is not set", "train.load_checkpoint"});
}

TEST(RunConfig, NamesAtOnceAllThatHasNoEffect) {
  EXPECT_EQ(ErrorOf({"algorithm.advantage_estimator=grpo", "rollout.n_samples_per_prompt=4", "critic.pretrain=/m",
                     "critic.learning_rate=1e-5", "critic.optim=sgd", "critic.momentum=0.9",
                     "services.critic_trainer.ranks=2", "algorithm.lambd=0.9", "algorithm.value_clip=0.1"}),
            "critic.pretrain has no effect: there is no critic: algorithm.advantage_estimator is not \"gae\", the one "
            "that has values of states; nor have the rest of critic, services.critic_trainer, algorithm.lambd, "
            "algorithm.value_clip");
}

TEST(RunConfig, RefusesWhatSaysNothingOfTheCluster) {
  ExpectError({"cluster.gpu=A100-80G"}, {"cluster.gpu has no effect", "\"cuda\"", "services.rollout.device"});
  ExpectError({"cluster.gpu_memory_bytes=5"}, {"cluster.gpu_memory_bytes has no effect"});
  ExpectError({"cluster.num_gpus_per_node=4"}, {"cluster.num_gpus_per_node has no effect"});
  ExpectError({"cluster.inter_node_gbps=4"}, {"cluster.inter_node_gbps has no effect", "num_nodes is 1"});
  EXPECT_EQ(ErrorOf({"cluster.gpu=A100-80G", "services.critic_trainer.device=cuda"}), "");
  EXPECT_EQ(ErrorOf({"cluster.num_nodes=2", "cluster.inter_node_gbps=4", "cluster.host_memory_bytes=5"}), "")
      << "hosts of ranks on CPUs";
}

TEST(RunConfig, RefusesWhatNeedsMoreThanOneRankOrAModel) {
  ExpectError({"services.scorer.collective_backend=gloo"},
              {"services.scorer.collective_backend has no effect", "services.scorer.ranks is 1"});
  EXPECT_EQ(ErrorOf({"services.scorer.collective_backend=gloo", "services.scorer.ranks=2"}), "");
  const Strings rules = {"algorithm.kl.init_kl_coef=0", "reward.source.0.rule=number"};
  const auto with = [&](const std::string& text) { return Strings{rules[0], rules[1], text}; };
  ExpectError(with("services.scorer.device=cuda"), {"services.scorer.device has no effect", "no model"});
  ExpectError(with("services.scorer.device_memory_budget=5"), {"services.scorer.device_memory_budget has no effect"});
  EXPECT_EQ(ErrorOf({rules[0], "reward.source.0.model=/m", "services.scorer.device=cuda"}), "");
}

TEST(RunConfig, FillsMicroBatchesByTokensOrBySequences) {
  const Strings short_sequences = {"data.prompt_max_len=100", "rollout.generate_max_len=100"};
  const auto with = [&](Strings overrides) {
    overrides.insert(overrides.begin(), short_sequences.begin(), short_sequences.end());
    return overrides;
  };
  const RunConfig c =
      LoadRunConfig("", with({"actor.max_tokens_per_micro_batch=200", "critic.max_tokens_per_micro_batch=0"}), "")
          .value();
  EXPECT_FALSE(c.actor().has_micro_train_batch_size());
  EXPECT_FALSE(c.actor().has_micro_rollout_batch_size());
  EXPECT_EQ(c.reference().max_tokens_per_micro_batch(), 200) << "as the actor";
  EXPECT_EQ(c.critic().micro_train_batch_size(), 1);
  EXPECT_EQ(c.critic().micro_rollout_batch_size(), 1);
  EXPECT_EQ(ErrorOf(with({"reference.max_tokens_per_micro_batch=200", "actor.micro_train_batch_size=4"})), "");
  EXPECT_EQ(ErrorOf(with({"reward.source.0.model=/m", "reward.max_tokens_per_micro_batch=200"})), "");

  for (const char* field : {"micro_train_batch_size", "micro_rollout_batch_size"}) {
    ExpectError(with({"critic.max_tokens_per_micro_batch=400", std::string("critic.") + field + "=1"}),
                {std::string("critic.") + field, "critic.max_tokens_per_micro_batch", "both set", "drop"});
  }
  ExpectError(
      with({"reward.source.0.model=/m", "reward.max_tokens_per_micro_batch=400", "reward.micro_rollout_batch_size=4"}),
      {"reward.micro_rollout_batch_size", "both set", "drop"});
  ExpectError(with({"actor.max_tokens_per_micro_batch=199"}),
              {"actor.max_tokens_per_micro_batch", "199", "actor.max_len (200)"});
  ExpectError(with({"reference.max_tokens_per_micro_batch=-1"}), {"reference.max_tokens_per_micro_batch", "-1"});
  ExpectError(with({"actor.max_tokens_per_micro_batch=200", "reference.max_tokens_per_micro_batch=0"}),
              {"reference.max_tokens_per_micro_batch", "actor.max_tokens_per_micro_batch"});
  ExpectError(with({"reward.source.0.model=/m", "reward.max_tokens_per_micro_batch=100"}),
              {"reward.max_tokens_per_micro_batch", "100", "actor.max_len (200)"});
  for (const char* set : {"reward.max_tokens_per_micro_batch=400", "reward.micro_rollout_batch_size=8"}) {
    const std::string field = std::string(set).substr(0, std::string(set).find('='));
    ExpectError(with({"reward.source.0.rule=number", set}), {field + " has no effect", "no reward.source is a model"});
  }
}

TEST(RunConfig, FillsMicroBatchesByTokensUnlessSequencesAreCounted) {
  const auto resolved = [](Strings overrides) {
    overrides.emplace_back("reward.source.0.model=/m");
    return LoadRunConfig("", overrides, "").value();
  };
  for (const auto& [lengths, tokens] :
       {std::pair(Strings{}, 4096), std::pair(Strings{"data.prompt_max_len=9000"}, 10024),
        std::pair(Strings{"actor.max_len=5000", "critic.max_len=5000"}, 5000)}) {
    const RunConfig c = resolved(lengths);
    EXPECT_EQ(c.actor().max_tokens_per_micro_batch(), tokens);
    EXPECT_EQ(c.critic().max_tokens_per_micro_batch(), tokens);
    EXPECT_EQ(c.reference().max_tokens_per_micro_batch(), tokens);
    EXPECT_EQ(c.reward().max_tokens_per_micro_batch(), tokens);
    EXPECT_FALSE(c.actor().has_micro_train_batch_size() || c.actor().has_micro_rollout_batch_size());
    EXPECT_FALSE(c.reward().has_micro_rollout_batch_size());
  }
  for (const char* either : {"actor.micro_train_batch_size=3", "actor.micro_rollout_batch_size=3"}) {
    const RunConfig c = resolved({either});
    EXPECT_EQ(c.actor().max_tokens_per_micro_batch(), 0) << either;
    EXPECT_EQ(c.actor().micro_train_batch_size(), 3) << either;
    EXPECT_EQ(c.actor().micro_rollout_batch_size(), 3) << either;
    EXPECT_EQ(c.reference().max_tokens_per_micro_batch(), 0) << "as the actor";
    EXPECT_EQ(c.critic().max_tokens_per_micro_batch(), 4096) << "each by itself";
  }
  const RunConfig c = resolved({"reward.micro_rollout_batch_size=3"});
  EXPECT_EQ(c.reward().max_tokens_per_micro_batch(), 0);
  EXPECT_EQ(c.actor().max_tokens_per_micro_batch(), 4096);
  EXPECT_EQ(resolved({"reward.max_tokens_per_micro_batch=0"}).reward().micro_rollout_batch_size(), 8);
}

TEST(RunConfig, SavesWhatARunNeedsToGoOnWhereItSavesAtAll) {
  const auto saves = [](const Strings& overrides) {
    return LoadRunConfig("", overrides, "").value().train().save_optimizer();
  };
  EXPECT_FALSE(saves({}));
  EXPECT_TRUE(saves({"train.save_steps=10"}));
  EXPECT_FALSE(saves({"train.save_steps=10", "train.save_optimizer=false"}));
  EXPECT_TRUE(saves({"train.save_optimizer=true"}));
  EXPECT_TRUE(saves({"train.save_on_sigterm=true"}));
  ExpectError({"train.save_on_sigterm=true", "train.save_optimizer=false"},
              {"train.save_optimizer: false", "train.save_on_sigterm"});
  EXPECT_EQ(LoadRunConfig("", {"train.save_steps=2"}, "").value().train().max_ckpt_num(), 3);
}

TEST(RunConfig, AnOptimizerHasItsOwnOptionsAlone) {
  const TrainerConfig adam = LoadRunConfig("", {}, "").value().actor();
  EXPECT_EQ(adam.optim(), "adam");
  EXPECT_EQ(adam.adam_beta1(), 0.9);
  EXPECT_EQ(adam.adam_beta2(), 0.95);
  EXPECT_EQ(adam.adam_eps(), 1e-8);
  EXPECT_FALSE(adam.has_momentum());
  const RunConfig config = LoadRunConfig("", {"critic.optim=sgd", "actor.optim=sgd", "actor.momentum=0"}, "").value();
  EXPECT_EQ(config.critic().momentum(), 0.9);
  EXPECT_EQ(config.actor().momentum(), 0);
  for (const char* other : {"adam_beta1", "adam_beta2", "adam_eps"}) {
    EXPECT_EQ(config.critic().DebugString().find(other), std::string::npos) << config.critic().DebugString();
    ExpectError({"critic.optim=sgd", std::string("critic.") + other + "=0.5"},
                {std::string("critic.") + other + " has no effect", "critic.optim is \"sgd\""});
  }
  ExpectError({"actor.momentum=0.9"}, {"actor.momentum has no effect", "actor.optim is \"adam\""});
  ExpectError({"actor.optim=adamw"}, {"actor.optim", "\"adamw\"", "allowed: \"adam\", \"sgd\""});
  ExpectError({"actor.optim=sgd", "actor.momentum=1"}, {"actor.momentum: 1", "at least 0 and below 1"});
  ExpectError({"actor.adam_eps=0"}, {"actor.adam_eps: 0", "greater than 0"});
}

TEST(RunConfig, RatesOfSgdHaveNoDefault) {
  const auto error_of = [](Program program, Strings overrides) {
    overrides.insert(overrides.end(),
                     {"actor.pretrain=/m", "critic.pretrain=/m", "data.prompt_data=/d", "reward.source.0.rule=number"});
    const absl::StatusOr<RunConfig> config = LoadRunConfig("", overrides, "");
    EXPECT_TRUE(config.ok()) << config.status();
    return std::string(CheckFor(*config, program).message());
  };
  const std::string why = ".optim is \"sgd\", of which a step is the learning rate times the gradient";
  EXPECT_EQ(error_of(Program::kPpo, {"actor.optim=sgd"}),
            "actor.learning_rate is not set; it has no default where actor" + why);
  EXPECT_EQ(error_of(Program::kPpo, {"critic.optim=sgd"}),
            "critic.learning_rate is not set; it has no default where critic" + why);
  EXPECT_EQ(error_of(Program::kPpo, {"actor.optim=sgd", "actor.learning_rate=0.1"}), "");
  // Services are told the rate of each step.
  EXPECT_EQ(error_of(Program::kPolicyTrainer, {"actor.optim=sgd"}), "");
}

TEST(RunConfig, RatesOfFineTuningBySgdHaveNoDefault) {
  const auto error_of = [](Program program, const Strings& overrides) {
    const absl::StatusOr<RunConfig> config = LoadRunConfig("", overrides, "", program);
    EXPECT_TRUE(config.ok()) << config.status();
    return std::string(CheckFor(*config, program).message());
  };
  const Strings sft = {"sft.data=/d", "actor.pretrain=/m"};
  const Strings pairs = {"preference.data=/d", "actor.max_len=512"};
  const auto with = [](Strings base, const Strings& more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
  };
  EXPECT_EQ(error_of(Program::kSft, sft), "");
  EXPECT_EQ(error_of(Program::kSft, with(sft, {"actor.optim=sgd", "actor.learning_rate=0.1"})), "");
  EXPECT_NE(error_of(Program::kSft, with(sft, {"actor.optim=sgd"})).find("actor.learning_rate is not set"),
            std::string::npos);
  const Strings dpo = with(pairs, {"actor.pretrain=/m", "actor.optim=sgd"});
  EXPECT_EQ(error_of(Program::kDpo, with(dpo, {"actor.learning_rate=0.1"})), "");
  EXPECT_NE(error_of(Program::kDpo, dpo).find("actor.learning_rate is not set"), std::string::npos);
}

TEST(RunConfig, AcceptsTheNeighboursOfWhatItRefuses) {
  EXPECT_EQ(ErrorOf({"actor.learning_rate=0", "actor.allow_zero_learning_rate=true"}), "");
  EXPECT_EQ(ErrorOf({"algorithm.dual_clip=3"}), "");
  EXPECT_EQ(ErrorOf({"actor.zero_stage=2", "actor.adam_offload=true", "actor.no_sync=true", "actor.shard_size=8",
                     "actor.ema_decay=0.992", "actor.activation_offload=true"}),
            "");
  EXPECT_EQ(ErrorOf({"critic.adam_offload=true", "critic.offload_param=true"}), "");
  EXPECT_EQ(ErrorOf({"reference.offload_param=true", "services.scorer.host_memory_budget=5"}), "");
  EXPECT_EQ(ErrorOf({"rollout.enable_sleep=true", "actor.sleep_offload=true", "critic.sleep_offload=true"}), "");
  EXPECT_EQ(ErrorOf({"critic.adam_offload=true", "services.critic_trainer.host_memory_budget=5"}), "");
  EXPECT_EQ(ErrorOf({"algorithm.eps_clip=0.3", "algorithm.eps_clip_low=0.1"}), "");
  EXPECT_EQ(ErrorOf({"algorithm.kl.init_kl_coef=0"}), "");
  EXPECT_EQ(ErrorOf({"algorithm.kl.kl_target=6", "algorithm.kl.kl_horizon=26"}), "");
  EXPECT_EQ(ErrorOf({"rollout.top_p=0.9", "rollout.top_k=50", "rollout.temperature=0.7"}), "");
  EXPECT_EQ(ErrorOf({"services.rollout.device_memory_budget=5"}), "");
  EXPECT_EQ(ErrorOf({"services.policy_trainer.device=cuda", "services.policy_trainer.host_memory_budget=5"}), "");
  EXPECT_EQ(ErrorOf({"services.rollout.device=cuda", "services.rollout.host_memory_budget=5"}), "");
}

TEST(RunConfig, PrintsWhatItCanReadAgain) {
  for (const Strings& overrides :
       {Strings{}, Strings{"algorithm.kl.init_kl_coef=0"},
        Strings{"actor.max_tokens_per_micro_batch=4096", "reward.source.0.model=rm",
                "reward.max_tokens_per_micro_batch=4096"},
        Strings{"actor.micro_train_batch_size=4", "critic.micro_rollout_batch_size=2", "reward.source.0.model=rm",
                "reward.micro_rollout_batch_size=2"},
        Strings{"algorithm.eps_clip=0.3", "algorithm.eps_clip_low=0.1"},
        Strings{"actor.optim=sgd", "critic.optim=sgd", "critic.momentum=0"},
        Strings{"algorithm.eps_clip_low=0.1", "algorithm.eps_clip_high=0.3"},
        Strings{"data.input_template={}Größe\n\"x\""},
        Strings{"reward.source.0.rule=number", "reward.source.1.model=rm", "actor.learning_rate=3.3e-7"}}) {
    RunConfig first = LoadRunConfig("", overrides, "/base").value();
    const std::string text = PrintRunConfig(first);
    absl::StatusOr<RunConfig> second = LoadRunConfig(Written(text), {}, "/elsewhere");
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(PrintRunConfig(*second), text);
  }
}

TEST(RunConfig, MakesPathsAbsolute) {
  RunConfig c =
      LoadRunConfig("", {"actor.pretrain=models/a", "run_dir=out", "reward.source.0.model=../rm"}, "/base/x").value();
  EXPECT_EQ(c.actor().pretrain(), "/base/x/models/a");
  EXPECT_EQ(c.rollout().pretrain(), "/base/x/models/a");
  EXPECT_EQ(c.run_dir(), "/base/x/out");
  EXPECT_EQ(LoadRunConfig("", {"run_dir=/runs/a/"}, "/base/x").value().run_dir(), "/runs/a");
  EXPECT_EQ(LoadRunConfig("", {"run_dir=a/"}, "/base/x").value().run_dir(), "/base/x/a");
  EXPECT_EQ(c.reward().source(0).model(), "/base/rm");
  const RunConfig command = LoadRunConfig("", {"reward.source.0.command=python3 mine.py"}, "/base/x").value();
  EXPECT_EQ(command.reward().source(0).command(), "python3 mine.py");
  EXPECT_EQ(command.reward().source(0).command_folder(), "/base/x");
  c = LoadRunConfig("", {"data.apply_chat_template=true", "data.tokenizer_chat_template=t.jinja"}, "/base/x").value();
  EXPECT_EQ(c.data().tokenizer_chat_template(), "/base/x/t.jinja");
  c = LoadRunConfig("", {"actor.load_checkpoint=a_state", "critic.load_checkpoint=/c"}, "/base/x").value();
  EXPECT_EQ(c.actor().load_checkpoint(), "/base/x/a_state");
  EXPECT_EQ(c.critic().load_checkpoint(), "/c");
}

TEST(RunConfig, AsksEachProgramOnlyForWhatItNeeds) {
  const auto missing = [](const Strings& overrides, Program program) {
    return std::string(CheckFor(LoadRunConfig("", overrides, "").value(), program).message());
  };
  EXPECT_NE(missing({}, Program::kRollout).find("rollout.pretrain"), std::string::npos);
  EXPECT_EQ(missing({"rollout.pretrain=/m"}, Program::kRollout), "");
  EXPECT_NE(missing({}, Program::kPolicyTrainer).find("actor.pretrain"), std::string::npos);
  EXPECT_EQ(missing({"actor.pretrain=/m"}, Program::kPolicyTrainer), "");
  EXPECT_NE(missing({"actor.pretrain=/m"}, Program::kCriticTrainer).find("critic.pretrain"), std::string::npos);
  EXPECT_EQ(missing({"reference.pretrain=/m"}, Program::kScorer), "");
  EXPECT_EQ(missing({"algorithm.kl.init_kl_coef=0", "reward.source.0.rule=number"}, Program::kScorer), "");
  EXPECT_NE(missing({"algorithm.kl.init_kl_coef=0"}, Program::kScorer).find("reward.source"), std::string::npos);
  EXPECT_NE(missing({"actor.pretrain=/m"}, Program::kSft).find("sft.data"), std::string::npos);
  const Strings ppo = {"actor.pretrain=/m", "critic.pretrain=/m", "reward.source.0.rule=number"};
  EXPECT_NE(missing(ppo, Program::kPpo).find("data.prompt_data"), std::string::npos);
  Strings complete = ppo;
  complete.push_back("data.prompt_data=/d");
  EXPECT_EQ(missing(complete, Program::kPpo), "");
  complete.push_back("actor.max_len=100");
  EXPECT_NE(missing(complete, Program::kPpo).find("actor.max_len"), std::string::npos);
}

TEST(RunConfig, WithoutSourcesOfRewardsIsARunThatHasATeacher) {
  const auto said = [](Strings overrides) {
    for (const char* set : {"actor.pretrain=/m", "critic.pretrain=/m", "data.prompt_data=/d"}) overrides.push_back(set);
    const auto config = LoadRunConfig("", overrides, "");
    return config.ok() ? std::string(CheckFor(*config, Program::kPpo).message()) : config.status().ToString();
  };
  EXPECT_THAT(said({}), HasSubstr("reward.source is not set"));
  EXPECT_THAT(said({"reference.pretrain=/m"}), HasSubstr("reference.pretrain must be another model"));
  EXPECT_EQ(said({"reference.pretrain=/teacher"}), "");
  EXPECT_EQ(said({"reference.pretrain=/teacher", "algorithm.kl.use_kl_loss=true"}), "");
  EXPECT_EQ(said({"reference.pretrain=/teacher", "actor.lora.r=8"}), "");
  EXPECT_THAT(said({"actor.lora.r=8"}), HasSubstr("reward.source is not set"));
  EXPECT_THAT(said({"algorithm.kl.init_kl_coef=0"}), HasSubstr("reward.source is not set"));
  EXPECT_EQ(said({"algorithm.overlong_buffer_len=8"}), "") << "answers have rewards for their length";

  EXPECT_THAT(said({"reference.pretrain=/teacher", "eval.data=/d"}),
              AllOf(HasSubstr("eval.data has no effect"), HasSubstr("weight: 0")));
  EXPECT_EQ(
      said({"reference.pretrain=/teacher", "eval.data=/d", "reward.source.0.rule=number", "reward.source.0.weight=0"}),
      "");
  EXPECT_THAT(said({"reference.pretrain=/m", "reward.source.0.rule=number", "reward.source.0.weight=0"}),
              AllOf(HasSubstr("reference.pretrain: \"/m\""), HasSubstr("another model than actor.pretrain")));
  EXPECT_THAT(said({"reference.pretrain=/teacher", "algorithm.dynamic_sampling.filter=mean_inside"}),
              HasSubstr("algorithm.dynamic_sampling.filter: \"mean_inside\""));
}

TEST(RunConfig, OfPreferencesNamesWhatIsWrongAndWhatIsAllowed) {
  ExpectError({"preference.loss=hinge"}, {"preference.loss: \"hinge\"", "\"sigmoid\", \"ipo\""}, Program::kDpo);
  ExpectError({"preference.beta=0"}, {"preference.beta: 0", "greater than 0"}, Program::kDpo);
  ExpectError({"preference.label_smoothing=0.5"}, {"preference.label_smoothing: 0.5", "below 0.5"}, Program::kDpo);
  ExpectError({"preference.loss=ipo", "preference.label_smoothing=0.1"},
              {"preference.label_smoothing has no effect", "\"ipo\""}, Program::kDpo);
  const auto missing = [](const Strings& overrides, Program program) {
    return std::string(CheckFor(LoadRunConfig("", overrides, "", program).value(), program).message());
  };
  EXPECT_NE(missing({"actor.pretrain=/m"}, Program::kDpo).find("preference.data is not set"), std::string::npos);
  EXPECT_NE(missing({"preference.data=/d"}, Program::kDpo).find("actor.pretrain is not set"), std::string::npos);
  EXPECT_NE(missing({"preference.data=/d"}, Program::kRewardModel).find("critic.pretrain is not set"),
            std::string::npos);
  EXPECT_EQ(missing({"critic.pretrain=/m", "preference.data=/d", "critic.max_len=3000"}, Program::kRewardModel), "");
  EXPECT_NE(
      missing(
          {"critic.pretrain=/m", "preference.data=/d", "critic.max_len=3000", "critic.max_tokens_per_micro_batch=4096"},
          Program::kRewardModel)
          .find("critic.max_tokens_per_micro_batch: 4096 is not allowed; a pair of two sequences of critic.max_len"),
      std::string::npos);
}

TEST(RunConfig, ServicesAreKeptFromOtherUsersByTlsOrByThemselves) {
  const Strings tls = {"tls.ca_file=/c", "tls.cert_file=/c", "tls.key_file=/k"};
  Strings both = tls;
  both.push_back("services.allow_other_users=true");
  ExpectError(both, {"services.allow_other_users has no effect", "tls"});
}

}  // namespace
}  // namespace quartet
