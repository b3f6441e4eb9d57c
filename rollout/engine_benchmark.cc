// How fast the engine generates: output tokens a second over whole calls, prefill included, and of decoding alone.
//
//   bazel build -c opt //rollout:engine_benchmark
//   OMP_NUM_THREADS=2 bazel-bin/rollout/engine_benchmark --model=DIR --prompts=prompts.json
//
// `prompts.json` is a list of lists of token ids; the first N of them are generated from together (where they are
// fewer, so many samples of each), each --new_tokens long whatever it says. Nothing is in the prefix cache before.
// Decoding alone is the whole call less one that ends after the first token. Best and median of --repeats calls.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "core/comm/local_store.h"
#include "nlohmann/json.hpp"
#include "rollout/engine.h"

ABSL_FLAG(std::string, model, "", "Hugging Face folder");
ABSL_FLAG(std::string, prompts, "", "JSON file, a list of lists of token ids");
ABSL_FLAG(std::string, dtype, "bf16", "bf16 or fp32");
ABSL_FLAG(std::vector<std::string>, sequences, (std::vector<std::string>{"1", "8", "32", "128"}), "at once");
ABSL_FLAG(std::vector<std::string>, temperatures, (std::vector<std::string>{"0", "1"}), "0: greedy");
ABSL_FLAG(int32_t, new_tokens, 128, "of each sequence");
ABSL_FLAG(int32_t, repeats, 3, "calls of each kind");

namespace quartet {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

// Seconds of one call for `sequences` sequences; negative, with a message, if it fails.
double Generate(RolloutEngine* engine, const Prompts& prompts, int sequences, int32_t new_tokens, float temperature) {
  SamplingParams sampling;
  sampling.set_max_new_tokens(new_tokens);
  sampling.set_temperature(temperature);
  sampling.set_top_k(-1);
  sampling.set_top_p(1);
  sampling.set_ignore_eos(true);
  const auto shared = std::make_shared<const SamplingParams>(sampling);
  const int used = std::min(sequences, static_cast<int>(prompts.size()));
  engine->Sleep(/*release_weights=*/false);  // forgets all prefixes
  absl::Status status = engine->Wake();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < used && status.ok(); ++i) {
    GenerationTask task;
    task.call = 1;
    task.sampling = shared;
    task.prompt_index = i;
    task.ids = prompts[i];
    task.samples = sequences / used + (i < sequences % used ? 1 : 0);
    status = engine->Check(sampling, task);
    if (status.ok()) engine->Add(task);
  }
  while (status.ok() && !engine->idle()) status = engine->Step().status();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (status.ok()) return seconds;
  std::cerr << "engine_benchmark: " << status << "\n";
  return -1;
}

// In ascending order; empty if a call fails.
std::vector<double> Repeat(RolloutEngine* engine, const Prompts& prompts, int sequences, int32_t new_tokens,
                           float temperature) {
  std::vector<double> seconds;
  for (int i = 0; i < absl::GetFlag(FLAGS_repeats); ++i) {
    seconds.push_back(Generate(engine, prompts, sequences, new_tokens, temperature));
    if (seconds.back() < 0) return {};
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
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

  RolloutEngineOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.dtype = absl::GetFlag(FLAGS_dtype);
  options.max_model_len = static_cast<int64_t>(longest) + new_tokens;
  const auto store = MakeLocalStore();
  RankContext context;
  context.service = "rollout";
  context.host = "127.0.0.1";
  context.device = "cpu";
  context.store = store.get();
  Ledger ledger;
  const auto engine = RolloutEngine::Load(options, context, &ledger);
  if (!engine.ok()) {
    std::cerr << "engine_benchmark: " << engine.status() << "\n";
    return 1;
  }
  if (Generate(engine->get(), prompts, 4, 4, 0) < 0) return 1;  // pages, threads, kernels that are built once

  std::printf("output tokens/s, best / median of %d calls\n", absl::GetFlag(FLAGS_repeats));
  std::printf("%9s %11s %20s %20s %10s\n", "sequences", "temperature", "whole call", "decode", "prefill, s");
  for (const std::string& temperature : absl::GetFlag(FLAGS_temperatures)) {
    for (const std::string& count : absl::GetFlag(FLAGS_sequences)) {
      const int sequences = std::stoi(count);
      const std::vector<double> first = Repeat(engine->get(), prompts, sequences, 1, std::stof(temperature));
      const std::vector<double> whole = Repeat(engine->get(), prompts, sequences, new_tokens, std::stof(temperature));
      if (first.empty() || whole.empty()) return 1;
      const double best = whole.front(), median = whole[whole.size() / 2];
      const double tokens = static_cast<double>(sequences) * new_tokens;
      const double decoded = static_cast<double>(sequences) * (new_tokens - 1);
      std::printf("%9d %11s %9.1f /%9.1f %9.1f /%9.1f %10.3f\n", sequences, temperature.c_str(), tokens / best,
                  tokens / median, decoded / (best - first.front()), decoded / (median - first.front()), first.front());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("measures generation; see the top of engine_benchmark.cc");
  absl::ParseCommandLine(argc, argv);
  return quartet::Main();
}
