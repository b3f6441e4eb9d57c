// Engines of several ranks: sharded (zero_stage 3), and tensor-parallel.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/comm/store/local_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"
#include "rollout/engine/engine_options.h"
#include "rollout/engine/testing/engine_harness.h"

namespace quartet {
namespace {

using nlohmann::json;

TEST(RolloutEngine, ShardedOverTwoRanksGeneratesTheSame) {
  const json golden = GoldenOf("qwen2");
  std::mutex mutex;
  Results joined;
  WithTwoShardedRanks(OptionsFor("qwen2"), [&](int rank, RolloutEngine& engine) {
    std::vector<GenerationTask> mine;
    for (GenerationTask& task : TasksOf(golden)) {
      if (task.prompt_index % 4 == 0 ? rank == 0 : rank == 1) mine.push_back(std::move(task));
    }
    const int64_t most = golden["max_new_tokens"];
    Results results = GenerateInSteps(engine, Greedy(golden["max_new_tokens"]), mine, most + 2);
    const std::lock_guard lock(mutex);
    joined.merge(results);
  });
  ExpectGolden(golden, joined);
}

TEST(RolloutEngine, ARankWithoutPromptsKeepsStepWithTheOthers) {
  const json golden = GoldenOf("llama");
  WithTwoShardedRanks(OptionsFor("llama"), [&](int rank, RolloutEngine& engine) {
    const std::vector<GenerationTask> tasks = rank == 1 ? TasksOf(golden) : std::vector<GenerationTask>();
    const int64_t most = golden["max_new_tokens"];
    const Results results = GenerateInSteps(engine, Greedy(golden["max_new_tokens"]), tasks, most + 2);
    if (rank == 1) ExpectGolden(golden, results);
  });
}

TEST(RolloutEngine, ShardedRanksReleaseAndReadTheirShards) {
  const json golden = GoldenOf("llama");
  WithTwoShardedRanks(OptionsFor("llama"), [&](int rank, RolloutEngine& engine) {
    engine.Sleep(/*release_weights=*/true);
    ASSERT_TRUE(engine.Wake().ok());
    const int64_t most = golden["max_new_tokens"];
    const Results results = GenerateInSteps(engine, Greedy(golden["max_new_tokens"]),
                                            rank == 0 ? TasksOf(golden) : std::vector<GenerationTask>(), most + 2);
    if (rank == 0) ExpectGolden(golden, results);
  });
}

// Parts end anywhere in the panels of sixteen rows in which products read matrices.
TEST(RolloutEngine, ShardedRanksMakeTheBitsOfOneWithAllOfTheWeights) {
  for (const bool tied : {true, false}) {
    const WideModel model(tied, /*vocab_size=*/160);  // whole panels: embedding and head have the order, too
    RolloutConfig options = model.options;
    options.set_dtype("bf16");
    const SamplingParams sampling = Greedy(20);
    LoadedEngine whole(options);
    const Results loaded = Generate(*whole.engine, sampling, model.tasks);
    auto of_whole = whole->NewStaging();
    FillWithPattern(*of_whole);
    whole->Commit(std::move(of_whole), 1);
    const Results updated = Generate(*whole.engine, sampling, model.tasks);
    options.set_zero_stage(3);
    for (const int ranks : {2, 3, 5}) {
      WithRanks(options, ranks, [&](int rank, RolloutEngine& engine) {
        const auto expect = [&](const Results& expected) {
          std::vector<GenerationTask> mine;
          for (const GenerationTask& task : model.tasks) {
            if (static_cast<int>(task.prompt_index) % ranks == rank) mine.push_back(task);
          }
          for (const auto& [key, sequence] : GenerateInSteps(engine, sampling, mine, 22)) {
            EXPECT_EQ(AnswerOf(sequence), AnswerOf(expected.at(key))) << ranks << " ranks, prompt " << key.first;
            for (int t = 0; t < sequence.log_probs_size(); ++t) {
              EXPECT_EQ(sequence.log_probs(t), expected.at(key).log_probs(t))
                  << ranks << " ranks, prompt " << key.first;
            }
          }
        };
        expect(loaded);
        auto staging = engine.NewStaging();
        FillWithPattern(*staging);
        engine.Commit(std::move(staging), 1);
        expect(updated);
        engine.Sleep(/*release_weights=*/true);
        ASSERT_TRUE(engine.Wake().ok());
        auto again = engine.NewStaging();
        FillWithPattern(*again);
        again->Prepare();
        engine.Commit(std::move(again), 2);
        expect(updated);
      });
    }
  }
}

TEST(RolloutEngine, ShardedRanksCommitTheirShards) {
  const json updated = GoldenOf("llama updated to mistral");
  WithTwoShardedRanks(OptionsFor("llama"), [&](int rank, RolloutEngine& engine) {
    auto staging = engine.NewStaging();
    Fill(*staging, engine, "mistral");
    engine.Commit(std::move(staging), 1);
    const int64_t most = updated["max_new_tokens"];
    const Results results = GenerateInSteps(engine, Greedy(updated["max_new_tokens"]),
                                            rank == 0 ? TasksOf(updated) : std::vector<GenerationTask>(), most + 2);
    for (const auto& [key, sequence] : results) {
      EXPECT_EQ(AnswerOf(sequence), updated["cases"][key.first]["answer"].get<std::vector<int32_t>>());
    }
  });
}

TEST(RolloutEngine, RanksThatStepTogetherAgreeOnTheirNextStep) {
  const WideModel model(true);
  const auto agreement = [&](int zero_stage, int tensor_parallel_size) {
    RolloutConfig options = model.options;
    options.set_zero_stage(zero_stage);
    options.set_tensor_parallel_size(tensor_parallel_size);
    std::vector<StepAgreement> agreed(2);
    WithRanks(options, 2, [&](int rank, RolloutEngine& engine) {
      if (rank == 1) Add(engine, Greedy(5), {model.tasks[0]});
      agreed[rank] = *engine.AgreeOnStep(7 - rank);
    });
    return agreed;
  };
  for (const StepAgreement& agreed : agreement(3, 1)) {
    EXPECT_EQ(agreed.batches, 6);
    EXPECT_FALSE(agreed.idle);
  }
  for (const StepAgreement& agreed : agreement(0, 2)) EXPECT_EQ(agreed.batches, 6);
  const std::vector<StepAgreement> alone = agreement(0, 1);
  EXPECT_EQ(alone[0].batches, 7);
  EXPECT_TRUE(alone[0].idle);
  EXPECT_FALSE(alone[1].idle);
}

TEST(TensorParallelEngine, GeneratesGreedilyWhatTransformersGenerates) {
  for (const json& golden : Golden()) {
    if (golden["model"] == "llama updated to mistral") continue;
    if (golden["model"] == "olmo2") continue;  // its heads cannot be dealt to ranks
    SCOPED_TRACE(golden["model"].get<std::string>());
    RolloutConfig options = OptionsFor(golden["model"]);
    options.set_max_num_batched_tokens(50);
    for (const int ranks : {2, 4}) {  // of 2 key/value heads each is on two of 4
      SCOPED_TRACE(ranks);
      WithTensorParallelRanks(options, ranks, [&](int, RolloutEngine& engine) {
        ExpectGolden(golden, Generate(engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
      });
    }
  }
}

// Two places, one engine alone and tensor-parallel ranks; with one new token no sample ever runs.
TEST(TensorParallelEngine, SamplesGetTheSameTokensHoweverFewFirstTokensAreDrawnAStep) {
  const json golden = GoldenOf("llama");
  constexpr int32_t kSamples = 40;
  for (const int32_t new_tokens : {1, 6}) {
    SamplingParams sampling = Sampling(0.7f, 20, 0.95f);
    sampling.set_max_new_tokens(new_tokens);
    RolloutConfig options = OptionsFor("llama");
    options.set_max_num_seqs(64);
    LoadedEngine many(options);
    const Results expected = Generate(*many.engine, sampling, TasksOf(golden, kSamples));
    options.set_max_num_seqs(2);
    const auto expect_the_same = [&](RolloutEngine& engine) {
      Add(engine, sampling, TasksOf(golden, kSamples));
      Results results;
      while (!engine.idle()) {
        const int64_t before = engine.stats().generated_tokens();
        std::map<uint64_t, Results> ended;
        Step(engine, &ended);
        EXPECT_LE(engine.stats().generated_tokens() - before, 2 + 2) << "those that run, and two that wait";
        results.merge(ended[1]);
      }
      ASSERT_EQ(results.size(), expected.size());
      for (const auto& [key, sequence] : results) {
        EXPECT_EQ(AnswerOf(sequence), AnswerOf(expected.at(key)))
            << "prompt " << key.first << ", sample " << key.second;
      }
    };
    LoadedEngine few(options);
    expect_the_same(*few.engine);
    WithTensorParallelRanks(options, 2, [&](int, RolloutEngine& engine) { expect_the_same(engine); });
  }
}

// What an engine answered, event by event.
void ExpectTheSame(const std::vector<EngineEvent>& events, const std::vector<EngineEvent>& expected, double allowed) {
  ASSERT_EQ(events.size(), expected.size());
  const auto expect_near = [&](const auto& values, const auto& others) {
    ASSERT_EQ(values.size(), others.size());
    for (int i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], others[i], allowed);
  };
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].call, expected[i].call);
    ASSERT_EQ(events[i].what.index(), expected[i].what.index());
    if (const auto* status = std::get_if<absl::Status>(&events[i].what)) {
      EXPECT_EQ(*status, std::get<absl::Status>(expected[i].what));
    } else if (const auto* tokens = std::get_if<GeneratedTokens>(&events[i].what)) {
      const auto& others = std::get<GeneratedTokens>(expected[i].what);
      EXPECT_EQ(tokens->prompt_index(), others.prompt_index());
      EXPECT_EQ(std::vector<int32_t>(tokens->ids().begin(), tokens->ids().end()),
                std::vector<int32_t>(others.ids().begin(), others.ids().end()));
    } else {
      const auto& sequence = std::get<GeneratedSequence>(events[i].what);
      const auto& other = std::get<GeneratedSequence>(expected[i].what);
      EXPECT_EQ(sequence.prompt_index(), other.prompt_index());
      EXPECT_EQ(sequence.sample(), other.sample());
      EXPECT_EQ(sequence.finish_reason(), other.finish_reason());
      ASSERT_EQ(AnswerOf(sequence), AnswerOf(other)) << "prompt " << sequence.prompt_index();
      expect_near(sequence.log_probs(), other.log_probs());
      expect_near(sequence.sampled_log_probs(), other.sampled_log_probs());
      expect_near(sequence.prompt_log_probs(), other.prompt_log_probs());
      ASSERT_EQ(sequence.alternatives_size(), other.alternatives_size());
      for (int t = 0; t < sequence.alternatives_size(); ++t) {
        EXPECT_EQ(std::vector<int32_t>(sequence.alternatives(t).ids().begin(), sequence.alternatives(t).ids().end()),
                  std::vector<int32_t>(other.alternatives(t).ids().begin(), other.alternatives(t).ids().end()));
        expect_near(sequence.alternatives(t).log_probs(), other.alternatives(t).log_probs());
      }
      EXPECT_TRUE(std::equal(sequence.policy_versions().begin(), sequence.policy_versions().end(),
                             other.policy_versions().begin(), other.policy_versions().end()));
    }
  }
}

// Everything that can happen to an engine, the same whichever rank it is.
std::vector<EngineEvent> LiveThrough(RolloutEngine& engine, const WideModel& model) {
  std::vector<EngineEvent> all;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      auto events = engine.Step();
      ASSERT_TRUE(events.ok()) << events.status();
      for (EngineEvent& event : *events) all.push_back(std::move(event));
    }
  };
  const auto add = [&](uint64_t call, SamplingParams sampling, const std::vector<GenerationTask>& tasks,
                       bool stream = false) {
    std::vector<GenerationTask> mine = tasks;
    for (GenerationTask& task : mine) {
      task.samples = sampling.n_samples();
      task.stream_tokens = stream;
    }
    Add(engine, sampling, mine, call);
  };
  steps(1);  // nothing to do
  SamplingParams sampling = Sampling(0.9f, 0, 0.9f);
  sampling.set_n_samples(3);
  sampling.set_logprobs(2);
  add(1, sampling, model.tasks);
  add(2, Greedy(30), model.tasks, /*stream=*/true);
  steps(9);
  add(3, Greedy(50), {model.tasks[5]});
  steps(4);
  for (GeneratedSequence& sequence : engine.Abort(2)) all.push_back({2, std::move(sequence)});
  steps(3);
  engine.Sleep(/*release_weights=*/true);
  EXPECT_TRUE(engine.Wake().ok());
  steps(5);
  auto staging = engine.NewStaging();
  for (const StagedRange& range : staging->ranges()) {
    // A function of the element's place in the whole tensor.
    for (int64_t i = 0; i < range.elements.numel(); ++i) {
      const int64_t place = NextPart(range.elements, i, 1).begin;
      static_cast<float*>(range.data)[i] = static_cast<float>((place * 7919 + range.tensor * 31) % 257 - 128) / 1024;
    }
  }
  engine.Commit(std::move(staging), 7);
  SamplingParams told = Greedy(20);
  told.set_prompt_logprobs(1);
  add(4, told, model.tasks);
  steps(200);
  EXPECT_TRUE(engine.idle());
  return all;
}

TEST(TensorParallelEngine, LivesThroughTheSameAsOneRank) {
  for (const bool tied : {false, true}) {
    const WideModel model(tied);
    RolloutConfig options = model.options;
    options.set_max_num_batched_tokens(60);
    options.set_max_num_seqs(11);
    options.set_kv_cache_bytes(int64_t{3} * 30 * 2 * 4 * 16 * 16 * 4);  // 30 blocks
    LoadedEngine lone(options);
    const std::vector<EngineEvent> expected = LiveThrough(*lone.engine, model);
    EXPECT_GT(lone->stats().preemptions(), 1);
    EXPECT_GT(lone->stats().cached_tokens(), 0);
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", tied ? "tied" : "untied"));
      RolloutConfig share = options;
      share.set_kv_cache_bytes(share.kv_cache_bytes() / ranks);
      WithTensorParallelRanks(share, ranks, [&](int, RolloutEngine& engine) {
        ExpectTheSame(LiveThrough(engine, model), expected, 1e-5);
        EXPECT_EQ(engine.stats().blocks(), lone->stats().blocks());
        EXPECT_EQ(engine.stats().preemptions(), lone->stats().preemptions());
        EXPECT_EQ(engine.stats().cached_tokens(), lone->stats().cached_tokens());
        EXPECT_EQ(engine.version(), 7u);
      });
    }
  }
}

TEST(TensorParallelEngine, OneOfSeveralLivesThroughItsOwnInItsOwnTime) {
  const WideModel model(false);
  LoadedEngine lone(model.options);
  const std::vector<EngineEvent> expected = LiveThrough(*lone.engine, model);
  WithTensorParallelRanks(
      model.options, 2,
      [&](int rank, RolloutEngine& engine) {
        if (rank / 2 == 1) {
          ExpectTheSame(LiveThrough(engine, model), expected, 1e-5);
          const auto agreed = engine.AgreeOnStep(/*batches=*/10 + rank);
          ASSERT_TRUE(agreed.ok()) << agreed.status();
          EXPECT_EQ(agreed->batches, 12);  // those of ranks 2 and 3
          EXPECT_TRUE(agreed->idle);
        } else {
          const Results results = Generate(engine, Greedy(5), {model.tasks[3]});
          EXPECT_EQ(results.size(), 1u);
          EXPECT_EQ(engine.stats().steps(), 5);
        }
      },
      /*engines=*/2);
}

TEST(TensorParallelEngine, SaysTheSameOnAllRanksOfATokenThatCannotBeDrawn) {
  const WideModel model(true);
  SamplingParams impossible = Sampling(1, 0, 1);
  impossible.set_min_tokens(1);
  for (int32_t id = 0; id < 151; ++id) impossible.add_stop_token_ids(id);
  const auto live = [&](RolloutEngine& engine) {
    std::vector<EngineEvent> all;
    for (uint64_t call = 0; call < 4; ++call) Add(engine, impossible, {model.tasks[call]}, 1 + call);
    while (!engine.idle()) {
      auto events = engine.Step();
      EXPECT_TRUE(events.ok()) << events.status();
      for (EngineEvent& event : *events) all.push_back(std::move(event));
    }
    return all;
  };
  LoadedEngine lone(model.options);
  const std::vector<EngineEvent> expected = live(*lone.engine);
  ASSERT_EQ(expected.size(), 4);
  ASSERT_TRUE(std::holds_alternative<absl::Status>(expected[0].what));
  WithTensorParallelRanks(model.options, 2,
                          [&](int, RolloutEngine& engine) { ExpectTheSame(live(engine), expected, 0); });
}

TEST(TensorParallelEngine, InBf16ItsLogProbsAreNearThoseOfOneRank) {
  const WideModel model(false);
  RolloutConfig options = model.options;
  options.set_dtype("bf16");
  // One token each: what follows an answer that differs cannot be compared.
  const SamplingParams sampling = Greedy(1);
  LoadedEngine lone(options);
  const Results expected = Generate(*lone.engine, sampling, model.tasks);
  WithTensorParallelRanks(options, 2, [&](int, RolloutEngine& engine) {
    for (const auto& [key, sequence] : Generate(engine, sampling, model.tasks)) {
      EXPECT_NEAR(sequence.log_probs(0), expected.at(key).log_probs(0), 0.1);
    }
  });
}

// Adapters are cut as the matrices that they are added to, or are whole beside a model that is cut.
TEST(RolloutEngine, OfSeveralRanksAddsAdaptersAsOneDoes) {
  const RolloutConfig options = OptionsFor("llama_lora");
  const SamplingParams sampling = Greedy(8);
  const json golden = GoldenOf("llama");
  LoadedEngine lone(options);
  const Results expected = Generate(*lone.engine, sampling, TasksOf(golden));
  const auto expect_the_same = [&](const Results& results) {
    ASSERT_EQ(results.size(), expected.size());
    for (const auto& [key, sequence] : results) {
      ASSERT_EQ(AnswerOf(sequence), AnswerOf(expected.at(key)));
      for (int t = 0; t < sequence.log_probs_size(); ++t) {
        EXPECT_NEAR(sequence.log_probs(t), expected.at(key).log_probs(t), 2e-5);
      }
    }
  };
  for (const int ranks : {2, 4}) {
    WithTensorParallelRanks(options, ranks, [&](int, RolloutEngine& engine) {
      expect_the_same(Generate(engine, sampling, TasksOf(golden)));
    });
  }
  WithTwoShardedRanks(options, [&](int rank, RolloutEngine& engine) {
    const Results results =
        GenerateInSteps(engine, sampling, rank == 0 ? TasksOf(golden) : std::vector<GenerationTask>(), 10);
    if (rank == 0) expect_the_same(results);
  });
}

// They have no place in the memory that a sleep gives back.
TEST(RolloutEngine, KeepsItsAdaptersThroughASleepThatReleasesWeights) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama_lora"));
  const Results before = Generate(*engine.engine, Greedy(8), TasksOf(golden));
  engine->Sleep(/*release_weights=*/true);
  ASSERT_TRUE(engine->Wake().ok());
  for (const auto& [key, sequence] : Generate(*engine.engine, Greedy(8), TasksOf(golden))) {
    EXPECT_EQ(AnswerOf(sequence), AnswerOf(before.at(key)));
    EXPECT_EQ(sequence.log_probs(7), before.at(key).log_probs(7));
  }
}

// Of four ranks in two engines one leaves while the others are in collectives of either group.
TEST(EngineGroups, ThatOneRankLeavesFailInTheCollectivesOfTheOthersByItsName) {
  for (const char* backend : {"shm", "gloo"}) {
    RolloutConfig options;
    options.set_tensor_parallel_size(2);
    const auto store = MakeLocalStore();
    std::vector<absl::StatusOr<EngineGroups>> of_ranks(4);  // no group ends before all threads have
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        RankContext context = ContextOf(rank, 4, store.get());
        context.collective_backend = backend;
        absl::StatusOr<EngineGroups>& groups = of_ranks[rank];
        groups = MakeEngineGroups(options, context);
        ASSERT_TRUE(groups.ok()) << groups.status();
        groups->all->Barrier();
        if (rank == 1) return groups->Leave("no memory for the largest forward");
        try {
          (rank == 0 ? groups->of_shares() : groups->all.get())->Barrier();
          ADD_FAILURE() << "rank " << rank << " over " << backend << " did not hear of it";
        } catch (const std::exception& error) {
          EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 has left the group after collective")) << backend;
          EXPECT_THAT(error.what(), ::testing::HasSubstr("no memory for the largest forward"));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(TensorParallelEngine, HoldsItsShareOfWeightsAndCache) {
  const WideModel model(false);
  LoadedEngine lone(model.options);
  const int64_t whole = lone.ledger.current(MemoryCategory::kParameters);
  const auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Ledger ledger;
      RolloutConfig options = model.options;
      options.set_tensor_parallel_size(4);
      const auto engine = RolloutEngine::Load(options, ContextOf(rank, 4, store.get()), &ledger);
      ASSERT_TRUE(engine.ok()) << engine.status();
      EXPECT_LT(ledger.current(MemoryCategory::kParameters), whole * 3 / 10);
      // As many blocks, of a quarter of the heads.
      EXPECT_EQ(ledger.current(MemoryCategory::kKvCache), lone.ledger.current(MemoryCategory::kKvCache) / 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TensorParallelEngine, RefusesWhatItCannotDivide) {
  const auto refusal = [](const RolloutConfig& options, int ranks) {
    const auto store = MakeLocalStore();
    std::vector<std::string> messages(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Ledger ledger;
        const auto engine = RolloutEngine::Load(options, ContextOf(rank, ranks, store.get()), &ledger);
        EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
        messages[rank] = std::string(engine.status().message());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
    return messages[0];
  };
  RolloutConfig options = OptionsFor("llama");
  options.set_tensor_parallel_size(2);
  EXPECT_EQ(refusal(options, 1),
            "rollout.tensor_parallel_size is 2; allowed: 1 (the divisors of services.rollout.ranks, 1)");
  options.set_tensor_parallel_size(4);
  EXPECT_EQ(refusal(options, 6),
            "rollout.tensor_parallel_size is 4; allowed: 1, 2, 3, 6 (the divisors of services.rollout.ranks, 6)");
  options.set_tensor_parallel_size(2);
  options.set_zero_stage(3);
  EXPECT_EQ(refusal(options, 2), "rollout.tensor_parallel_size is 2; allowed: 1 with rollout.zero_stage 3");
  options.set_zero_stage(0);
  options.set_tensor_parallel_size(8);
  EXPECT_EQ(refusal(options, 8),
            "rank 0 of 8: config.json: num_attention_heads is 4, which cannot be "
            "divided over 8 ranks; allowed numbers of ranks: 1, 2, 4");
}

}  // namespace
}  // namespace quartet
