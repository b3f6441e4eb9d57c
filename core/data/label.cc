#include "core/data/label.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

constexpr std::string_view kMarker = "####";

std::string_view Strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

absl::StatusOr<std::string> ExtractLabel(std::string_view answer, std::string_view extraction) {
  if (std::find(kLabelExtractions.begin(), kLabelExtractions.end(), extraction) == kLabelExtractions.end()) {
    return absl::InvalidArgumentError(absl::StrCat("label extraction \"", std::string(extraction),
                                                   "\" is not known; allowed are \"none\" and \"after_####\""));
  }
  if (extraction.empty() || extraction == "none") return std::string(answer);
  const size_t at = answer.rfind(kMarker);
  if (at == std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the answer has no \"####\": \"", std::string(answer.substr(0, 80)), "\""));
  }
  const std::string_view label = Strip(answer.substr(at + kMarker.size()));
  if (label.empty()) return absl::InvalidArgumentError("the answer has nothing after its last \"####\"");
  return std::string(label);
}

}  // namespace quartet
