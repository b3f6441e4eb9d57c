// Generates from token ids without a service: for looking at a model, comparing and measuring.
//
//   generate --model=DIR [--dtype=fp32|bf16] [--max_new_tokens=N] [--temperature=T] [--n_samples=N] ... < prompts.jsonl
//
// One object a line in, {"ids": [...]}; one a line out, in the order of the prompts and samples: {"prompt", "sample",
// "ids" (the answer's), "log_probs", "finish_reason"}. Speed goes to standard error.

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "core/comm/store/local_store.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"

ABSL_FLAG(std::string, model, "", "Hugging Face folder");
ABSL_FLAG(std::string, dtype, "bf16", "bf16 or fp32");
ABSL_FLAG(int32_t, max_new_tokens, 128, "longest answer, tokens");
ABSL_FLAG(float, temperature, 0, "below 1e-5: greedy");
ABSL_FLAG(int32_t, top_k, -1, "-1: off");
ABSL_FLAG(float, top_p, 1, "1: off");
ABSL_FLAG(uint64_t, seed, 0, "of the sampling noise");
ABSL_FLAG(int32_t, n_samples, 1, "answers a prompt");
ABSL_FLAG(bool, ignore_eos, false, "go on behind end tokens");
ABSL_FLAG(int64_t, max_num_seqs, 256, "sequences that run at once");
ABSL_FLAG(int64_t, max_num_batched_tokens, 2048, "tokens of one forward");
ABSL_FLAG(int64_t, kv_cache_bytes, int64_t{1} << 30, "of the KV cache");

namespace quartet {
namespace {

int Main() {
  SamplingParams sampling;
  sampling.set_max_new_tokens(absl::GetFlag(FLAGS_max_new_tokens));
  sampling.set_temperature(absl::GetFlag(FLAGS_temperature));
  sampling.set_top_k(absl::GetFlag(FLAGS_top_k));
  sampling.set_top_p(absl::GetFlag(FLAGS_top_p));
  sampling.set_seed(absl::GetFlag(FLAGS_seed));
  sampling.set_n_samples(absl::GetFlag(FLAGS_n_samples));
  sampling.set_ignore_eos(absl::GetFlag(FLAGS_ignore_eos));

  const auto shared_sampling = std::make_shared<const SamplingParams>(sampling);
  std::vector<GenerationTask> tasks;
  size_t longest = 1;
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("ids") || !object["ids"].is_array()) {
      std::cerr << "generate: line " << tasks.size() + 1 << " is not {\"ids\": [...]}\n";
      return 1;
    }
    GenerationTask& task = tasks.emplace_back();
    task.sampling = shared_sampling;
    task.prompt_index = tasks.size() - 1;
    task.samples = sampling.n_samples();
    for (const nlohmann::json& id : object["ids"]) {
      if (!id.is_number_integer()) {
        std::cerr << "generate: line " << tasks.size() << " holds the id " << id << ", which is no integer\n";
        return 1;
      }
      task.ids.push_back(id.get<int32_t>());
    }
    longest = std::max(longest, task.ids.size());
  }

  RolloutEngineOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.dtype = absl::GetFlag(FLAGS_dtype);
  options.max_num_seqs = absl::GetFlag(FLAGS_max_num_seqs);
  options.max_num_batched_tokens = absl::GetFlag(FLAGS_max_num_batched_tokens);
  options.kv_cache_bytes = absl::GetFlag(FLAGS_kv_cache_bytes);
  options.max_model_len = static_cast<int64_t>(longest) + sampling.max_new_tokens();
  const auto store = MakeLocalStore();
  RankContext context;
  context.service = "rollout";
  context.host = "127.0.0.1";
  context.device = "cpu";
  context.store = store.get();
  Ledger ledger;
  auto engine = RolloutEngine::Load(options, context, &ledger);
  if (!engine.ok()) {
    std::cerr << "generate: " << engine.status() << "\n";
    return 1;
  }
  std::map<std::pair<uint64_t, int32_t>, GeneratedSequence> results;
  const auto start = std::chrono::steady_clock::now();
  absl::Status status = (*engine)->Check(sampling);
  for (const GenerationTask& task : tasks) {
    if (status.ok()) status = (*engine)->Check(sampling, task);
  }
  if (status.ok()) {
    for (const GenerationTask& task : tasks) (*engine)->Add(task);
  }
  while (status.ok() && !(*engine)->idle()) {
    absl::StatusOr<std::vector<EngineEvent>> events = (*engine)->Step();
    status = events.status();
    if (!events.ok()) break;
    for (EngineEvent& event : *events) {
      if (const auto* error = std::get_if<absl::Status>(&event.what)) {
        status.Update(*error);
      } else if (auto* sequence = std::get_if<GeneratedSequence>(&event.what)) {
        const auto key = std::pair(sequence->prompt_index(), sequence->sample());
        results[key] = std::move(*sequence);
      }
    }
  }
  if (!status.ok()) {
    std::cerr << "generate: " << status << "\n";
    return 1;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const auto& [key, sequence] : results) {
    nlohmann::json out = {{"prompt", key.first}, {"sample", key.second}};
    for (int i = 0; i < sequence.tokens().ids_size(); ++i) {
      if (sequence.tokens().action_mask(i)) out["ids"].push_back(sequence.tokens().ids(i));
    }
    out["log_probs"] = std::vector<float>(sequence.log_probs().begin(), sequence.log_probs().end());
    out["finish_reason"] = GeneratedSequence::FinishReason_Name(sequence.finish_reason());
    std::cout << out << "\n";
  }
  const EngineStats stats = (*engine)->stats();
  std::cerr << stats.generated_tokens() << " tokens in " << seconds
            << " s: " << static_cast<double>(stats.generated_tokens()) / seconds << " tokens/s, " << stats.steps()
            << " steps, " << stats.preemptions() << " preemptions\n";
  return 0;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("generates from token ids: {\"ids\": [...]} a line in, answers out");
  absl::ParseCommandLine(argc, argv);
  return quartet::Main();
}
