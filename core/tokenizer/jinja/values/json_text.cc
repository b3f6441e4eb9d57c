#include "core/tokenizer/jinja/values/json_text.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet::jinja {
namespace {

std::string Quoted(const std::string& text, bool ensure_ascii) {
  std::string quoted = "\"";
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = CharBytes(text, at);
    const char32_t c = CharAt(text, at);
    constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    const size_t known = c < 0x80 ? kPlain.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      quoted += '\\';
      quoted += kLetters[known];
    } else if (c < 0x20 || (ensure_ascii && c >= 0x7f && c < 0x10000)) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<uint32_t>(c));
    } else if (ensure_ascii && c >= 0x10000) {
      const uint32_t above = static_cast<uint32_t>(c) - 0x10000;
      absl::StrAppendFormat(&quoted, "\\u%04x\\u%04x", 0xd800 + (above >> 10), 0xdc00 + (above & 0x3ff));
    } else {
      quoted.append(text, at, size);
    }
  }
  return quoted + '"';
}

std::string NumberText(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  return FloatText(number);
}

// Of what is written alike as a key and as a value; nothing for others.
std::optional<std::string> ScalarText(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNone:
      return "null";
    case Value::Kind::kBool:
      return value.boolean ? "true" : "false";
    case Value::Kind::kInt:
      return absl::StrCat(value.number);
    case Value::Kind::kFloat:
      return NumberText(value.real);
    default:
      return std::nullopt;
  }
}

// Keys that are no texts become texts.
absl::StatusOr<std::string> JsonKey(const Value& key) {
  if (key.is_text()) return key.text;
  if (std::optional<std::string> text = ScalarText(key)) return *std::move(text);
  return absl::InvalidArgumentError(absl::StrCat("tojson: ", TypeName(key), " cannot be a key"));
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  absl::Status Write(const Value& value, int depth) {
    if (value.is_dict()) return WriteDict(value, depth);
    if (value.is_list() && value.list_kind <= ListKind::kTuple) return WriteList(value, depth);
    if (const std::optional<std::string> text =
            value.is_text() ? Quoted(value.text, style_.ensure_ascii) : ScalarText(value)) {
      text_ += *text;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("tojson: ", value.is_list() ? "what is not a list" : TypeName(value), " is not JSON"));
  }

  std::string Take() { return std::move(text_); }

 private:
  void Line(int depth) {
    if (!style_.indent) return;
    text_ += '\n';
    for (int i = 0; i < depth; ++i) text_ += *style_.indent;
  }

  absl::Status WriteList(const Value& value, int depth) {
    text_ += '[';
    for (size_t i = 0; i < value.list->size(); ++i) {
      if (i > 0) text_ += style_.between_items;
      Line(depth + 1);
      QUARTET_RETURN_IF_ERROR(Write((*value.list)[i], depth + 1));
    }
    if (!value.list->empty()) Line(depth);
    text_ += ']';
    return absl::OkStatus();
  }

  absl::Status WriteDict(const Value& value, int depth) {
    std::vector<std::pair<Value, Value>> items = value.dict->items();
    if (style_.sort_keys) {
      bool comparable = true;
      std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
        const std::optional<bool> less = Less(a.first, b.first);
        comparable = comparable && less.has_value();
        return less.value_or(false);
      });
      if (!comparable) return absl::InvalidArgumentError("tojson: keys of several types cannot be sorted");
    }
    text_ += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text_ += style_.between_items;
      Line(depth + 1);
      QUARTET_ASSIGN_OR_RETURN(const std::string key, JsonKey(items[i].first));
      text_ += Quoted(key, style_.ensure_ascii) + style_.after_key;
      QUARTET_RETURN_IF_ERROR(Write(items[i].second, depth + 1));
    }
    if (!items.empty()) Line(depth);
    text_ += '}';
    return absl::OkStatus();
  }

  const JsonStyle& style_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> JsonText(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  QUARTET_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace quartet::jinja
