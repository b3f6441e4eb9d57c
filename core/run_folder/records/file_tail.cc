#include "core/run_folder/records/file_tail.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/files/input_file.h"
#include "core/base/status_macros.h"

namespace quartet {

absl::Status FileTail::Read(std::string* lines) {
  lines->clear();
  began_anew_ = false;
  absl::StatusOr<InputFile> file = InputFile::Open(path_);
  if (absl::IsNotFound(file.status())) file = InputFile();  // without bytes
  QUARTET_RETURN_IF_ERROR(file.status());
  const struct stat& now = file->info();
  if (now.st_ino != inode_ || now.st_dev != device_ || now.st_size < read_) {
    began_anew_ = read_ > 0;
    device_ = now.st_dev;
    inode_ = now.st_ino;
    read_ = std::max<int64_t>(0, now.st_size - most_);
  }
  lines->resize(static_cast<size_t>(now.st_size - read_));
  // Fewer where it has been shortened since.
  QUARTET_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(static_cast<uint64_t>(read_), lines->size(), lines->data()));
  // A last line may still be being written.
  lines->resize(got);
  lines->resize(lines->rfind('\n') + 1);  // npos + 1 is 0
  read_ += static_cast<int64_t>(lines->size());
  return absl::OkStatus();
}

std::vector<nlohmann::json> Records(const std::string& lines) {
  std::vector<nlohmann::json> records;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object()) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace quartet
