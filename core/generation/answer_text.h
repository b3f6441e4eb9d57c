// The text of one answer as it grows, and the stop string that ends it. The engine ends sequences by it and HTTP writes
// answers with it, so that both find the same end. LibTorch-free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/generation/stop_strings.h"
#include "core/generation/text_reader.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

int64_t CountCharacters(std::string_view text);

struct AnswerTextOptions {
  std::shared_ptr<const StopStrings> stop;  // or null
  // A stop string that is complete with one of the first `min_tokens` tokens does not end the text.
  int64_t min_tokens = 0;
  bool includes_stop = false;  // the text has the stop string that ends it
  std::set<int32_t> silent;    // tokens that have no text
  // Special tokens that are told by these names, where they stand in the text. For stop strings they are not there. One
  // within a character stands behind it, and behind what becomes none as what it is told as.
  std::map<int32_t, std::string> marks;
};

// What Read and Finish give, end to end, is the answer's text. It ends with the stop string that is complete first (of
// those that are complete with the same byte, the first of the list), as in vLLM. One thread.
class AnswerText {
 public:
  // `prompt` stands before the answer. `tokenizer` outlives this; `options`, not null, may be many answers'.
  AnswerText(const Tokenizer& tokenizer, absl::Span<const int32_t> prompt,
             std::shared_ptr<const AnswerTextOptions> options)
      : reader_(tokenizer, prompt), options_(std::move(options)) {}

  // What can be given with `token`: whole characters, but not what may yet turn out to be part of a stop string.
  std::string Read(int32_t token);
  // That has ended the text; or null.
  const std::string* stop_string() const { return stop_string_; }
  // Characters of all that has been read, given or not, without marks.
  int64_t characters() const { return characters_; }
  // The rest.
  std::string Finish();

 private:
  // A mark behind the beginning of a character.
  struct WaitingMark {
    std::string begun;  // as it reads if no more of it comes
    const std::string* name;
  };

  // Marks that wait have their place in `piece`, which comes behind what is held.
  void PlaceMarks(std::string_view piece);
  // The first `bytes` of what is held, with the marks in it.
  std::string Give(size_t bytes);

  TextReader reader_;
  const std::shared_ptr<const AnswerTextOptions> options_;
  int64_t tokens_ = 0;
  int64_t characters_ = 0;
  std::string held_;                                          // not given yet
  std::vector<std::pair<size_t, const std::string*>> marks_;  // behind so many bytes of it
  std::vector<WaitingMark> waiting_marks_;
  StopStrings::State state_ = StopStrings::kStart;
  const std::string* stop_string_ = nullptr;
};

}  // namespace quartet
