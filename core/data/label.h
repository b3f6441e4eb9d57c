// How the answer of a data set becomes the label that a rule compares with. LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// What ExtractLabel knows.
inline const std::vector<std::string> kLabelExtractions = {"", "none", "after_####"};

// "" and "none": `answer` as it is. "after_####": what follows the last "####", without white space around it (GSM8K's
// form). INVALID_ARGUMENT for another name, and where `answer` has no "####" or nothing after it.
absl::StatusOr<std::string> ExtractLabel(std::string_view answer, std::string_view extraction);

}  // namespace quartet
