#include "core/tokenizer/jinja/values/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet::jinja {
namespace {

// What is the same for keys that are one; nothing for what cannot be a key.
std::optional<std::string> KeyText(const Value& key) {
  switch (key.kind) {
    case Value::Kind::kText:
      return "s" + key.text;
    case Value::Kind::kNone:
      return "n";
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return absl::StrCat("i", key.as_int());
    case Value::Kind::kFloat:
      if (std::floor(key.real) == key.real && std::abs(key.real) < 9e15) {
        return absl::StrCat("i", static_cast<int64_t>(key.real));
      }
      return "f" + FloatText(key.real);
    case Value::Kind::kUndefined:
      return "u";
    case Value::Kind::kList: {
      if (key.list_kind != ListKind::kTuple) return std::nullopt;
      std::string text = "t";
      for (const Value& item : *key.list) {
        const std::optional<std::string> part = KeyText(item);
        if (!part) return std::nullopt;
        absl::StrAppend(&text, part->size(), ":", *part);
      }
      return text;
    }
    default:
      return std::nullopt;
  }
}

std::string TextRepr(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string written(1, quote);
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = CharBytes(text, at);
    const char32_t c = CharAt(text, at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      written += '\\';
      written += static_cast<char>(c);
    } else if (c == '\n' || c == '\t' || c == '\r') {
      written += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
    } else if (IsPrintable(c)) {
      written.append(text, at, size);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&written, "\\x%02x", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&written, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      absl::StrAppendFormat(&written, "\\U%08x", static_cast<uint32_t>(c));
    }
  }
  return written + quote;
}

std::optional<std::string> ListRepr(const Value& value) {
  std::string text;
  for (const Value& item : *value.list) {
    const std::optional<std::string> part = Repr(item);
    if (!part) return std::nullopt;
    text += (text.empty() ? "" : ", ") + *part;
  }
  switch (value.list_kind) {
    case ListKind::kList:
      return "[" + text + "]";
    case ListKind::kTuple:
      return "(" + text + (value.list->size() == 1 ? ",)" : ")");
    case ListKind::kKeys:
      return "dict_keys([" + text + "])";
    case ListKind::kValues:
      return "dict_values([" + text + "])";
    case ListKind::kItems:
      return "dict_items([" + text + "])";
    default:
      return std::nullopt;
  }
}

}  // namespace

Value Value::Undefined(std::string name) { return {.text = std::move(name)}; }
Value Value::None() { return {.kind = Kind::kNone}; }
Value Value::Bool(bool value) { return {.kind = Kind::kBool, .boolean = value}; }
Value Value::Int(int64_t value) { return {.kind = Kind::kInt, .number = value}; }
Value Value::Float(double value) { return {.kind = Kind::kFloat, .real = value}; }
Value Value::Text(std::string text, bool safe) { return {.kind = Kind::kText, .safe = safe, .text = std::move(text)}; }
Value Value::Of(List list, ListKind kind) {
  return {.kind = Kind::kList, .list_kind = kind, .list = std::make_shared<const List>(std::move(list))};
}
Value Value::Of(Dict dict) { return {.kind = Kind::kDict, .dict = std::make_shared<const Dict>(std::move(dict))}; }
Value Value::Namespace(Fields fields) {
  return {.kind = Kind::kNamespace, .fields = std::make_shared<Fields>(std::move(fields))};
}
Value Value::Function(std::string name) { return {.kind = Kind::kFunction, .text = std::move(name)}; }
Value Value::Method(Value self, std::string name) {
  return {.kind = Kind::kMethod, .text = std::move(name), .self = std::make_shared<const Value>(std::move(self))};
}

bool Dict::Set(const Value& key, Value value) {
  const std::optional<std::string> text = KeyText(key);
  if (!text) return false;
  const auto [place, is_new] = places_.emplace(*text, items_.size());
  if (is_new) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[place->second].second = std::move(value);  // the first key stays
  }
  return true;
}

const Value* Dict::Find(const Value& key) const {
  const std::optional<std::string> text = KeyText(key);
  if (!text) return nullptr;
  const auto found = places_.find(*text);
  return found == places_.end() ? nullptr : &items_[found->second].second;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = places_.find(absl::StrCat("s", std::string(key)));
  return found == places_.end() ? nullptr : &items_[found->second].second;
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return absl::InvalidArgumentError(
            absl::StrCat("the number ", json.dump(), " is too large for a template: up to ",
                         std::numeric_limits<int64_t>::max(), " is allowed; give it as a string"));
      }
      return Value::Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value::Float(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return Value::Text(json.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      List list;
      for (const auto& item : json) {
        QUARTET_ASSIGN_OR_RETURN(list.emplace_back(), FromJson(item));
      }
      return Value::Of(std::move(list));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        QUARTET_ASSIGN_OR_RETURN(Value value, FromJson(item));
        dict.Set(Value::Text(key), std::move(value));
      }
      return Value::Of(std::move(dict));
    }
    default:
      return Value::None();
  }
}

bool IsTrue(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
      return value.boolean;
    case Value::Kind::kInt:
      return value.number != 0;
    case Value::Kind::kFloat:
      return value.real != 0;
    case Value::Kind::kText:
      return !value.text.empty();
    case Value::Kind::kList:
      return !value.list->empty() || value.list_kind == ListKind::kGenerator;
    case Value::Kind::kDict:
      return !value.dict->items().empty();
    default:
      return true;
  }
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_int() && b.is_int() ? a.as_int() == b.as_int() : a.as_real() == b.as_real();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return true;
    case Value::Kind::kText:
      return a.text == b.text;
    case Value::Kind::kList:
      return a.list_kind == b.list_kind &&
             std::equal(a.list->begin(), a.list->end(), b.list->begin(), b.list->end(), Equal);
    case Value::Kind::kDict: {
      if (a.dict->items().size() != b.dict->items().size()) return false;
      return std::all_of(a.dict->items().begin(), a.dict->items().end(), [&](const auto& item) {
        const Value* other = b.dict->Find(item.first);
        return other != nullptr && Equal(item.second, *other);
      });
    }
    case Value::Kind::kNamespace:
      return a.fields == b.fields;
    case Value::Kind::kMacro:
      return a.macro == b.macro;
    default:
      return a.text == b.text;
  }
}

std::optional<bool> Less(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return a.as_int() < b.as_int();
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  if (a.is_text() && b.is_text()) return a.text < b.text;  // UTF-8 orders as code points do
  if (a.is_list() && b.is_list() && a.list_kind == b.list_kind) {
    for (size_t i = 0; i < a.list->size() && i < b.list->size(); ++i) {
      if (!Equal((*a.list)[i], (*b.list)[i])) return Less((*a.list)[i], (*b.list)[i]);
    }
    return a.list->size() < b.list->size();
  }
  return std::nullopt;
}

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  // The shortest digits that read back as the number.
  char text[64];
  const auto shortest = std::to_chars(text, text + sizeof(text), number, std::chars_format::scientific);
  std::string scientific(text, shortest.ptr);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return scientific;  // Python's exponents have two digits at least too
  const auto fixed = std::to_chars(text, text + sizeof(text), number, std::chars_format::fixed);
  std::string written(text, fixed.ptr);
  if (written.find('.') == std::string::npos) written += ".0";
  return written;
}

std::optional<std::string> Repr(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kUndefined:
      return "Undefined";
    case Value::Kind::kNone:
      return "None";
    case Value::Kind::kBool:
      return value.boolean ? "True" : "False";
    case Value::Kind::kInt:
      return absl::StrCat(value.number);
    case Value::Kind::kFloat:
      return FloatText(value.real);
    case Value::Kind::kText:
      return value.safe ? "Markup(" + TextRepr(value.text) + ")" : TextRepr(value.text);
    case Value::Kind::kList:
      return ListRepr(value);
    case Value::Kind::kDict: {
      std::string text;
      for (const auto& [key, item] : value.dict->items()) {
        const std::optional<std::string> key_text = Repr(key), item_text = Repr(item);
        if (!key_text || !item_text) return std::nullopt;
        text += (text.empty() ? "" : ", ") + *key_text + ": " + *item_text;
      }
      return "{" + text + "}";
    }
    default:
      return std::nullopt;
  }
}

std::optional<std::string> ToText(const Value& value) {
  if (value.kind == Value::Kind::kUndefined) return "";
  return value.is_text() ? value.text : Repr(value);
}

std::string TypeName(const Value& value) {
  constexpr const char* kNames[] = {"undefined", "none", "bool",      "int",   "float",  "text",
                                    "list",      "dict", "namespace", "macro", "method", "function"};
  return kNames[static_cast<int>(value.kind)];
}

}  // namespace quartet::jinja
