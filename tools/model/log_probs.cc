// Log-probabilities of token ids under a Hugging Face folder's model.
//
// Reads JSONL {"ids": [...]} and writes, in order, {"log_probs": [...]}: one per token from the second on,
// log_softmax(fp32 logits / temperature) at the token.
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/comm/process_group.h"
#include "core/comm/store/local_store.h"
#include "core/command_line/command_line.h"
#include "core/data/json.h"
#include "core/errors/exceptions.h"
#include "core/memory/ledger.h"
#include "core/model/decoder/vocabulary_head.h"
#include "core/training/engine/model_folder_check.h"
#include "core/zero/sharded/sharded_model.h"

namespace quartet {
namespace {

struct Flags {
  std::string model;
  at::ScalarType dtype = at::kFloat;
  double temperature = 1;
  int64_t batch_tokens = 4096;
};

CommandLine LogProbsCommandLine(Flags* flags) {
  return {
      .program = "log_probs",
      .before =
          R"(usage: log_probs --model=DIR [--dtype=fp32|bf16] [--temperature=1] [--batch_tokens=4096] < in.jsonl > out.jsonl

Reads JSONL {"ids": [...]} and writes, in order, {"log_probs": [...]}: one per token from the second on.
)",
      .flags = {{"model", "DIR", "Hugging Face folder: config.json, model.safetensors", UserPath(&flags->model)},
                {"dtype", "bf16|fp32", "what is computed in (fp32)",
                 OneOf<at::ScalarType>({{"bf16", at::kBFloat16}, {"fp32", at::kFloat}}, &flags->dtype)},
                {"temperature", "T", "logits are divided by T, greater than 0 (1)", Positive(&flags->temperature)},
                {"batch_tokens", "N",
                 "lines are computed together up to N tokens; changes speed and memory alone (4096)",
                 AtLeast(int64_t{1}, &flags->batch_tokens)}},
      .after =
          "\nExit codes: 0 all lines done, 2 a flag, line or model is wrong (the message says which), 1 all else.\n",
      .check =
          [flags] {
            if (!flags->model.empty()) return absl::OkStatus();
            return absl::InvalidArgumentError("--model=DIR is missing; --help tells what there is");
          },
      .column = 22};
}

using Ids = std::vector<int64_t>;

absl::StatusOr<Ids> ParseLine(const std::string& text, int64_t line, int64_t vocab_size) {
  const std::string where = absl::StrCat("standard input, line ", line);
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(text, where));
  if (!object.is_object() || !object.contains("ids") || !object["ids"].is_array() || object["ids"].empty()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": allowed is {\"ids\": [...]} with at least one id"));
  }
  Ids ids;
  for (const nlohmann::json& id : object["ids"]) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": id ", id.dump(), " at index ", ids.size(),
                                                     " is not an integer in [0, ", vocab_size, "), the vocabulary"));
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

// Prints one line per sequence.
absl::Status WriteLogProbs(const std::vector<Ids>& sequences, double temperature, ShardedModel* model) {
  if (sequences.empty()) return absl::OkStatus();
  PackedSequences batch{.ids_T = {}, .cu_seqlens = {0}};
  Ids ids, targets;
  std::vector<int64_t> predicting;  // tokens that have a next one in their sequence
  for (const Ids& sequence : sequences) {
    for (size_t i = 0; i + 1 < sequence.size(); ++i) {
      predicting.push_back(batch.cu_seqlens.back() + static_cast<int64_t>(i));
      targets.push_back(sequence[i + 1]);
    }
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    batch.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.ids_T = at::tensor(ids, at::kLong);
  at::Tensor log_probs;
  model->Forward(batch, [&](const at::Tensor& hidden_TD, const at::Tensor& head_VD) {
    log_probs = ChunkedLogProbs(hidden_TD.index_select(0, at::tensor(predicting, at::kLong)), head_VD,
                                HeadTargets{.vocabulary = model->vocabulary(), .ids_A = at::tensor(targets, at::kLong)},
                                temperature, {})
                    .log_prob_T;
  });
  const float* next = log_probs.const_data_ptr<float>();
  for (const Ids& sequence : sequences) {
    std::string line = "{\"log_probs\": [";
    for (size_t i = 0; i + 1 < sequence.size(); ++i) {
      if (!std::isfinite(*next)) {
        return absl::InternalError(absl::StrCat("the log-probability of the id ", sequence[i + 1], " at index ", i + 1,
                                                " of ", absl::StrJoin(sequence, ", "), " is ", *next,
                                                ": the model's weights make no finite logits"));
      }
      char number[32];
      std::snprintf(number, sizeof number, "%s%.9g", i == 0 ? "" : ", ", *next++);  // reads back as the same float
      line += number;
    }
    std::cout << line << "]}\n";
  }
  if (!std::cout.flush()) return absl::UnavailableError("standard output cannot be written");
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  const std::unique_ptr<KeyValueStore> store = MakeLocalStore();
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group, MakeProcessGroup(store.get(), {}));
  Ledger ledger;
  ShardedModelOptions options;
  options.zero_stage = 0;
  options.compute_dtype = flags.dtype;
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  QUARTET_ASSIGN_OR_RETURN(options.vocabulary, ReadVocabulary(flags.model, config));
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ShardedModel> model,
                           ShardedModel::Load(flags.model, options, group.get(), &ledger));
  const c10::NoGradGuard no_grad;
  std::vector<Ids> sequences;
  int64_t tokens = 0, line = 0;
  for (std::string text; std::getline(std::cin, text);) {
    ++line;
    QUARTET_ASSIGN_OR_RETURN(Ids ids, ParseLine(text, line, options.vocabulary));
    QUARTET_RETURN_IF_ERROR(CheckLengthInWindow(model->config(), flags.model,
                                                absl::StrCat("standard input, line ", line, ": the number of ids"),
                                                static_cast<int64_t>(ids.size())));
    if (tokens > 0 && tokens + static_cast<int64_t>(ids.size()) > flags.batch_tokens) {
      QUARTET_RETURN_IF_ERROR(WriteLogProbs(sequences, flags.temperature, model.get()));
      sequences.clear();
      tokens = 0;
    }
    tokens += static_cast<int64_t>(ids.size());
    sequences.push_back(std::move(ids));
  }
  if (std::cin.bad()) return absl::UnavailableError("standard input cannot be read");
  return WriteLogProbs(sequences, flags.temperature, model.get());
}

int Main(int argc, char** argv) {
  Flags flags;
  if (const auto code = ReadCommandLine(argc, argv, LogProbsCommandLine(&flags))) return *code;
  return Finish("log_probs", CatchAll([&] { return Run(flags); }));
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
