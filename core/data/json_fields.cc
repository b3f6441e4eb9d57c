#include "core/data/json_fields.h"

#include "absl/strings/str_cat.h"
#include "core/base/hash_text.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

using nlohmann::json;

constexpr uint64_t kMostCount = uint64_t{1} << 53;  // as far as all that reads JSON counts
constexpr char kText[] = "a text";
constexpr char kHash[] = "a hash, 16 hexadecimal digits";

std::string Counts(int64_t least) { return absl::StrCat("a whole number of ", least, " to ", kMostCount); }

}  // namespace

void JsonFields::Fail(const std::string& what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

void JsonFields::Fail(const std::string& field, const json* value, const std::string& allowed) {
  Fail(absl::StrCat(field, value == nullptr ? " is missing" : absl::StrCat(" is ", CutJson(*value)), "; it must be ",
                    allowed));
}

const json* JsonFields::Get(const json& object, const std::string& field, const std::string& allowed) {
  const auto found = object.find(field);
  if (found != object.end()) return &*found;
  Fail(field, nullptr, allowed);
  return nullptr;
}

const json& JsonFields::Object(const json& object, const std::string& field) {
  static const json& empty = *new json(json::object());
  return Like(&empty, object, field, "an object");
}

const json& JsonFields::Array(const json& object, const std::string& field) {
  static const json& empty = *new json(json::array());
  return Like(&empty, object, field, "a list");
}

const json& JsonFields::Like(const json* empty, const json& object, const std::string& field,
                             const std::string& allowed) {
  const json* const value = Get(object, field, allowed);
  if (value != nullptr && value->type() == empty->type()) return *value;
  if (value != nullptr) Fail(field, value, allowed);
  return *empty;
}

std::string JsonFields::Text(const json& object, const std::string& field) {
  const json* const value = Get(object, field, kText);
  return value == nullptr ? "" : AsText(*value, field);
}

int64_t JsonFields::Count(const json& object, const std::string& field, int64_t least) {
  const json* const value = Get(object, field, Counts(least));
  return value == nullptr ? 0 : AsCount(*value, field, least);
}

double JsonFields::Number(const json& object, const std::string& field, std::optional<double> least) {
  const std::string allowed = least.has_value() ? absl::StrCat("a number of at least ", *least) : "a number";
  const json* const value = Get(object, field, allowed);
  if (value == nullptr) return 0;
  if (value->is_number() && (!least.has_value() || value->get<double>() >= *least)) return value->get<double>();
  Fail(field, value, allowed);
  return 0;
}

uint64_t JsonFields::Hash(const json& object, const std::string& field) {
  const json* const value = Get(object, field, kHash);
  return value == nullptr ? 0 : AsHash(*value, field);
}

std::string JsonFields::AsText(const json& value, const std::string& field) {
  if (value.is_string()) return value.get<std::string>();
  Fail(field, &value, kText);
  return "";
}

int64_t JsonFields::AsCount(const json& value, const std::string& field, int64_t least) {
  if (value.is_number_unsigned() && value.get<uint64_t>() >= static_cast<uint64_t>(least) &&
      value.get<uint64_t>() <= kMostCount) {
    return value.get<int64_t>();
  }
  Fail(field, &value, Counts(least));
  return 0;
}

uint64_t JsonFields::AsHash(const json& value, const std::string& field) {
  const auto hash = value.is_string() ? ParseHash(value.get_ref<const std::string&>()) : std::nullopt;
  if (!hash.has_value()) Fail(field, &value, kHash);
  return hash.value_or(0);
}

}  // namespace quartet
