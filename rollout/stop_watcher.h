// Ends sequences by their text. The engine knows ids only; whoever has a tokenizer gives it watchers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace quartet {

// Reads the answer of one sequence, token by token. One thread.
class StopWatcher {
 public:
  virtual ~StopWatcher() = default;
  // The stop string that the text with this token completes, the one that begins first; or null.
  virtual const std::string* Read(int32_t token) = 0;
};

// Makes a watcher for these stop strings; thread safe.
using StopWatcherFactory = std::function<std::unique_ptr<StopWatcher>(const std::vector<std::string>& stop)>;

}  // namespace quartet
