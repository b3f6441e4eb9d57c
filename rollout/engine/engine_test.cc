// What an engine generates from which prompts, and where answers end. Against transformers' greedy generation.

#include "rollout/engine/engine.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/model/testing/edited_folder.h"
#include "core/tokenizer/testing/piece_tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/testing/engine_harness.h"

namespace quartet {
namespace {

using nlohmann::json;

TEST(RolloutEngine, GeneratesGreedilyWhatTransformersGenerates) {
  for (const json& golden : Golden()) {
    if (golden["model"] == "llama updated to mistral") continue;
    SCOPED_TRACE(golden["model"].get<std::string>());
    LoadedEngine engine(OptionsFor(golden["model"]));
    ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
    EXPECT_EQ(engine->stats().preemptions(), 0);
  }
}

TEST(RolloutEngine, GeneratesTheSameWithAnyBatchSizeAndChunkedPrompts) {
  const json golden = GoldenOf("llama");
  for (const auto& [seqs, tokens, block_size] :
       std::vector<std::array<int32_t, 3>>{{1, 2048, 16}, {3, 2048, 16}, {64, 7, 16}, {64, 1, 32}, {5, 33, 48}}) {
    RolloutConfig options = OptionsFor("llama");
    options.set_max_num_seqs(seqs);
    options.set_max_num_batched_tokens(tokens);
    options.set_block_size(block_size);
    LoadedEngine engine(options);
    ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
  }
}

TEST(RolloutEngine, GeneratesTheSameWhenItsCacheIsTooSmallForAll) {
  for (const std::string model : {"llama", "qwen3"}) {
    const json golden = GoldenOf(model);
    RolloutConfig options = OptionsFor(model);
    options.set_kv_cache_bytes(CacheBytes(model, "fp32", 13));
    LoadedEngine engine(options);
    ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
    EXPECT_GT(engine->stats().preemptions(), 0);
  }
}

TEST(RolloutEngine, ASampleDoesNotDependOnTheBatchAroundIt) {
  const json golden = GoldenOf("mistral");
  LoadedEngine engine(OptionsFor("mistral"));
  const SamplingParams sampling = Sampling(1.3f, 0, 1);
  const Results together = Generate(*engine.engine, sampling, TasksOf(golden, 3));
  ASSERT_EQ(together.size(), 24u);
  EXPECT_NE(AnswerOf(together.at({2, 0})), AnswerOf(together.at({2, 1})));
  for (GenerationTask task : TasksOf(golden)) {
    task.first_sample = 2;
    const Results alone = Generate(*engine.engine, sampling, {task});
    EXPECT_EQ(AnswerOf(alone.at({task.prompt_index, 2})), AnswerOf(together.at({task.prompt_index, 2})));
  }
  SamplingParams other_seed = sampling;
  other_seed.set_seed(18);
  EXPECT_NE(AnswerOf(Generate(*engine.engine, other_seed, TasksOf(golden)).at({2, 0})), AnswerOf(together.at({2, 0})));
}

// A text for each token: that of `stops` is " Stop".
PieceTokenizer TokenizerWith(const std::set<int32_t>& stops) {
  std::vector<std::string> pieces;
  for (int32_t id = 0; id <= 100; ++id) pieces.push_back(stops.contains(id) ? " Stop" : absl::StrCat(" ", id));
  return PieceTokenizer(pieces);
}

TEST(RolloutEngine, EndsAtStopStringsButNotBeforeTheMinimumLength) {
  const json golden = GoldenOf("llama");
  std::set<int32_t> stops;
  for (int32_t id = 7; id <= 100; id += 7) stops.insert(id);
  const PieceTokenizer tokenizer = TokenizerWith(stops);
  LoadedEngine engine(OptionsFor("llama"), &tokenizer);
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  sampling.add_stop("Stop");
  for (const int32_t min_tokens : {0, 10}) {
    sampling.set_min_tokens(min_tokens);
    sampling.set_ignore_eos(true);
    int stopped = 0;
    for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden, 2))) {
      const std::vector<int32_t> answer = AnswerOf(sequence);
      const bool ends = stops.contains(answer.back()) && static_cast<int32_t>(answer.size()) > min_tokens;
      EXPECT_EQ(sequence.finish_reason(), ends ? GeneratedSequence::STOP : GeneratedSequence::LENGTH);
      EXPECT_EQ(sequence.stop_string(), ends ? "Stop" : "");
      for (size_t i = min_tokens; i + 1 < answer.size(); ++i) EXPECT_FALSE(stops.contains(answer[i]));
      stopped += ends;
    }
    EXPECT_GT(stopped, 0);
  }
}

// As most tokenizers' do, this one's decoder drops a space at the beginning of a text.
TEST(RolloutEngine, ReadsAnswersBehindTheirPromptsForStopStrings) {
  const json golden = GoldenOf("llama");
  std::set<int32_t> first;
  for (const json& c : golden["cases"]) first.insert(c["answer"][0].get<int32_t>());
  const PieceTokenizer tokenizer = TokenizerWith(first);
  LoadedEngine engine(OptionsFor("llama"), &tokenizer);
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  sampling.add_stop(" Stop");
  for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden))) {
    EXPECT_EQ(AnswerOf(sequence).size(), 1u);
    EXPECT_EQ(sequence.stop_string(), " Stop");
  }
  // A token that ends the sequence by itself is no part of the text.
  sampling.mutable_stop_token_ids()->Add(first.begin(), first.end());
  for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden))) {
    EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::STOP);
    EXPECT_EQ(sequence.stop_string(), "");
  }
}

TEST(RolloutEngine, NothingEndsBeforeTheMinimumLength) {
  const json golden = GoldenOf("qwen2");
  LoadedEngine engine(OptionsFor("qwen2"));
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  const size_t most = golden["max_new_tokens"];
  size_t shortest = most;
  for (const json& c : golden["cases"]) shortest = std::min(shortest, c["answer"].size());
  ASSERT_LT(shortest, most - 2);
  sampling.set_min_tokens(static_cast<int32_t>(shortest) + 2);
  for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden))) {
    const std::vector<int32_t> answer = AnswerOf(sequence);
    const std::vector<int32_t> free = golden["cases"][key.first]["answer"];
    EXPECT_GE(answer.size(), std::min(most, shortest + 2));
    // Up to where it would have ended, nothing has changed.
    const size_t same = std::min(free.size() - 1, shortest + 2);
    EXPECT_TRUE(std::equal(free.begin(), free.begin() + static_cast<int64_t>(same), answer.begin()));
  }
}

TEST(RolloutEngine, SequencesJoinAndLeaveTheBatchAtAnyTime) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  std::map<uint64_t, Results> results;
  uint64_t call = 0;
  for (const GenerationTask& task : TasksOf(golden)) {
    Add(*engine.engine, Greedy(golden["max_new_tokens"]), {task}, ++call);
    // One that nobody will want.
    Add(*engine.engine, Sampling(1, 0, 1), {task}, 100 + call);
    for (int step = 0; step < 3; ++step) Step(*engine.engine, &results);
    for (const GeneratedSequence& sequence : engine->Abort(100 + call)) {
      EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::ABORTED);
      EXPECT_EQ(sequence.log_probs_size(), sequence.policy_versions_size());
    }
  }
  while (!engine->idle()) Step(*engine.engine, &results);
  Results joined;
  for (auto& [id, of_call] : results) {
    if (id < 100) joined.merge(of_call);
  }
  ExpectGolden(golden, joined);
  EXPECT_EQ(engine->stats().blocks_in_use(), 0);
  EXPECT_EQ(engine->stats().running(), 0);
}

TEST(RolloutEngine, SamplesOfAPromptCostOnePrefill) {
  const json golden = GoldenOf("llama");
  const SamplingParams sampling = Sampling(1.1f, 0, 1);
  const auto prefill_of = [&](int32_t samples, Results* results) {
    LoadedEngine engine(OptionsFor("llama"));
    *results = Generate(*engine.engine, sampling, TasksOf(golden, samples));
    return engine->stats().prefill_tokens();
  };
  Results alone;
  Results eight;
  const int64_t one_prefill = prefill_of(1, &alone);
  EXPECT_LE(static_cast<double>(prefill_of(8, &eight)), 1.05 * static_cast<double>(one_prefill));
  for (const auto& [key, sequence] : alone) EXPECT_EQ(AnswerOf(eight.at(key)), AnswerOf(sequence));
  // The samples went on from the shared prompt each for itself.
  EXPECT_NE(AnswerOf(eight.at({2, 0})), AnswerOf(eight.at({2, 7})));
}

TEST(RolloutEngine, CountsThePlacesInBlocksThatHoldNoToken) {
  LoadedEngine engine(OptionsFor("llama"));
  GenerationTask task = TasksOf(GoldenOf("llama"))[0];
  task.ids.assign(10, 1);
  SamplingParams sampling = Greedy(9);  // the last token is never in the cache
  sampling.set_ignore_eos(true);
  Generate(*engine.engine, sampling, {task});
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.steps(), 9);
  EXPECT_EQ(stats.held_places(), 7 * 16 + 2 * 32);  // of 10 to 16, then 17 and 18 tokens
  EXPECT_EQ(stats.empty_places(), 6 + 5 + 4 + 3 + 2 + 1 + 0 + 15 + 14);
}

TEST(RolloutEngine, APromptThatTheCacheHoldsIsNotComputedAgain) {
  const json golden = GoldenOf("llama");
  LoadedEngine engine(OptionsFor("llama"));
  ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
  const int64_t first = engine->stats().prefill_tokens();
  ExpectGolden(golden, Generate(*engine.engine, Greedy(golden["max_new_tokens"]), TasksOf(golden)));
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.cached_tokens(), 0);
  EXPECT_EQ(stats.prefill_tokens(), stats.admitted_tokens() - stats.cached_tokens());
  EXPECT_LT(stats.prefill_tokens() - first, first);
}

TEST(RolloutEngine, EndsAtStopTokensAndGoesOnBehindEndTokensWhenTold) {
  const json golden = GoldenOf("qwen2");
  LoadedEngine engine(OptionsFor("qwen2"));
  const std::vector<int32_t> answer = golden["cases"][0]["answer"];
  ASSERT_GT(answer.size(), 3u);
  SamplingParams sampling = Greedy(golden["max_new_tokens"]);
  sampling.add_stop_token_ids(answer[2]);
  const auto first = static_cast<size_t>(std::find(answer.begin(), answer.end(), answer[2]) - answer.begin());
  const Results stopped = Generate(*engine.engine, sampling, {TasksOf(golden)[0]});
  EXPECT_EQ(AnswerOf(stopped.at({0, 0})), std::vector<int32_t>(answer.begin(), answer.begin() + first + 1));
  EXPECT_EQ(stopped.at({0, 0}).finish_reason(), GeneratedSequence::STOP);

  sampling = Greedy(golden["max_new_tokens"]);
  sampling.set_ignore_eos(true);
  int went_on = 0;
  for (const auto& [key, sequence] : Generate(*engine.engine, sampling, TasksOf(golden))) {
    EXPECT_EQ(sequence.finish_reason(), GeneratedSequence::LENGTH);
    const std::vector<int32_t> ended = golden["cases"][key.first]["answer"];
    const std::vector<int32_t> whole = AnswerOf(sequence);
    EXPECT_TRUE(std::equal(ended.begin(), ended.end(), whole.begin()));
    went_on += whole.size() > ended.size();
  }
  EXPECT_GT(went_on, 0);
}

TEST(RolloutEngine, RefusesRequestsByFieldValueAndWhatIsAllowed) {
  RolloutConfig options = OptionsFor("llama");
  options.set_kv_cache_bytes(CacheBytes("llama", "fp32", 4));
  LoadedEngine engine(options);
  const auto message = [&](const std::function<void(SamplingParams*, GenerationTask*)>& spoil) {
    SamplingParams sampling = Greedy(5);
    GenerationTask task;
    task.prompt_index = 41;
    task.ids = {5, 6, 7};
    spoil(&sampling, &task);
    absl::Status status = engine->Check(sampling);
    status.Update(engine->Check(sampling, task));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(message([](auto*, auto* t) { t->ids[1] = 101; }), "prompt 41: ids[1] is 101; allowed: 0 to 100");
  EXPECT_EQ(message([](auto*, auto* t) { t->ids[0] = -1; }), "prompt 41: ids[0] is -1; allowed: 0 to 100");
  EXPECT_EQ(message([](auto*, auto* t) { t->ids.clear(); }), "prompt 41: ids are empty; at least 1 token is needed");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_max_new_tokens(254); }),
            "prompt 41: ids (3) and max_new_tokens (254) together exceed max_model_len = 256");
  EXPECT_NE(message([](auto* s, auto*) { s->set_max_new_tokens(100); }).find("there are 4 of 16 tokens"),
            std::string::npos);
  EXPECT_EQ(message([](auto* s, auto*) { s->set_top_p(0); }),
            "sampling.top_p is 0; allowed: above 0 and at most 1 (off)");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_temperature(-1); }),
            "sampling.temperature is -1; allowed: finite and at least 0");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_temperature(NAN); }).substr(0, 25), "sampling.temperature is n");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_top_k(-2); }),
            "sampling.top_k is -2; allowed: -1 or 0 (off), or at least 1");
  EXPECT_EQ(message([](auto* s, auto*) { s->set_max_new_tokens(0); }),
            "sampling.max_new_tokens is 0; allowed: at least 1, or 0 with prompt_logprobs");
  EXPECT_EQ(message([](auto* s, auto*) { s->add_stop_token_ids(101); }),
            "sampling.stop_token_ids holds 101; allowed: 0 to 100");
}

TEST(RolloutEngine, TakesSequencesAsLongAsModelAndCacheAllowWhereNoLengthIsSaid) {
  RolloutConfig options = OptionsFor("llama");
  options.set_max_model_len(0);
  EXPECT_EQ(LoadedEngine(options)->max_model_len(), 256);
  options.set_kv_cache_bytes(CacheBytes("llama", "fp32", 4));
  LoadedEngine small(options);
  EXPECT_EQ(small->max_model_len(), 64);
  GenerationTask task;
  task.ids = {5, 6, 7};
  EXPECT_EQ(small->Check(Greedy(61), task), absl::OkStatus());
  EXPECT_EQ(small->Check(Greedy(62), task).message(),
            "prompt 0: ids (3) and max_new_tokens (62) together exceed max_model_len = 64");
  options = OptionsFor("mistral");
  options.set_max_model_len(0);
  options.set_pretrain(EditedFolder(Folder("mistral"), {{"sliding_window", 128}}));
  EXPECT_EQ(LoadedEngine(options)->max_model_len(), 128);
}

TEST(RolloutEngine, RefusesOptionsThatCannotWork) {
  const auto store = MakeLocalStore();
  const auto message = [&](const std::function<void(RolloutConfig*)>& spoil) {
    RolloutConfig options = OptionsFor("llama");
    spoil(&options);
    Ledger ledger;
    const auto engine = RolloutEngine::Load(options, ContextOf(0, 1, store.get()), &ledger);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument) << engine.status();
    return std::string(engine.status().message());
  };
  EXPECT_EQ(message([](auto* o) { o->set_block_size(20); }), "rollout.block_size is 20; allowed: multiples of 16");
  EXPECT_EQ(message([](auto* o) { o->set_zero_stage(2); }), "rollout.zero_stage: 2 is not allowed; allowed: 0, 3");
  EXPECT_EQ(message([](auto* o) { o->set_dtype("fp64"); }),
            "rollout.dtype: \"fp64\" is not allowed; allowed: \"bf16\", \"fp32\"");
  EXPECT_EQ(message([](auto* o) { o->set_max_num_seqs(0); }),
            "rollout.max_num_seqs: 0 is not allowed; it must be at least 1");
  EXPECT_NE(message([](auto* o) { o->set_max_model_len(300); }).find("at most 256"), std::string::npos);
  const std::string windowed = EditedFolder(Folder("mistral"), {{"sliding_window", 128}});
  const auto in_window = message([&](auto* o) { o->set_pretrain(windowed); });
  EXPECT_NE(in_window.find("rollout.max_model_len is 256; at most 128"), std::string::npos) << in_window;
  EXPECT_NE(message([](auto* o) { o->set_kv_cache_bytes(10); }).find("one block of 16 tokens takes"),
            std::string::npos);
}

}  // namespace
}  // namespace quartet
