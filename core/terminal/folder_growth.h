// How far a folder is that others write, on the live line.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
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
  ~FolderGrowth();
  FolderGrowth(const FolderGrowth&) = delete;
  FolderGrowth& operator=(const FolderGrowth&) = delete;

 private:
  void Watch();

  TerminalView& view_;
  const std::string folder_;
  const int64_t expected_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace quartet
