#include "core/tokenizer/clean_up_spaces.h"

#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace quartet {

std::string CleanUpSpaces(std::string text) {
  static constexpr std::pair<absl::string_view, absl::string_view> kSteps[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& step : kSteps) absl::StrReplaceAll({step}, &text);
  return text;
}

}  // namespace quartet
