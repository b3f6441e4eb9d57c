// Generates from token ids without a service: for looking at a model, comparing and measuring.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/time/stopwatch.h"
#include "core/comm/store/local_store.h"
#include "core/command_line/command_line.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/model/lora.h"
#include "nlohmann/json.hpp"
#include "rollout/engine/engine.h"

namespace quartet {
namespace {

struct Flags {
  std::string model, dtype = "bf16";
  int32_t max_num_seqs = 256, max_num_batched_tokens = 2048;
  int64_t kv_cache_bytes = int64_t{1} << 30;
  int32_t max_new_tokens = 128, top_k = -1, n_samples = 1;
  double temperature = 0, top_p = 1;
  uint64_t seed = 0;
  bool ignore_eos = false;
};

CommandLine GenerateCommandLine(Flags* flags) {
  return {.program = "generate",
          .before = R"(generate: generates from token ids, without a service.

  generate --model=DIR [flags] < prompts.jsonl > answers.jsonl

One object a line in, {"ids": [...]}; one a line out, in the order of the prompts and samples: {"prompt", "sample",
"ids" (the answer's), "log_probs", "finish_reason"}. Speed goes to standard error.

)",
          .flags = {{"model", "DIR", "Hugging Face folder.", UserPath(&flags->model)},
                    {"dtype", "NAME", "bf16 (default) or fp32.",
                     OneOf<std::string>({{"bf16", "bf16"}, {"fp32", "fp32"}}, &flags->dtype)},
                    {"max_new_tokens", "N", "Longest answer, tokens. Default 128.", AtLeast(1, &flags->max_new_tokens)},
                    {"temperature", "T", "Below 1e-5, as by default: greedy.", AtLeast(0.0, &flags->temperature)},
                    {"top_k", "K", "Default -1: off.", AtLeast(-1, &flags->top_k)},
                    {"top_p", "P", "Default 1: off.", Positive(&flags->top_p)},
                    {"seed", "N", "Of the sampling noise. Default 0.", AtLeast(uint64_t{0}, &flags->seed)},
                    {"n_samples", "N", "Answers a prompt. Default 1.", AtLeast(1, &flags->n_samples)},
                    {"ignore_eos", "", "Goes on behind end tokens.", Switch(&flags->ignore_eos)},
                    {"max_num_seqs", "N", "Sequences that run at once. Default 256.", AtLeast(1, &flags->max_num_seqs)},
                    {"max_num_batched_tokens", "N", "Tokens of one forward. Default 2048.",
                     AtLeast(1, &flags->max_num_batched_tokens)},
                    {"kv_cache_bytes", "N", "Of the KV cache. Default 1 GiB.",
                     AtLeast(int64_t{1}, &flags->kv_cache_bytes)}},
          .after = "\nExit codes: 0; 2 for wrong flags, prompts or a wrong model; 1 for everything else.\n",
          .check = [flags] {
            return flags->model.empty() ? absl::InvalidArgumentError("--model=DIR is missing") : absl::OkStatus();
          }};
}

absl::StatusOr<std::vector<int32_t>> ReadIds(std::string_view line, int64_t number) {
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(line, "the prompts", kMaxJsonDepth, number));
  const auto error = [number](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("the prompts: line ", number, what...));
  };
  if (!object.is_object() || !object.contains("ids") || !object["ids"].is_array()) {
    return error(" is not {\"ids\": [...]}");
  }
  for (const auto& [name, value] : object.items()) {
    if (name != "ids") return error(" has the key ", Quoted(name), ", which is not known; allowed: \"ids\"");
  }
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : object["ids"]) {
    // What the engine's check says of an id needs one that it can be told.
    constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
    if (!id.is_number_integer() || id < 0 || id > kLargest) {
      return error(" holds the id ", Cut(id.dump(-1, ' ', true)), ", which is no integer of 0 to ", kLargest);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// What the engine says of an option is said of the flag that sets it.
absl::Status InFlags(const absl::Status& status) {
  constexpr std::string_view kSection = "rollout.";
  const std::string message(status.message());
  if (!message.starts_with(kSection)) return status;
  return absl::Status(status.code(), "--" + message.substr(kSection.size()));
}

absl::Status Generate(const Flags& flags) {
  SamplingParams sampling;
  sampling.set_max_new_tokens(flags.max_new_tokens);
  sampling.set_temperature(static_cast<float>(flags.temperature));
  sampling.set_top_k(flags.top_k);
  sampling.set_top_p(static_cast<float>(flags.top_p));
  sampling.set_seed(flags.seed);
  sampling.set_n_samples(flags.n_samples);
  sampling.set_ignore_eos(flags.ignore_eos);

  const auto shared_sampling = std::make_shared<const SamplingParams>(sampling);
  std::vector<GenerationTask> tasks;
  size_t longest = 1;
  for (std::string line; std::getline(std::cin, line);) {
    QUARTET_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadIds(line, static_cast<int64_t>(tasks.size()) + 1));
    GenerationTask& task = tasks.emplace_back();
    task.ids = std::move(ids);
    task.sampling = shared_sampling;
    task.prompt_index = tasks.size() - 1;
    task.samples = sampling.n_samples();
    longest = std::max(longest, task.ids.size());
  }

  RolloutConfig options;
  options.set_pretrain(flags.model);
  options.set_dtype(flags.dtype);
  options.set_max_num_seqs(flags.max_num_seqs);
  options.set_max_num_batched_tokens(flags.max_num_batched_tokens);
  options.set_kv_cache_bytes(flags.kv_cache_bytes);
  options.set_max_model_len(static_cast<int32_t>(longest) + sampling.max_new_tokens());
  const auto store = MakeLocalStore();
  RankContext context;
  context.service = "rollout";
  context.host = "127.0.0.1";
  context.device = "cpu";
  context.store = store.get();
  Ledger ledger;
  std::unique_ptr<Tokenizer> tokenizer;
  QUARTET_ASSIGN_OR_RETURN(const std::string tokenizer_folder, TokenizerFolder(flags.model));
  if (std::error_code error; std::filesystem::exists(tokenizer_folder + "/tokenizer.json", error)) {
    QUARTET_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(tokenizer_folder));
  }
  auto engine = RolloutEngine::Load(options, context, &ledger, tokenizer.get());
  if (!engine.ok()) return InFlags(engine.status());
  std::map<std::pair<uint64_t, int32_t>, GeneratedSequence> results;
  const Stopwatch generation;
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
  QUARTET_RETURN_IF_ERROR(status);
  const double seconds = generation.Seconds();
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
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  if (const auto code = ReadCommandLine(argc, argv, GenerateCommandLine(&flags))) return *code;
  return Finish("generate", Generate(flags));
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
