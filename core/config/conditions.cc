#include "core/config/conditions.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/field_rules/field_rules.h"
#include "core/network/address.h"

namespace quartet {

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view allowed) {
  return NotAllowed(field, value, allowed);
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

absl::Status Integer(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Bad(field, absl::StrCat(value),
             high == std::numeric_limits<int64_t>::max() ? absl::StrCat("it must be at least ", low)
                                                         : absl::StrCat("allowed: ", low, " to ", high));
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

absl::Status HttpAddress(absl::string_view field, const std::string& listen, absl::string_view section,
                         bool has_api_key, bool has_cert, bool has_key) {
  QUARTET_ASSIGN_OR_RETURN(const HostPort address, Prefixed(std::string(field), ParseHostPort(listen)));
  if (has_cert != has_key) {
    return absl::InvalidArgumentError(absl::StrCat(section, ".", has_cert ? "key_file" : "cert_file",
                                                   " is not set; set both cert_file and key_file, or neither"));
  }
  if (IsLoopback(address.host) || (has_api_key && has_key)) return absl::OkStatus();
  const bool same = field.substr(0, section.size()) == section;
  return Bad(
      field, absl::StrCat("\"", listen, "\""),
      absl::StrCat("an address that other machines can reach needs ", same ? "" : absl::StrCat(section, "'s "),
                   "api_key_file, cert_file and key_file, of which ",
                   has_api_key ? "cert_file and key_file are" : "api_key_file is", " not set; or listen on 127.0.0.1"));
}

}  // namespace quartet
