// The text of one answer as it grows, ready to be told: of whole characters, without the stop string that ends it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "core/tokenizer/tokenizer.h"
#include "rollout/text_reader.h"

namespace quartet {

int64_t CountCharacters(std::string_view text);

// What Read and Finish give, end to end, is the answer's text, however it is cut. One thread.
class AnswerText {
 public:
  // `silent`: tokens that have no text, since they end the answer. `tokenizer` outlives this.
  AnswerText(const Tokenizer& tokenizer, absl::Span<const int32_t> prompt, std::vector<std::string> stop,
             std::set<int32_t> silent)
      : reader_(tokenizer, prompt), stop_(std::move(stop)), silent_(std::move(silent)) {}

  // What can be told with `token`: not what may yet turn out to be part of a stop string.
  std::string Read(int32_t token);
  // Characters of all that has been read, told or not.
  int64_t characters() const { return characters_; }
  // The rest, up to `stop_string`, which ended the answer ("": none did).
  std::string Finish(const std::string& stop_string);

 private:
  TextReader reader_;
  const std::vector<std::string> stop_;
  const std::set<int32_t> silent_;
  std::string held_;
  int64_t characters_ = 0;
};

}  // namespace quartet
