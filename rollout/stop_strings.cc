#include "rollout/stop_strings.h"

#include <algorithm>
#include <utility>

#include "rollout/text_reader.h"

namespace quartet {
namespace {

class Watcher : public StopWatcher {
 public:
  Watcher(const Tokenizer& tokenizer, std::vector<std::string> stop) : reader_(tokenizer), stop_(std::move(stop)) {
    for (const std::string& s : stop_) longest_ = std::max(longest_, s.size());
  }

  const std::string* Read(int32_t token) override {
    const size_t old = text_.size();
    text_ += reader_.Read(token);
    if (text_.size() == old) return nullptr;
    const std::string* found = Search(old);
    if (text_.size() > longest_) text_.erase(0, text_.size() - longest_);
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

  TextReader reader_;
  const std::vector<std::string> stop_;
  size_t longest_ = 0;
  std::string text_;  // the end of what was read
};

}  // namespace

StopWatcherFactory WatchWith(const Tokenizer& tokenizer) {
  return [&tokenizer](const std::vector<std::string>& stop) { return std::make_unique<Watcher>(tokenizer, stop); };
}

}  // namespace quartet
