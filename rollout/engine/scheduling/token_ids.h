// The tokens of one sequence: its prompt, which all samples of the prompt share, and what was generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace quartet {

// One thread; a prompt is shared by any number of them.
class TokenIds {
 public:
  using Prompt = std::shared_ptr<const std::vector<int32_t>>;

  TokenIds() : TokenIds(std::vector<int32_t>()) {}
  explicit TokenIds(std::vector<int32_t> prompt)
      : TokenIds(std::make_shared<const std::vector<int32_t>>(std::move(prompt))) {}
  // Not null.
  explicit TokenIds(Prompt prompt) : prompt_(std::move(prompt)) {}

  size_t size() const { return prompt_->size() + answer_.size(); }
  int32_t operator[](size_t i) const { return i < prompt_->size() ? (*prompt_)[i] : answer_[i - prompt_->size()]; }
  int32_t back() const { return answer_.empty() ? prompt_->back() : answer_.back(); }
  void push_back(int32_t id) { answer_.push_back(id); }

  absl::Span<const int32_t> prompt() const { return *prompt_; }
  absl::Span<const int32_t> answer() const { return answer_; }

  // Tokens [begin, begin + count): where they are, or in `joined` where some are the prompt's and some are not.
  absl::Span<const int32_t> Part(size_t begin, size_t count, std::vector<int32_t>* joined) const {
    const size_t first = prompt_->size();
    if (begin + count <= first) return prompt().subspan(begin, count);
    if (begin >= first) return answer().subspan(begin - first, count);
    joined->assign(prompt_->begin() + static_cast<ptrdiff_t>(begin), prompt_->end());
    joined->insert(joined->end(), answer_.begin(), answer_.begin() + static_cast<ptrdiff_t>(begin + count - first));
    return *joined;
  }

 private:
  Prompt prompt_;
  std::vector<int32_t> answer_;
};

}  // namespace quartet
