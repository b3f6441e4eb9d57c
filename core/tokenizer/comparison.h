// Whether two models read the same ids. LibTorch-free.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace quartet {

// How the tokenizers of two Hugging Face folders differ in what an id stands for or in how a text is cut into ids, such
// as `token 17 is "a", not "b"`; "" where they do not, or where one of the folders has no tokenizer.json. How the files
// are written does not matter, nor what only surrounds a text (post-processor, padding, truncation, chat template) or
// joins its tokens again. Errors name the file.
absl::StatusOr<std::string> DescribeTokenizerDifference(const std::string& folder, const std::string& other);

}  // namespace quartet
