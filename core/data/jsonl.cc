#include "core/data/jsonl.h"

#include <limits>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"

namespace quartet {
namespace {

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

absl::StatusOr<Record> ReadRecord(std::string_view text, int line, const std::string& place,
                                  const std::vector<std::string>& keys) {
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json value, ParseJson(text, place));
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": is of JSON type ", value.type_name(), "; each line must be an object"));
  }
  Record record{.line = line};
  for (const std::string& key : keys) {
    const bool optional = !key.empty() && key[0] == '?';
    const std::string name = key.substr(optional ? 1 : 0);
    const auto field = value.find(name);
    if (field == value.end()) {
      if (optional) continue;
      return absl::InvalidArgumentError(absl::StrCat(place, ": has no field \"", name, "\""));
    }
    if (field->is_string()) {
      record.fields[name] = field->get<std::string>();
    } else if (field->is_number() || field->is_boolean()) {
      record.fields[name] = field->dump();
    } else {
      return absl::InvalidArgumentError(absl::StrCat(place, ": field \"", name, "\" is of JSON type ",
                                                     field->type_name(),
                                                     "; a string, a number or a boolean is allowed"));
    }
  }
  return record;
}

}  // namespace

absl::StatusOr<std::vector<Record>> ReadJsonl(const std::string& path, const std::vector<std::string>& keys) {
  constexpr int64_t kMaxBytes = int64_t{16} << 30;
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxBytes));
  const std::string_view all = text;
  std::vector<Record> records;
  int line = 0;
  for (size_t begin = 0; begin < all.size();) {
    ++line;
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view row = all.substr(begin, end - begin);
    if (IsBlank(row)) {
      if (IsBlank(all.substr(begin))) break;
      return absl::InvalidArgumentError(
          absl::StrCat(path, " line ", line, ": is blank; blank lines are allowed at the end only"));
    }
    QUARTET_ASSIGN_OR_RETURN(Record record, ReadRecord(row, line, absl::StrCat(path, " line ", line), keys));
    records.push_back(std::move(record));
    begin = end + 1;
  }
  if (records.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no records"));
  return records;
}

}  // namespace quartet
