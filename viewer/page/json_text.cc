#include "viewer/page/json_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/errors/shown.h"
#include "nlohmann/json.hpp"

namespace quartet {

void AppendJsonNumber(double value, std::string* out) {
  constexpr double kWhole = 1e15;
  if (!std::isfinite(value)) {
    out->append("null");
  } else if (value == std::floor(value) && std::abs(value) < 1e6) {
    absl::StrAppend(out, static_cast<int64_t>(value));
  } else {
    // Rounded first, so that a whole number has no exponent.
    const std::string text = absl::StrFormat("%.4g", value);
    const double rounded = std::stod(text);
    if (rounded == std::floor(rounded) && std::abs(rounded) < kWhole) {
      absl::StrAppend(out, static_cast<int64_t>(rounded));
    } else {
      out->append(text);
    }
  }
}

void AppendJsonText(std::string_view text, std::string* out) {
  const std::string quoted = OneLineJson(nlohmann::json(std::string(text)));
  constexpr std::string_view kLineEnds = "\xe2\x80\xa8";  // U+2028; of U+2029 the last byte is one more
  for (size_t i = 0; i < quoted.size(); ++i) {
    const char c = quoted[i];
    if (c == '<' || c == '>' || c == '&') {
      absl::StrAppendFormat(out, "\\u%04x", c);
    } else if (quoted.compare(i, 2, kLineEnds.substr(0, 2)) == 0 && i + 2 < quoted.size() &&
               (quoted[i + 2] == '\xa8' || quoted[i + 2] == '\xa9')) {
      out->append(quoted[i + 2] == '\xa8' ? "\\u2028" : "\\u2029");
      i += 2;
    } else {
      out->push_back(c);
    }
  }
}

}  // namespace quartet
