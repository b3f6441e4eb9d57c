// Runs that are small enough to make, to be planned.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/config/run_config.h"
#include "core/model/initialize.h"
#include "core/training/testing/engine_ranks.h"
#include "planner/search.h"

namespace quartet {

// Small enough to run; large enough that padding, and what oneDNN takes for a bf16 product (some hundred KiB), matter
// little.
inline std::string NewModel() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 2048;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 32;
  config.max_position_embeddings = 512;
  const std::string folder = NewTestFolder("model");
  const absl::Status written = WriteRandomModel(config, HeadKind::kVocabulary, 1, Dtype::kBF16, folder);
  EXPECT_TRUE(written.ok()) << written;
  return folder;
}

inline RunConfig Resolved(RunConfig config, const std::vector<std::string>& overrides,
                          Program program = Program::kPpo) {
  auto changed = WithOverrides(config, overrides, program);
  EXPECT_TRUE(changed.ok()) << changed.status();
  return *std::move(changed);
}

// All four services on two ranks each. The longest sequence, 512 tokens, fills a trainer's micro-batch.
inline RunConfig Config(const std::string& model, const std::vector<std::string>& overrides,
                        Program program = Program::kPpo) {
  RunConfig config;
  config.mutable_actor()->set_pretrain(model);
  config.mutable_critic()->set_pretrain(model);
  std::vector<std::string> all = {"data.prompt_max_len=256",
                                  "rollout.generate_max_len=256",
                                  "rollout.rollout_batch_size=8",
                                  "rollout.kv_cache_bytes=16777216",
                                  "rollout.max_num_seqs=8",
                                  "rollout.max_num_batched_tokens=512",
                                  "actor.max_len=512",
                                  "critic.max_len=512",
                                  "actor.max_tokens_per_micro_batch=512",
                                  "critic.max_tokens_per_micro_batch=512",
                                  "reward.source.0.rule=number",
                                  "services.rollout.ranks=2",
                                  "services.policy_trainer.ranks=2",
                                  "services.critic_trainer.ranks=2",
                                  "services.scorer.ranks=2"};
  // Those that tests run with.
  for (const std::string& service : kServiceNames) all.push_back("services." + service + ".threads=2");
  all.insert(all.end(), overrides.begin(), overrides.end());
  return Resolved(config, all, program);
}

// Four GPUs of one node, which all services share.
inline RunConfig OnGpus(const std::string& model, int64_t gpu_bytes, const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"cluster.num_gpus_per_node=4",
                                  "cluster.gpu_memory_bytes=" + std::to_string(gpu_bytes)};
  for (const std::string& service : kServiceNames) {
    all.push_back("services." + service + ".device=cuda");
    all.push_back("services." + service + ".ranks=4");
  }
  all.insert(all.end(), overrides.begin(), overrides.end());
  return Config(model, all);
}

}  // namespace quartet
