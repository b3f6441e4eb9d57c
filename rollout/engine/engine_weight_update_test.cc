// An engine whose weights change, and one that sleeps.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/memory/block_cache.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"
#include "rollout/engine/testing/engine_harness.h"

namespace quartet {
namespace {

using nlohmann::json;

TEST(RolloutEngine, SequencesGoOnAcrossACommitAndSayWhichVersionMadeEachToken) {
  const json llama = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  SamplingParams sampling = Greedy(llama["max_new_tokens"]);
  sampling.set_ignore_eos(true);
  std::map<uint64_t, Results> results;
  Add(*engine.engine, sampling, TasksOf(llama));
  for (int step = 0; step < 5; ++step) Step(*engine.engine, &results);
  auto staging = engine->NewStaging();
  Fill(*staging, *engine.engine, "mistral");
  engine->Commit(std::move(staging), 3);
  while (!engine->idle()) Step(*engine.engine, &results);
  for (const auto& [key, sequence] : results[1]) {
    const std::vector<int32_t> answer = AnswerOf(sequence);
    const std::vector<int32_t> old = llama["cases"][key.first]["answer"];
    for (int t = 0; t < sequence.policy_versions_size(); ++t) {
      EXPECT_EQ(sequence.policy_versions(t), t < 5 ? 0u : 3u);
      EXPECT_TRUE(t >= std::min<int>(5, static_cast<int>(old.size())) || answer[t] == old[t]);
    }
  }
  // Nothing that the old weights computed is found.
  const json updated = GoldenOf("llama updated to mistral");
  const Results fresh = Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated));
  for (const auto& [key, sequence] : fresh) {
    EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
  }
}

// Some of each prompt is computed under the old weights, none of the samples has a token yet.
TEST(RolloutEngine, APromptThatACommitInterruptsIsOfTheNewWeightsAlone) {
  const json updated = GoldenOf("llama updated to mistral");
  RolloutConfig options = OptionsFor("llama");
  options.set_max_num_batched_tokens(4);
  options.set_max_num_seqs(2);
  LoadedEngine engine(options);
  for (const GenerationTask& task : TasksOf(updated, 3)) {
    if (task.ids.size() < 6) continue;
    auto old = engine->NewStaging();
    Fill(*old, *engine.engine, "llama");
    engine->Commit(std::move(old), engine->version() + 1);
    auto staging = engine->NewStaging();
    Fill(*staging, *engine.engine, "mistral");
    std::map<uint64_t, Results> results;
    Add(*engine.engine, Greedy(updated["max_new_tokens"]), {task});
    Step(*engine.engine, &results);
    const uint64_t version = engine->version() + 1;
    engine->Commit(std::move(staging), version);
    while (!engine->idle()) Step(*engine.engine, &results);
    const json& expected = updated["cases"][task.prompt_index];
    for (const auto& [key, sequence] : results[1]) {
      EXPECT_EQ(AnswerOf(sequence), expected["answer"].get<std::vector<int32_t>>()) << "prompt " << key.first;
      for (int t = 0; t < sequence.log_probs_size(); ++t) {
        EXPECT_NEAR(sequence.log_probs(t), expected["log_probs"][t].get<float>(), 2e-5);
        EXPECT_EQ(sequence.policy_versions(t), version);
      }
    }
  }
}

// After each number of steps of a prompt in chunks, up to the one in which its first tokens are drawn.
TEST(RolloutEngine, WhatIsToldOfAPromptThatACommitInterruptsIsOfOneVersion) {
  const json updated = GoldenOf("llama updated to mistral");
  RolloutConfig options = OptionsFor("llama");
  options.set_max_num_batched_tokens(2);
  options.set_max_num_seqs(2);
  const GenerationTask task = [&] {
    std::vector<GenerationTask> tasks = TasksOf(updated, 3);
    return *std::max_element(tasks.begin(), tasks.end(),
                             [](const auto& a, const auto& b) { return a.ids.size() < b.ids.size(); });
  }();
  SamplingParams sampling = Greedy(4);
  sampling.set_ignore_eos(true);
  sampling.set_prompt_logprobs(1);
  const int chunks = static_cast<int>((task.ids.size() + 1) / 2);
  ASSERT_GT(chunks, 2);
  const auto told_by = [&](const std::string& model) {
    LoadedEngine engine(options);
    auto staging = engine->NewStaging();
    Fill(*staging, *engine.engine, model);
    engine->Commit(std::move(staging), 3);
    return Generate(*engine.engine, sampling, {task}).at({task.prompt_index, 0});
  };
  const GeneratedSequence by_old = told_by("llama"), by_new = told_by("mistral");
  for (int before = 1; before <= chunks; ++before) {
    LoadedEngine engine(options);
    auto staging = engine->NewStaging();
    Fill(*staging, *engine.engine, "mistral");
    std::map<uint64_t, Results> results;
    Add(*engine.engine, sampling, {task});
    for (int step = 0; step < before; ++step) Step(*engine.engine, &results);
    engine->Commit(std::move(staging), 3);
    while (!engine->idle()) Step(*engine.engine, &results);
    ASSERT_EQ(results[1].size(), 3u);
    for (const auto& [key, sequence] : results[1]) {
      const bool old = before == chunks;
      const GeneratedSequence& expected = old ? by_old : by_new;
      EXPECT_EQ(sequence.policy_versions(0), old ? 0u : 3u);
      EXPECT_EQ(sequence.prompt_policy_version(), sequence.policy_versions(0));
      ASSERT_EQ(sequence.prompt_log_probs_size(), static_cast<int>(task.ids.size()) - 1);
      ASSERT_EQ(sequence.prompt_alternatives_size(), sequence.prompt_log_probs_size());
      for (int t = 0; t < sequence.prompt_log_probs_size(); ++t) {
        EXPECT_NEAR(sequence.prompt_log_probs(t), expected.prompt_log_probs(t), 2e-5)
            << before << " steps, token " << t;
        EXPECT_EQ(sequence.prompt_alternatives(t).ids(0), expected.prompt_alternatives(t).ids(0));
      }
    }
  }
}

TEST(RolloutEngine, ACommittedVersionGeneratesAndStampsItsTokens) {
  const json llama = GoldenOf("llama");
  const json updated = GoldenOf("llama updated to mistral");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  auto staging = engine->NewStaging();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
  Fill(*staging, *engine.engine, "mistral");
  // What is staged is not in use.
  ExpectGolden(llama, Generate(*engine.engine, Greedy(llama["max_new_tokens"]), TasksOf(llama)));
  engine->Commit(std::move(staging), 3);
  EXPECT_EQ(engine->version(), 3u);
  const Results results = Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated));
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(AnswerOf(results.at({i, 0})), updated["cases"][i]["answer"].get<std::vector<int32_t>>());
    for (const uint64_t version : results.at({i, 0}).policy_versions()) EXPECT_EQ(version, 3u);
  }
}

TEST(RolloutEngine, UpdatesAreStagedInReservedMemoryAndWhereTheVersionBeforeWasUntilASleepGivesThatBack) {
  const json updated = GoldenOf("llama updated to mistral");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  engine->ReserveStaging();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
  std::vector<const void*> places;
  const auto update = [&](uint64_t version) {
    auto staging = engine->NewStaging();
    places.push_back(staging->ranges().front().data);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
    Fill(*staging, *engine.engine, "mistral");
    engine->Commit(std::move(staging), version);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 2 * parameters);
    for (const auto& [key, sequence] : Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated))) {
      EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
    }
  };
  for (uint64_t version = 1; version <= 4; ++version) update(version);
  EXPECT_EQ(places[2], places[0]);
  EXPECT_EQ(places[3], places[1]);
  EXPECT_NE(places[1], places[0]);
  EXPECT_EQ(engine.ledger.peak(MemoryCategory::kParameters), 2 * parameters);

  engine->Sleep(/*release_weights=*/false);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), parameters);
  ASSERT_TRUE(engine->Wake().ok());
  update(5);
}

// Whether they are put in the order of products while the present ones are in use or at the commit.
TEST(RolloutEngine, GeneratesTheSameHoweverItsWeightsLie) {
  for (const std::string model : {"llama_tied_llama3_rope", "qwen2"}) {
    RolloutConfig options = OptionsFor(model);
    options.set_dtype("bf16");
    LoadedEngine whole(options);
    options.set_zero_stage(3);
    LoadedEngine sharded(options);
    const auto expect_the_same = [&] {
      const SamplingParams sampling = Sampling(0.7f, 20, 0.95f);
      const Results of_whole = Generate(*whole.engine, sampling, TasksOf(GoldenOf(model), 2));
      const Results of_sharded = Generate(*sharded.engine, sampling, TasksOf(GoldenOf(model), 2));
      for (const auto& [key, sequence] : of_sharded) {
        EXPECT_EQ(AnswerOf(of_whole.at(key)), AnswerOf(sequence));
        EXPECT_TRUE(
            std::equal(sequence.log_probs().begin(), sequence.log_probs().end(), of_whole.at(key).log_probs().begin()));
      }
    };
    expect_the_same();
    for (const bool prepares : {true, false}) {
      for (LoadedEngine* engine : {&whole, &sharded}) {
        auto staging = (*engine)->NewStaging();
        FillWithPattern(*staging, prepares ? 7919 : 6007);
        if (prepares) {
          staging->Prepare();
          if (engine == &whole) expect_the_same();  // what is staged is not in use
        }
        (*engine)->Commit(std::move(staging), prepares ? 1 : 2);
      }
      expect_the_same();
    }
  }
}

// Forwards of many tokens, so that most of what they take are blocks of the cache.
TEST(RolloutEngine, WhatForwardsFreeServesTheNextAndGoesBackInSleep) {
  RolloutConfig options = OptionsFor("llama");
  options.set_max_num_batched_tokens(16384);
  options.set_max_num_seqs(64);
  LoadedEngine engine(options);
  std::map<uint64_t, Results> results;
  const auto generate = [&](uint64_t call) {
    std::vector<GenerationTask> tasks(64);
    for (size_t i = 0; i < tasks.size(); ++i) {
      tasks[i].prompt_index = i;
      tasks[i].ids.assign(250, static_cast<int32_t>(20 * call + i % 20));  // nothing is kept of another call's prompts
      tasks[i].samples = 1;
    }
    SamplingParams sampling = Greedy(3);
    sampling.set_ignore_eos(true);
    Add(*engine.engine, sampling, tasks, call);
    while (!engine->idle()) Step(*engine.engine, &results);
    EXPECT_EQ(results[call].size(), 64);
  };
  generate(1);
  const size_t mapped = HostBlocks().stats().mapped;
  EXPECT_GT(HostBlocks().stats().free, size_t{1} << 20);
  generate(2);
  EXPECT_LE(HostBlocks().stats().mapped - mapped, mapped / 4);
  engine->Sleep(/*release_weights=*/false);
  EXPECT_EQ(HostBlocks().stats().free, 0);
}

TEST(RolloutEngine, SleepsWithoutItsCacheAndThenGoesOnWithWhatItHadBegun) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t cache = engine.ledger.current(MemoryCategory::kKvCache);
  EXPECT_GT(cache, 0);
  std::map<uint64_t, Results> results;
  Add(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden));
  for (int step = 0; step < 5; ++step) Step(*engine.engine, &results);
  engine->Sleep(/*release_weights=*/false);
  engine->Sleep(/*release_weights=*/false);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
  EXPECT_EQ(engine->stats().blocks_in_use(), 0);
  ASSERT_TRUE(engine->Wake().ok());
  ASSERT_TRUE(engine->Wake().ok());
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), cache);
  while (!engine->idle()) Step(*engine.engine, &results);
  ExpectGolden(golden, results[1]);
}

TEST(RolloutEngine, AnEngineThatCannotHaveItsMemoryAgainGoesOnSleeping) {
  LoadedEngine engine(OptionsFor("llama"));
  engine->Sleep(/*release_weights=*/false);
  engine.ledger.SetBudget(MemoryTier::kDevice, engine.ledger.total(MemoryTier::kDevice) + 1);
  EXPECT_EQ(engine->Wake().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
  engine.ledger.SetBudget(MemoryTier::kDevice, 0);
  EXPECT_TRUE(engine->Wake().ok());
}

TEST(RolloutEngine, ReadsItsWeightsAgainAfterASleepThatReleasedThem) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    RolloutConfig options = OptionsFor("llama");
    options.set_dtype(dtype);
    LoadedEngine engine(options);
    const json golden = GoldenOf("llama");
    const SamplingParams sampling = Greedy(golden["max_new_tokens"]);
    const Results before = Generate(*engine.engine, sampling, TasksOf(golden));
    const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
    EXPECT_GT(parameters, 0);
    std::map<uint64_t, Results> results;
    Add(*engine.engine, sampling, TasksOf(golden));
    for (int step = 0; step < 5; ++step) Step(*engine.engine, &results);
    for (int twice = 0; twice < 2; ++twice) {
      engine->Sleep(/*release_weights=*/twice == 0);  // the second is without effect
      EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
      EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
      EXPECT_FALSE(engine->has_weights());
    }
    ASSERT_TRUE(engine->Wake().ok());
    EXPECT_TRUE(engine->has_weights());
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), parameters);
    while (!engine->idle()) Step(*engine.engine, &results);
    const Results after = Generate(*engine.engine, sampling, TasksOf(golden));
    for (const auto& [key, sequence] : before) {
      EXPECT_EQ(AnswerOf(results[1].at(key)), AnswerOf(sequence));
      EXPECT_EQ(AnswerOf(after.at(key)), AnswerOf(sequence));
    }
    if (dtype == "fp32") ExpectGolden(golden, after);
  }
}

TEST(RolloutEngine, WeightsOfALaterVersionThatASleepReleasedComeBackByAnUpdateAlone) {
  const json updated = GoldenOf("llama updated to mistral");
  LoadedEngine engine(OptionsFor("llama"));
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  const auto update = [&] {
    auto staging = engine->NewStaging();
    Fill(*staging, *engine.engine, "mistral");
    engine->Commit(std::move(staging), 3);
    EXPECT_TRUE(engine->has_weights());
  };
  const auto expect_updated = [&] {
    const Results results = Generate(*engine.engine, Greedy(updated["max_new_tokens"]), TasksOf(updated));
    for (const auto& [key, sequence] : results) {
      EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
    }
  };
  update();
  // Awake first.
  engine->Sleep(/*release_weights=*/false);
  engine->Sleep(/*release_weights=*/true);
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
  ASSERT_TRUE(engine->Wake().ok());
  EXPECT_FALSE(engine->has_weights());
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
  update();
  EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), parameters);
  expect_updated();
  // Updated while it sleeps.
  engine->Sleep(/*release_weights=*/true);
  update();
  ASSERT_TRUE(engine->Wake().ok());
  expect_updated();
}

TEST(RolloutEngine, AnEngineThatCannotHaveItsWeightsAgainGoesOnSleepingWithoutThem) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "engine_test_vanishing";
  std::filesystem::remove_all(folder);
  std::filesystem::copy(Folder("llama"), folder, std::filesystem::copy_options::recursive);
  RolloutConfig options = OptionsFor("llama");
  options.set_pretrain(folder.string());
  LoadedEngine engine(options);
  const int64_t parameters = engine.ledger.current(MemoryCategory::kParameters);
  engine->Sleep(/*release_weights=*/true);
  const auto expect_asleep = [&] {
    EXPECT_FALSE(engine->has_weights());
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kParameters), 0);
    EXPECT_EQ(engine.ledger.current(MemoryCategory::kKvCache), 0);
  };
  // Too little for the weights; for the cache beside them.
  for (const int64_t room : {parameters - 1, parameters + 1}) {
    engine.ledger.SetBudget(MemoryTier::kDevice, engine.ledger.total(MemoryTier::kDevice) + room);
    EXPECT_EQ(engine->Wake().status().code(), absl::StatusCode::kResourceExhausted);
    expect_asleep();
  }
  engine.ledger.SetBudget(MemoryTier::kDevice, 0);
  std::filesystem::rename(folder / "model.safetensors", folder / "elsewhere");
  EXPECT_FALSE(engine->Wake().ok());
  expect_asleep();
  std::filesystem::rename(folder / "elsewhere", folder / "model.safetensors");
  EXPECT_TRUE(engine->Wake().ok());
  const json golden = GoldenOf("llama");
  ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
}

}  // namespace
}  // namespace quartet
