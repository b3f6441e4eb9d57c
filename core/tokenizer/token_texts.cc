#include "core/tokenizer/token_texts.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "core/base/utf8.h"

namespace quartet {
namespace {

constexpr std::string_view kUnreadable = "\xEF\xBF\xBD";  // what an incomplete character reads as
constexpr std::ptrdiff_t kMostLookedAt = 8;               // tokens before one, that a decoder looks back at
constexpr size_t kMostPending = 16;                       // tokens in a row that are read together

// Bytes of whole characters that both begin with.
size_t CommonBytes(std::string_view a, std::string_view b) {
  return WholeCharacters(a, std::ranges::mismatch(a, b).in1 - a.begin());
}

// Gives out texts in order. Invariant: what was given out is what the whole text begins with.
class Reader {
 public:
  Reader(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, std::ptrdiff_t first)
      : tokenizer_(tokenizer), ids_(ids), shown_(first) {
    BeginAnew();
    origin_ = begin_;
    whole_ = Read(begin_, std::ssize(ids_));
    at_ = CommonBytes(known_, whole_);
    known_.resize(at_);  // a character that goes on behind `first` is the answer's
  }

  std::vector<std::string> Texts() {
    for (std::ptrdiff_t end = shown_ + 1; end <= std::ssize(ids_); ++end) {
      reads_.push_back(Read(begin_, end));
      if (end == std::ssize(ids_)) {
        Give(known_ + whole_.substr(at_));
      } else if (IsPrefix(reads_.back()) && !reads_.back().ends_with(kUnreadable)) {
        Give(std::string(reads_.back()));
        BeginAnew();
      } else if (reads_.size() == kMostPending && !CutPending()) {
        // What precedes them changes how they read.
        const size_t to = std::max(at_, CommonBytes(Read(origin_, end), whole_));
        Give(known_ + whole_.substr(at_, to - at_));
        BeginAnew();
      }
    }
    return std::move(texts_);
  }

 private:
  std::string Read(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    return tokenizer_.DecodeUncleaned({ids_.begin() + begin, ids_.begin() + end}, /*skip_special_tokens=*/false);
  }

  // Whether `text`, read from begin_ on, is what the whole text goes on with.
  bool IsPrefix(std::string_view text) const {
    return text.starts_with(known_) && std::string_view(whole_).substr(at_).starts_with(text.substr(known_.size()));
  }

  void BeginAnew() {
    begin_ = std::max<std::ptrdiff_t>(0, shown_ - kMostLookedAt);
    known_ = Read(begin_, shown_);
    // Not within a character: it would be read as another one, or spoil those behind it.
    while (begin_ < shown_ && known_.starts_with(kUnreadable)) known_ = Read(++begin_, shown_);
  }

  // `text` is known_ and what follows it, of all pending tokens: each has what its own reading has in common with it
  // beyond that of those before.
  void Give(const std::string& text) {
    size_t from = known_.size();
    for (size_t i = 0; i < reads_.size(); ++i) {
      const bool is_last = i + 1 == reads_.size();
      size_t to = is_last ? text.size() : std::max(from, CommonBytes(reads_[i], text));
      // An incomplete character of several tokens is the last one's, too.
      const bool goes_on = !is_last && reads_[i] == reads_[i + 1] && reads_[i].ends_with(kUnreadable);
      if (goes_on && to > from && to == reads_[i].size()) to -= kUnreadable.size();
      texts_.push_back(text.substr(from, to - from));
      from = to;
    }
    at_ += text.size() - known_.size();
    shown_ += std::ssize(reads_);
    reads_.clear();
  }

  // Gives out as many pending tokens as read the same without those behind them, which read the same without them.
  bool CutPending() {
    const std::ptrdiff_t end = shown_ + std::ssize(reads_);
    const std::string all = reads_.back();
    for (std::ptrdiff_t cut = end - 1; cut > shown_; --cut) {
      const std::string& before = reads_[cut - shown_ - 1];
      if (!IsPrefix(before) || before + Read(cut, end) != all) continue;
      reads_.resize(cut - shown_);
      Give(std::string(before));
      begin_ = cut;
      known_.clear();
      for (std::ptrdiff_t of = cut + 1; of <= end; ++of) reads_.push_back(Read(begin_, of));
      return true;
    }
    return false;
  }

  const Tokenizer& tokenizer_;
  const std::vector<int32_t>& ids_;
  std::ptrdiff_t origin_ = 0;         // where whole_ begins
  std::string whole_;                 // of all ids
  size_t at_ = 0;                     // of whole_, what was given out or is before `first`
  std::ptrdiff_t begin_ = 0, shown_;  // ids_[begin_..shown_) read as `known_`, of which all was given out
  std::string known_;
  std::vector<std::string> reads_;  // of ids_[begin_..shown_ + 1), ids_[begin_..shown_ + 2) ...: those pending
  std::vector<std::string> texts_;
};

}  // namespace

std::vector<std::string> TokenTexts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, int64_t first) {
  return Reader(tokenizer, ids, first).Texts();
}

}  // namespace quartet
