#include "tests/tiny_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/config/services.h"
#include "core/model/initialize.h"
#include "core/model/testing/letters_tokenizer.h"

namespace quartet {

ModelConfig TinyModelConfig() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  config.eos_token_ids = {2};
  return config;
}

std::string WriteTinyModel(const ProcessHarness& harness, const std::string& name, int extra_tokens) {
  std::string folder = harness.Path(name);
  const absl::Status written = WriteRandomModel(TinyModelConfig(), HeadKind::kVocabulary, 7, Dtype::kF32, folder);
  QUARTET_CHECK(written.ok()) << written.ToString();

  nlohmann::json vocab = {{"<pad>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (const char* c = kTinyAlphabet; *c != '\0'; ++c) vocab[std::string(1, *c)] = vocab.size();
  for (int i = 0; i < extra_tokens; ++i) vocab[absl::StrCat("<extra", i, ">")] = vocab.size();
  WriteLettersTokenizer(folder, vocab, {"<pad>", "<s>", "</s>"});
  return folder;
}

ProcessHarness::Service StartRollout(ProcessHarness& harness, const std::string& model,
                                     const std::vector<std::string>& overrides) {
  std::vector<std::string> arguments = {
      "--set=rollout.pretrain=" + model,           "--set=rollout.dtype=fp32",
      "--set=rollout.max_model_len=256",           "--set=rollout.kv_cache_bytes=4194304",
      "--set=services.rollout.listen=127.0.0.1:0", "--set=run_dir=" + harness.Path("rollout_run")};
  for (const std::string& field : overrides) arguments.push_back("--set=" + field);
  return harness.StartService("rollout", arguments);
}

TinyRun WriteTinyRun(const ProcessHarness& harness, const std::string& model, int ranks,
                     const std::vector<std::string>& overrides) {
  std::string prompts;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&prompts, "{\"prompt\": \"", i, "+1=\", \"label\": \"", i + 1, "\"}\n");
  TinyRun run;
  run.run_dir = harness.Path("run");
  const std::string text = absl::Substitute(R"(
run_dir: "$0"
data { prompt_data: "$1" prompt_max_len: 16 }
actor { pretrain: "$2" dtype: "fp32" learning_rate: 1e-3 }
critic { pretrain: "$2" dtype: "fp32" learning_rate: 1e-3 }
reference { dtype: "fp32" }
rollout { rollout_batch_size: 8 n_samples_per_prompt: 2 generate_max_len: 8 dtype: "fp32" kv_cache_bytes: 4194304 }
reward { source { rule: "exact_match" } }
train { max_steps: 3 call_timeout_seconds: 60 }
services {
  rollout { ranks: $3 threads: 1 listen: "127.0.0.1:0" }
  policy_trainer { ranks: $3 threads: 1 listen: "127.0.0.1:0" }
  critic_trainer { ranks: $3 threads: 1 listen: "127.0.0.1:0" }
  scorer { ranks: $3 threads: 1 listen: "127.0.0.1:0" }
}
)",
                                            run.run_dir, harness.Write("prompts.jsonl", prompts), model, ranks);
  run.config = harness.Write("run.textproto", text);
  run.arguments = {"--config=" + run.config};
  for (const std::string& field : overrides) run.arguments.push_back("--set=" + field);
  return run;
}

std::vector<std::string> ServicesByHand::arguments() const {
  std::vector<std::string> arguments;
  for (const auto& [name, service] : services) {
    arguments.push_back(absl::StrCat("--set=services.", name, ".listen=", service.address));
  }
  return arguments;
}

ServicesByHand StartServices(ProcessHarness& harness, const std::vector<std::string>& arguments) {
  ServicesByHand started{harness.StartServices(kServiceNames, arguments)};
  for (const auto& [name, service] : started.services) {
    EXPECT_FALSE(service.address.empty()) << harness.Output(service.pid);
  }
  return started;
}

std::vector<nlohmann::json> ReadRecords(const std::string& path) {
  std::vector<nlohmann::json> records;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) records.push_back(nlohmann::json::parse(line));
  return records;
}

std::vector<nlohmann::json> WaitForRecords(ProcessHarness& harness, pid_t pid, const std::string& path, size_t count,
                                           absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const bool last_look = harness.Wait(pid, absl::Milliseconds(50)).ended || absl::Now() > deadline;
    std::vector<nlohmann::json> records = ReadRecords(path);
    if (records.size() >= count || last_look) return records;
  }
}

void ExpectSameMetrics(const nlohmann::json& run, const nlohmann::json& expected, double relative) {
  SCOPED_TRACE("step " + expected.at("step").dump());
  for (const char* name :
       {"step", "policy_version", "reward/mean", "response_length/mean", "tokens/generated", "kl/mean",
        "kl/coefficient", "policy/loss", "policy/entropy", "policy/grad_norm", "policy/learning_rate", "critic/loss",
        "critic/grad_norm", "critic/value_mean", "critic/learning_rate"}) {
    const double want = expected.at(name).get<double>();
    EXPECT_NEAR(run.at(name).get<double>(), want, relative * std::abs(want) + 1e-6) << name;
  }
}

}  // namespace quartet
