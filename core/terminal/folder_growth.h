// How far a folder is that others write, on the live line.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <thread>

#include "core/terminal/terminal_view.h"

namespace quartet {

// Bytes of the files below `folder`, as far as they can be seen; 0 where there is none.
int64_t BytesBelow(const std::string& folder);

// While it lives, what is being done is said to be the writing of `folder`: with a bar and the time that is left where
// `expected` bytes are known (0: they are not), in MiB. The view outlives it.
class FolderGrowth {
 public:
  FolderGrowth(TerminalView& view, std::string folder, int64_t expected);
  FolderGrowth(const FolderGrowth&) = delete;
  FolderGrowth& operator=(const FolderGrowth&) = delete;

 private:
  void Watch(const std::stop_token& stop);

  TerminalView& view_;
  const std::string folder_;
  const int64_t expected_;
  std::jthread thread_;
};

// Runs `write`, by which others write `folder`, and shows its growth. `bytes`: what the folder is expected to have;
// what it has, afterwards.
template <typename Write>
auto ShowGrowth(TerminalView& view, const std::string& folder, int64_t* bytes, const Write& write) {
  auto written = [&] {
    const FolderGrowth growth(view, folder, *bytes);
    return write();
  }();
  *bytes = BytesBelow(folder);
  return written;
}

}  // namespace quartet
