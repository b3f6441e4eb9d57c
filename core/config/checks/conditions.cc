#include "core/config/checks/conditions.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quartet {

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not allowed; ", allowed));
}

absl::Status NoEffect(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, " has no effect: ", why));
}

absl::Status Missing(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is not set; ", what));
}

absl::Status OneOf(absl::string_view field, const std::string& value, const std::vector<std::string>& allowed) {
  for (const std::string& a : allowed) {
    if (value == a) return absl::OkStatus();
  }
  return Bad(field, absl::StrCat("\"", value, "\""),
             absl::StrCat("allowed: \"", absl::StrJoin(allowed, "\", \""), "\""));
}

absl::Status Dtype(absl::string_view field, const std::string& value) {
  if (value == "fp16" || value == "float16" || value == "half") {
    return Bad(field, absl::StrCat("\"", value, "\""),
               "fp16 is not supported, its range is too small for training without loss scaling: use \"bf16\" or "
               "\"fp32\"");
  }
  return OneOf(field, value, {"bf16", "fp32"});
}

absl::Status Stage(absl::string_view field, int value, std::initializer_list<int> allowed) {
  for (int a : allowed) {
    if (value == a) return absl::OkStatus();
  }
  return Bad(field, absl::StrCat(value), absl::StrCat("allowed: ", absl::StrJoin(allowed, ", ")));
}

absl::Status Integer(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Bad(field, absl::StrCat(value),
             high == std::numeric_limits<int64_t>::max() ? absl::StrCat("it must be at least ", low)
                                                         : absl::StrCat("allowed: ", low, " to ", high));
}

absl::Status Real(absl::string_view field, double value, double low, double high, bool open_low) {
  if ((open_low ? value > low : value >= low) && value <= high && std::isfinite(value)) return absl::OkStatus();
  const std::string lower = absl::StrCat(open_low ? "greater than " : "at least ", low);
  return Bad(field, absl::StrCat(value),
             high == kInfinity ? absl::StrCat("it must be ", lower)
                               : absl::StrCat("it must be ", lower, " and at most ", high));
}

absl::Status Below(absl::string_view field, double value, double high) {
  if (value >= 0 && value < high) return absl::OkStatus();
  return Bad(field, absl::StrCat(value), absl::StrCat("it must be at least 0 and below ", high));
}

absl::Status BothLimits(absl::string_view section, absl::string_view sequences) {
  return absl::InvalidArgumentError(
      absl::StrCat(section, ".", sequences, " and ", section, ".max_tokens_per_micro_batch are both set; drop ",
                   section, ".", sequences, " to fill micro-batches up to a number of tokens, or ", section,
                   ".max_tokens_per_micro_batch to have a number of sequences in each"));
}

absl::Status TokenBudget(absl::string_view field, int64_t value, absl::string_view longest_field, int64_t longest) {
  if (value >= longest) return absl::OkStatus();
  return Bad(field, absl::StrCat(value),
             absl::StrCat("a sequence of ", longest_field, " (", longest,
                          ") tokens would fit in no micro-batch: it must be at least that, or 0 to count sequences"));
}

}  // namespace quartet
