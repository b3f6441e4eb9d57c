// transformers' clean_up_tokenization_spaces.
#pragma once

#include <string>

namespace quartet {

// Takes out the space before . ? ! , n't 'm 's 've 're and those around '.
std::string CleanUpSpaces(std::string text);

}  // namespace quartet
