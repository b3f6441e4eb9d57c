#include "rollout/stop_strings.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace quartet {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // what an incomplete character reads as

class Watcher : public StopWatcher {
 public:
  Watcher(const Tokenizer& tokenizer, std::vector<std::string> stop) : tokenizer_(tokenizer), stop_(std::move(stop)) {
    for (const std::string& s : stop_) longest_ = std::max(longest_, s.size());
  }

  const std::string* Read(int32_t token) override {
    // A token's text depends on those before it (a decoder may join or strip): it is what the text of the window grows
    // by. The window begins at a token whose text is known, and is short.
    window_.push_back(token);
    const std::string whole = tokenizer_.Decode(window_, /*skip_special_tokens=*/true);
    if (whole.ends_with(kReplacement) || whole.size() < known_bytes_) return nullptr;
    const size_t old = text_.size();
    text_ += std::string_view(whole).substr(known_bytes_);
    const std::string* found = Search(old);
    if (text_.size() > longest_) text_.erase(0, text_.size() - longest_);
    window_.erase(window_.begin(), window_.begin() + static_cast<int64_t>(known_tokens_));
    known_tokens_ = window_.size();
    known_bytes_ = tokenizer_.Decode(window_, /*skip_special_tokens=*/true).size();
    return found;
  }

 private:
  // A stop string that ends behind byte `old` of text_.
  const std::string* Search(size_t old) const {
    const std::string* found = nullptr;
    size_t first = std::string::npos;
    for (const std::string& s : stop_) {
      const size_t from = old + 1 > s.size() ? old + 1 - s.size() : 0;
      const size_t at = text_.find(s, from);
      if (at < first) {
        first = at;
        found = &s;
      }
    }
    return found;
  }

  const Tokenizer& tokenizer_;
  const std::vector<std::string> stop_;
  size_t longest_ = 0;
  std::string text_;  // the end of what was read
  std::vector<int32_t> window_;
  size_t known_tokens_ = 0;  // of window_, whose text is in text_ already
  size_t known_bytes_ = 0;   // of their text
};

}  // namespace

StopWatcherFactory WatchWith(const Tokenizer& tokenizer) {
  return [&tokenizer](const std::vector<std::string>& stop) { return std::make_unique<Watcher>(tokenizer, stop); };
}

}  // namespace quartet
