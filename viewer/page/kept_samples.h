// The samples that the page has of a long run: those of steps evenly over it, so that what is kept is bounded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/run_folder/records/records.h"
#include "nlohmann/json.hpp"

namespace quartet {

// One thread.
class KeptSamples {
 public:
  static constexpr size_t kBytes = 1'400'000;
  // Characters of a text that are kept of its beginning; a quarter as many of its end.
  static constexpr size_t kText = 1600;
  // Bytes that are kept of all sequences of a sample together.
  static constexpr size_t kSequences = 4 * kText;

  // Lines of samples.jsonl, in their order.
  void Add(const nlohmann::json& sample);

  // {"total", "steps", "step", "prompt", "response", "label", "reward", "kl", "finish", "tokens", "sequences",
  // "parts"}: lists with an entry a sample, `parts` by the source's name. `tokens`: where tokens have rewards, [text,
  // reward] of the tokens up to each that has one, and of those behind the last; else null. `sequences`: where the
  // record has some, of each the list of its spans [text, 1 if it is trained on, else 0]; else null.
  void AppendJson(std::string* out) const;

 private:
  struct Sample {
    std::string prompt, response, label, finish;
    double reward = 0, kl = 0;  // NaN: none
    std::map<std::string, double> parts;
    std::vector<std::pair<std::string, double>> tokens;
    std::vector<SampleSequence> sequences;
    size_t bytes = 0;
  };

  // Every stride-th of the steps that have samples, until those fit.
  void Thin();

  std::map<int64_t, std::vector<Sample>> by_step_;
  std::map<int64_t, int64_t> place_;  // of a kept step among those that had samples
  int64_t stride_ = 1, steps_ = 0, total_ = 0, latest_ = -1;
  size_t bytes_ = 0;
};

}  // namespace quartet
