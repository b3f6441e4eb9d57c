// What a run writes down, and the line of JSON that each record is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/run_folder/records/metrics.h"

namespace quartet {

// A number that fp32 holds as the double that is written by the fewest digits which are read back as the same of fp32:
// 0.3, not 0.30000001192092896. Other numbers are as they are.
double ShortestOfFp32(double number);

// Tokens of a sequence, one after the other, that are all trained on, or all context.
struct SampleSpan {
  std::string text;  // special tokens included
  bool trained = false;
  bool operator==(const SampleSpan&) const = default;
};
using SampleSequence = std::vector<SampleSpan>;

// One line of samples.jsonl.
struct SampleRecord {
  int64_t step = 0;
  std::string prompt;
  std::string response;
  std::string label;
  std::optional<double> reward;  // absent where answers have none
  std::map<std::string, float> parts;
  // What of `reward` each token has, where sources say so, and the texts of these tokens; else both are empty.
  std::vector<float> token_rewards;
  std::vector<std::string> token_texts;
  // Of an answer of several turns or sequences all that the model has read and written; else empty.
  std::vector<SampleSequence> sequences;
  // Mean over the answer's tokens; absent without a reference model.
  std::optional<double> kl;
  std::string finish_reason;  // "stop" or "length"
};

// One line of evaluations.jsonl.
struct EvaluationRecord {
  int64_t step = 0;   // after which, from 0; -1: before training
  std::string model;  // its name
  std::string set, data;
  int64_t prompts = 0;
  int n_samples_per_prompt = 1;
  double temperature = 0, top_p = 1;
  Metrics values;
};

// What becomes of the run, in state.json.
struct RunState {
  std::string program;                          // "orchestrator", "sft", ...
  std::string state;                            // "running", "finished", "stopped" (by its user) or "failed"
  std::string why;                              // of the last two
  int64_t steps = 0;                            // that it makes in all, as far as is known
  std::map<std::string, std::string> services;  // host:port by name
};

// One line of heldout.jsonl.
struct HeldoutRecord {
  std::string prompt;
  std::string label;
};

// Each ends with a line break. A number that is not finite is null (JSON has no other way), bytes that are not UTF-8 (a
// model can generate those) become U+FFFD. Metrics and states have the present time, in Unix seconds to the
// millisecond.
std::string LineOf(int64_t step, const Metrics& metrics);
std::string LineOf(const SampleRecord& sample);
std::string LineOf(const EvaluationRecord& record);
std::string LineOf(const RunState& state);
std::string LineOf(const HeldoutRecord& record);
// As RunFolder::WriteEvent has them; also with the time.
std::string EventLine(const std::string& kind, int64_t step, const std::string& from, const std::string& text);

}  // namespace quartet
