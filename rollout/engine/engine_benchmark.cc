// How fast the engine generates: output tokens a second over whole calls, prefill included, and of decoding alone.
//
//   bazel build -c opt //rollout/engine:engine_benchmark
//   OMP_NUM_THREADS=2 bazel-bin/rollout/engine/engine_benchmark --model=DIR --prompts=prompts.json
//
// `prompts.json` is a list of lists of token ids; the first N of them are generated from together (where they are
// fewer, so many samples of each), each --new_tokens long whatever it says. Nothing is in the prefix cache before.
// Decoding alone is the whole call less one that ends after the first token. Best and median of --repeats calls. Beside
// them the best call's share of the roofline: what the model's matrices alone would take at the matrix rate (the best
// of two large products, ours and LibTorch's) or at the rate at which memory can be read, whichever is longer for each
// forward; both rates are measured first.
//
// With --ranks=N so many ranks, which are threads of this process, generate together: with --zero_stage or
// --tensor_parallel_size, or each by itself. OMP_NUM_THREADS is the threads of each.
//
// With --mixed=N also one call of a mixed load: N sequences, four samples each of prompts of 20 to 800 tokens, answers
// of 10 to 400; with it the cache's waste, as rollout/kv_cache_waste. Then what the prefill of eight samples of a
// prompt takes beside that of one.

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "core/base/status_macros.h"
#include "core/base/time/stopwatch.h"
#include "core/comm/store/local_store.h"
#include "core/kernels/testing/machine_rates.h"
#include "core/model/model_config.h"
#include "core/model/model_work.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"

ABSL_FLAG(std::string, model, "", "Hugging Face folder");
ABSL_FLAG(std::string, prompts, "", "JSON file, a list of lists of token ids");
ABSL_FLAG(std::string, dtype, "bf16", "bf16 or fp32");
ABSL_FLAG(std::vector<std::string>, sequences, (std::vector<std::string>{"1", "8", "32", "128"}), "at once");
ABSL_FLAG(std::vector<std::string>, temperatures, (std::vector<std::string>{"0", "1"}), "0: greedy");
ABSL_FLAG(int32_t, top_k, -1, "of draws; -1: off");
ABSL_FLAG(double, top_p, 1, "of draws");
ABSL_FLAG(int32_t, new_tokens, 128, "of each sequence");
ABSL_FLAG(int32_t, repeats, 3, "calls of each kind");
ABSL_FLAG(int32_t, ranks, 1, "ranks");
ABSL_FLAG(int32_t, zero_stage, 0, "0 or 3");
ABSL_FLAG(std::string, device, "cpu", "cpu, or cuda: a rank a GPU");
ABSL_FLAG(bool, enforce_eager, false, "on cuda: no CUDA graphs");
ABSL_FLAG(int32_t, tensor_parallel_size, 1, "ranks of an engine");
ABSL_FLAG(int32_t, mixed, 0, "sequences of the mixed load; 0: none");

namespace quartet {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

// Some samples of a prompt, each so many tokens long.
struct Load {
  std::vector<int32_t> ids;
  int32_t samples = 1;
  int32_t new_tokens = 1;
};

// The ranks' engines, each on a thread of its own; that of rank 0 on the caller's.
class Ranks {
 public:
  Ranks(const RolloutConfig& options, int count)
      : options_(options), count_(count), store_(MakeLocalStore()), together_(count), failed_(count) {
    for (int rank = 1; rank < count; ++rank) {
      threads_.emplace_back([this, rank] {
        Ledger ledger;
        const auto engine = Open(rank, &ledger);
        for (together_.arrive_and_wait(); !stop_; together_.arrive_and_wait()) Run(rank, engine.get());
      });
    }
    engine_ = Open(0, &ledger_);
  }
  ~Ranks() {
    stop_ = true;
    together_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  // Null where it could not be loaded; of rank 0.
  RolloutEngine* engine() { return engine_.get(); }

  // Seconds of one run of all loads at once; negative, with a message, if it fails.
  double Generate(const std::vector<Load>& loads, float temperature) {
    loads_ = &loads;
    temperature_ = temperature;
    together_.arrive_and_wait();
    Run(0, engine_.get());
    return std::count(failed_.begin(), failed_.end(), 1) > 0 ? -1 : seconds_;
  }

 private:
  std::unique_ptr<RolloutEngine> Open(int rank, Ledger* ledger) const {
    RankContext context;
    context.service = "rollout";
    context.host = "127.0.0.1";
    context.device = absl::GetFlag(FLAGS_device);
    context.store = store_.get();
    context.rank = context.local_rank = rank;
    context.world_size = context.local_world_size = count_;
    auto engine = RolloutEngine::Load(options_, context, ledger);
    if (engine.ok()) return *std::move(engine);
    std::cerr << "engine_benchmark: " << engine.status() << "\n";
    return nullptr;
  }

  void Run(int rank, RolloutEngine* engine) {
    absl::Status status = engine == nullptr ? absl::InternalError("not loaded") : absl::OkStatus();
    if (status.ok()) {
      engine->Sleep(/*release_weights=*/false);  // forgets all prefixes
      status = engine->Wake().status();
    }
    together_.arrive_and_wait();
    const Stopwatch generation;
    if (status.ok()) status = RunPart(rank, *engine);
    if (!status.ok()) std::cerr << "engine_benchmark: " << status << "\n";
    failed_[rank] = status.ok() ? 0 : 1;
    together_.arrive_and_wait();
    if (rank == 0) seconds_ = generation.Seconds();
  }

  // Engines take turns with the loads.
  absl::Status RunPart(int rank, RolloutEngine& engine) const {
    SamplingParams sampling;
    sampling.set_temperature(temperature_);
    sampling.set_top_k(absl::GetFlag(FLAGS_top_k));
    sampling.set_top_p(static_cast<float>(absl::GetFlag(FLAGS_top_p)));
    sampling.set_ignore_eos(true);
    const size_t engines = count_ / options_.tensor_parallel_size(), mine = rank / options_.tensor_parallel_size();
    for (size_t i = mine; i < loads_->size(); i += engines) {
      const auto& load = (*loads_)[i];
      sampling.set_max_new_tokens(load.new_tokens);
      GenerationTask task;
      task.call = i + 1;
      task.sampling = std::make_shared<const SamplingParams>(sampling);
      task.prompt_index = i;
      task.ids = load.ids;
      task.samples = load.samples;
      QUARTET_RETURN_IF_ERROR(engine.Check(sampling, task));
      engine.Add(task);
    }
    for (;;) {
      QUARTET_ASSIGN_OR_RETURN(const StepAgreement agreed, engine.AgreeOnStep(0));
      if (agreed.idle) return absl::OkStatus();
      QUARTET_RETURN_IF_ERROR(engine.Step().status());
    }
  }

  const RolloutConfig options_;
  const int count_;
  const std::unique_ptr<KeyValueStore> store_;
  std::barrier<> together_;
  Ledger ledger_;
  std::unique_ptr<RolloutEngine> engine_;
  std::vector<std::thread> threads_;
  // Between two meetings of one thread; else of all, to be read.
  const std::vector<Load>* loads_ = nullptr;
  float temperature_ = 0;
  bool stop_ = false;
  std::vector<int> failed_;  // each rank its own
  double seconds_ = 0;
};

std::vector<Load> SameLength(const Prompts& prompts, int sequences, int32_t new_tokens) {
  const int used = std::min(sequences, static_cast<int>(prompts.size()));
  std::vector<Load> loads;
  for (int i = 0; i < used; ++i) {
    loads.push_back({prompts[i], sequences / used + (i < sequences % used ? 1 : 0), new_tokens});
  }
  return loads;
}

constexpr int32_t kLongestMixed = 800 + 400;

std::vector<Load> Mixed(const Prompts& prompts, int sequences) {
  constexpr int kSamples = 4;
  std::vector<int32_t> text;
  for (const auto& prompt : prompts) text.insert(text.end(), prompt.begin(), prompt.end());
  std::mt19937 random(1);
  std::vector<Load> loads;
  for (int left = sequences; left > 0; left -= kSamples) {
    Load& load = loads.emplace_back();
    const auto length = 20 + random() % 781, start = random() % text.size();
    for (size_t i = 0; i < length; ++i) load.ids.push_back(text[(start + i) % text.size()]);
    load.samples = std::min(left, kSamples);
    load.new_tokens = static_cast<int32_t>(10 + random() % 391);
  }
  return loads;
}

// Seconds that the matrices of `steps` forwards take together, of so many tokens and draws.
double Roofline(const ModelWork& work, const MachineRates& rates, double steps, double tokens, double draws) {
  const double computing = (work.BlockFlops(tokens, /*pairs=*/0) + work.HeadFlops(draws)) / rates.bf16_flops;
  return std::max(computing, steps * 2 * (work.block_weights + work.head_weights) / rates.bytes);
}

// In ascending order; empty if a call fails.
std::vector<double> Repeat(Ranks* ranks, const std::vector<Load>& loads, float temperature) {
  std::vector<double> seconds;
  for (int i = 0; i < absl::GetFlag(FLAGS_repeats); ++i) {
    seconds.push_back(ranks->Generate(loads, temperature));
    if (seconds.back() < 0) return {};
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// Of prompts that have nothing to do with each other, prefill only: eight samples of each beside one.
bool MeasureSharing(Ranks* ranks, const Prompts& prompts) {
  const RolloutEngine* const engine = ranks->engine();
  std::vector<Load> one = SameLength(prompts, static_cast<int>(std::min<size_t>(8, prompts.size())), 1), eight = one;
  for (Load& load : eight) load.samples = 8;
  const int64_t before = engine->stats().prefill_tokens();
  const std::vector<double> alone = Repeat(ranks, one, 0);
  const int64_t between = engine->stats().prefill_tokens();
  const std::vector<double> shared = Repeat(ranks, eight, 0);
  if (alone.empty() || shared.empty()) return false;
  std::printf("prefill of 8 samples beside 1: %.3f times the tokens, %.3f times the seconds (7 more draws a prompt)\n",
              static_cast<double>(engine->stats().prefill_tokens() - between) / static_cast<double>(between - before),
              shared.front() / alone.front());
  return true;
}

int Main() {
  std::ifstream file(absl::GetFlag(FLAGS_prompts));
  const nlohmann::json read = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!read.is_array() || read.empty()) {
    std::cerr << "engine_benchmark: --prompts is no list of lists of token ids\n";
    return 1;
  }
  const auto prompts = read.get<Prompts>();
  size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const int32_t new_tokens = absl::GetFlag(FLAGS_new_tokens);

  RolloutConfig options;
  options.set_pretrain(absl::GetFlag(FLAGS_model));
  options.set_dtype(absl::GetFlag(FLAGS_dtype));
  options.set_enforce_eager(absl::GetFlag(FLAGS_enforce_eager));
  const int mixed = absl::GetFlag(FLAGS_mixed);
  options.set_max_model_len(std::max(static_cast<int32_t>(longest) + new_tokens, mixed > 0 ? kLongestMixed : 0));
  if (mixed > 0 || absl::GetFlag(FLAGS_device) != "cpu")
    options.set_kv_cache_bytes(int64_t{6} << 30);  // nothing is preempted
  const bool alone = absl::GetFlag(FLAGS_ranks) == 1;
  options.set_zero_stage(absl::GetFlag(FLAGS_zero_stage));
  options.set_tensor_parallel_size(absl::GetFlag(FLAGS_tensor_parallel_size));
  Ranks ranks(options, absl::GetFlag(FLAGS_ranks));
  RolloutEngine* const engine = ranks.engine();
  if (engine == nullptr) return 1;
  const MachineRates rates = MeasureMachineRates(at::Device(absl::GetFlag(FLAGS_device)));
  std::printf("matrix rate %.1f GFLOP/s (bf16), memory is read at %.1f GiB/s\n", rates.bf16_flops * 1e-9,
              rates.bytes * 0x1p-30);
  const absl::StatusOr<ModelConfig> model = ReadModelConfig(options.pretrain());
  if (!model.ok()) {
    std::cerr << "engine_benchmark: " << model.status() << "\n";
    return 1;
  }
  const ModelWork work = WorkOf(*model, HeadKind::kVocabulary);
  if (ranks.Generate(SameLength(prompts, 4, 4), 0) < 0) return 1;  // pages, threads, kernels built once

  std::printf("output tokens/s, best / median of %d calls\n", absl::GetFlag(FLAGS_repeats));
  std::printf("%9s %11s %20s %20s %10s   %s\n", "sequences", "temperature", "whole call", "decode", "prefill, s",
              alone ? "of roofline: whole, decode, prefill" : "");
  for (const std::string& temperature : absl::GetFlag(FLAGS_temperatures)) {
    for (const std::string& count : absl::GetFlag(FLAGS_sequences)) {
      const int sequences = std::stoi(count);
      const std::vector<Load> loads = SameLength(prompts, sequences, new_tokens);
      const std::vector<double> first = Repeat(&ranks, SameLength(prompts, sequences, 1), std::stof(temperature));
      const std::vector<double> whole = Repeat(&ranks, loads, std::stof(temperature));
      if (first.empty() || whole.empty()) return 1;
      const double best = whole.front(), median = whole[whole.size() / 2];
      const double tokens = static_cast<double>(sequences) * new_tokens;
      const double decoded = static_cast<double>(sequences) * (new_tokens - 1);
      double prompt_tokens = 0;
      for (const Load& load : loads) prompt_tokens += static_cast<double>(load.ids.size());
      const double prefill = Roofline(work, rates, 1, prompt_tokens, sequences);
      const double decode = Roofline(work, rates, new_tokens - 1, decoded, decoded);
      std::printf("%9d %11s %9.1f /%9.1f %9.1f /%9.1f %10.3f", sequences, temperature.c_str(), tokens / best,
                  tokens / median, decoded / (best - first.front()), decoded / (median - first.front()), first.front());
      if (alone) {
        std::printf("   %.2f, %.2f, %.2f", (prefill + decode) / best, decode / (best - first.front()),
                    prefill / first.front());
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  if (mixed > 0) {
    const std::vector<Load> loads = Mixed(prompts, mixed);
    double prompt_tokens = 0, tokens = 0;
    for (const Load& load : loads) {
      prompt_tokens += static_cast<double>(load.ids.size());
      tokens += static_cast<double>(load.samples) * load.new_tokens;
    }
    const EngineStats before = engine->stats();
    const double seconds = ranks.Generate(loads, 1);
    if (seconds < 0) return 1;
    const EngineStats after = engine->stats();
    // Where sequences are as many, no forward waits for memory.
    std::printf(
        "mixed load: %d sequences, %.0f prompt tokens (each prompt once), %.0f answered: %.1f s, %.1f tokens/s, "
        "%.2f of roofline\n",
        mixed, prompt_tokens, tokens, seconds, tokens / seconds,
        Roofline(work, rates, 1, prompt_tokens + tokens, tokens) / seconds);
    std::printf("KV-cache waste: %.2f %% of the memory of blocks in use held no token\n",
                100.0 * static_cast<double>(after.empty_places() - before.empty_places()) /
                    static_cast<double>(after.held_places() - before.held_places()));
  }
  if (!MeasureSharing(&ranks, prompts)) return 1;
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("measures generation; see the top of engine_benchmark.cc");
  absl::ParseCommandLine(argc, argv);
  return quartet::Main();
}
