// The filter tojson: Python's json.dumps.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/tokenizer/jinja/values/value.h"

namespace quartet::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // none: on one line
  std::string between_items = ", ";
  std::string after_key = ": ";
  bool sort_keys = false;
};

// INVALID_ARGUMENT for what JSON cannot hold.
absl::StatusOr<std::string> JsonText(const Value& value, const JsonStyle& style);

}  // namespace quartet::jinja
