#include "core/terminal/folder_growth.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/time/pause.h"

namespace quartet {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(300);
constexpr int kMiBBits = 20;

}  // namespace

int64_t BytesBelow(const std::string& folder) {
  namespace fs = std::filesystem;
  int64_t bytes = 0;
  std::error_code error;  // files come and go
  for (fs::recursive_directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    std::error_code gone;
    if (!file->is_regular_file(gone)) continue;
    const uintmax_t size = file->file_size(gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

FolderGrowth::FolderGrowth(TerminalView& view, std::string folder, int64_t expected)
    : view_(view),
      folder_(std::move(folder)),
      expected_(expected),
      thread_([this](const std::stop_token& stop) { Watch(stop); }) {}

void FolderGrowth::Watch(const std::stop_token& stop) {
  while (PauseFor(stop, kLook)) {
    const int64_t written = BytesBelow(folder_) >> kMiBBits;
    const int64_t expected = expected_ >> kMiBBits;
    if (expected > 0) {
      view_.Progress(std::min(written, expected), "MiB");
    } else if (written > 0) {
      view_.Progress(0, absl::StrCat(written, " MiB written"));
    }
  }
}

}  // namespace quartet
