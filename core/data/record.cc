#include "core/data/record.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;

// Turns numbers that are written with more digits than a double has into doubles, as programs do that read JSON.
absl::Status RoundNumbers(Json* value) {
  if (value->is_binary()) {
    const std::string number = ExactNumber(*value);
    double rounded = 0;
    if (number.find_first_of(".eE") == std::string::npos || !absl::SimpleAtod(number, &rounded)) {
      constexpr size_t kMostDigits = 60;
      return absl::InvalidArgumentError(absl::StrCat("has the number ", number.substr(0, kMostDigits),
                                                     number.size() > kMostDigits ? "..." : "",
                                                     "; whole numbers of at most 64 bits are allowed"));
    }
    *value = rounded;
  } else if (value->is_structured()) {
    for (Json& item : *value) QUARTET_RETURN_IF_ERROR(RoundNumbers(&item));
  }
  return absl::OkStatus();
}

std::string KeysOf(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return JoinNames(keys);
}

std::string RestOf(const Json& row, const std::vector<RowKey>& keys) {
  Json rest = Json::object();
  for (const auto& item : row.items()) {
    const std::string& name = item.key();
    const bool read = std::any_of(keys.begin(), keys.end(), [&name](const RowKey& key) { return key.name == name; });
    if (!read) rest[name] = item.value();
  }
  return PrintExactJson(rest);
}

// A field that is null as well; a null pointer where there is none.
const Json* FindFieldOrNull(const Json& row, std::string_view key) {
  if (!row.is_object()) return nullptr;
  if (const auto whole = row.find(std::string(key)); whole != row.end()) return &*whole;
  const Json* is_null = nullptr;
  for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.', dot + 1)) {
    const auto outer = row.find(std::string(key.substr(0, dot)));
    if (outer == row.end()) continue;
    const Json* inner = FindFieldOrNull(*outer, key.substr(dot + 1));
    if (inner != nullptr && !inner->is_null()) return inner;
    if (inner != nullptr) is_null = inner;
  }
  return is_null;
}

// `value` without the fields that are null in it: of a column each row has the fields that any row has.
Json WithoutNullFields(const Json& value) {
  if (!value.is_structured()) return value;
  Json kept = value.is_array() ? Json::array() : Json::object();
  for (const auto& [name, item] : value.items()) {
    if (value.is_array()) {
      kept.push_back(WithoutNullFields(item));
    } else if (!item.is_null()) {
      kept.emplace(name, WithoutNullFields(item));
    }
  }
  return kept;
}

bool IsList(const Json* field) { return field != nullptr && field->is_array(); }

}  // namespace

std::string JoinNames(const std::vector<std::string>& names) {
  constexpr size_t kMaxBytes = 200;
  std::string joined;
  for (const std::string& name : names) {
    absl::StrAppend(&joined, joined.empty() ? "" : ", ", name);
    if (joined.size() > kMaxBytes) return joined.substr(0, kMaxBytes) + "...";
  }
  return joined.empty() ? "nothing" : joined;
}

const Json* FindField(const Json& row, std::string_view key) {
  const Json* field = FindFieldOrNull(row, key);
  return field == nullptr || field->is_null() ? nullptr : field;
}

absl::StatusOr<Record> ReadRecord(const Json& row, const std::vector<RowKey>& keys, const std::string& columns) {
  if (!row.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("is of JSON type ", row.type_name(), "; it must be an object"));
  }
  Record record;
  for (const RowKey& key : keys) {
    if (key.rest) {
      record.rest = RestOf(row, keys);
      continue;
    }
    const Json* field = FindFieldOrNull(row, key.name);
    if (field == nullptr || field->is_null()) {
      if (key.optional || IsList(FindField(row, key.spared_by))) continue;
      if (field != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("field \"", key.name, "\" (", key.option, ") is null"));
      }
      return absl::InvalidArgumentError(absl::StrCat("has no field \"", key.name, "\" (", key.option,
                                                     "); it has: ", columns.empty() ? KeysOf(row) : columns));
    }
    if (field->is_string()) {
      record.fields[key.name] = field->get<std::string>();
    } else if (field->is_binary() || (key.as_json && field->is_structured())) {
      record.fields[key.name] = PrintExactJson(*field);
      if (field->is_structured()) record.written_as_json.insert(key.name);
    } else if (field->is_number() || field->is_boolean()) {
      record.fields[key.name] = field->dump();
    } else if (key.list && field->is_array()) {
      Json list = columns.empty() ? *field : WithoutNullFields(*field);
      if (const absl::Status rounded = RoundNumbers(&list); !rounded.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("field \"", key.name, "\" (", key.option, ") ", rounded.message()));
      }
      record.lists[key.name] = std::move(list);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("field \"", key.name, "\" (", key.option, ") is of JSON type ", field->type_name(),
                       "; a string, a number", key.list ? ", a boolean or a list" : " or a boolean", " is allowed"));
    }
  }
  return record;
}

}  // namespace quartet
