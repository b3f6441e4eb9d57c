#include "orchestrator/run_folder/file_tail.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace quartet {

absl::Status FileTail::Read(std::string* lines) {
  lines->clear();
  std::error_code none;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path_, none));
  if (none || size <= read_) return absl::OkStatus();
  std::ifstream file(path_, std::ios::binary);
  file.seekg(read_);
  lines->resize(static_cast<size_t>(size - read_));
  file.read(lines->data(), size - read_);
  if (!file) return absl::InternalError(absl::StrCat("cannot read ", path_));
  // A last line may still be being written.
  lines->resize(lines->rfind('\n') == std::string::npos ? 0 : lines->rfind('\n') + 1);
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
