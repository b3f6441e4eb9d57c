#include "core/data/jsonl.h"

#include <limits>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"

namespace quartet {
namespace {

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// The keys of an object, for an error.
std::string KeysOf(const nlohmann::json& object) {
  constexpr size_t kMaxBytes = 200;
  std::string keys;
  for (const auto& [key, value] : object.items()) {
    absl::StrAppend(&keys, keys.empty() ? "" : ", ", key);
    if (keys.size() > kMaxBytes) return keys.substr(0, kMaxBytes) + "...";
  }
  return keys.empty() ? "nothing" : keys;
}

absl::StatusOr<Record> ReadRecord(const nlohmann::json& value, int line, const std::vector<JsonlKey>& keys) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is of JSON type ", value.type_name(), "; each line must be an object"));
  }
  Record record{.line = line};
  for (const JsonlKey& key : keys) {
    const auto field = value.find(key.name);
    if (field == value.end()) {
      const auto sparing = value.find(key.spared_by);
      if (key.optional || (sparing != value.end() && sparing->is_array())) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("has no field \"", key.name, "\" (", key.option, "); the line has: ", KeysOf(value)));
    }
    if (field->is_string()) {
      record.fields[key.name] = field->get<std::string>();
    } else if (field->is_number() || field->is_boolean()) {
      record.fields[key.name] = field->dump();
    } else if (key.list && field->is_array()) {
      record.lists[key.name] = *field;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("field \"", key.name, "\" (", key.option, ") is of JSON type ", field->type_name(),
                       "; a string, a number", key.list ? ", a boolean or a list" : " or a boolean", " is allowed"));
    }
  }
  return record;
}

}  // namespace

absl::Status AtLine(const JsonlFile& file, int line, const absl::Status& status) {
  return Prefixed(absl::StrCat(file.option, ": ", file.path, " line ", line), status);
}

absl::StatusOr<std::vector<Record>> ReadJsonl(const JsonlFile& file, const std::vector<JsonlKey>& keys) {
  constexpr int64_t kMaxBytes = int64_t{16} << 30;
  const std::string place = absl::StrCat(file.option, ": ", file.path);
  const absl::StatusOr<std::string> text = ReadTextFile(file.path, kMaxBytes);
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        absl::StrCat(
            file.option, ": ", text.status().message(),
            absl::IsNotFound(text.status()) ? absl::StrCat("; relative paths start at ", ResolveUserPath(".")) : ""));
  }
  const std::string_view all = *text;
  std::vector<Record> records;
  int line = 0;
  for (size_t begin = 0; begin < all.size();) {
    ++line;
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view row = all.substr(begin, end - begin);
    if (IsBlank(row)) {
      if (IsBlank(all.substr(begin))) break;
      return AtLine(file, line, absl::InvalidArgumentError("is blank; blank lines are allowed at the end only"));
    }
    QUARTET_ASSIGN_OR_RETURN(const nlohmann::json value, ParseJson(row, place, kMaxJsonDepth, line));
    absl::StatusOr<Record> record = ReadRecord(value, line, keys);
    if (!record.ok()) return AtLine(file, line, record.status());
    records.push_back(*std::move(record));
    begin = end + 1;
  }
  if (records.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        place,
        all.empty() ? " is empty (0 bytes)" : absl::StrCat(" has nothing but white space (", all.size(), " bytes)"),
        "; it needs at least one line, a JSON object"));
  }
  return records;
}

}  // namespace quartet
