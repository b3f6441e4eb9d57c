// transformers' clean_up_tokenization_spaces: takes out the space before . ? ! , n't 'm 's 've 're and those around '.
#pragma once

#include <string>
#include <string_view>

namespace quartet {

std::string CleanUpSpaces(std::string text);

// For a text that comes in pieces: what Read and Finish give, end to end, is CleanUpSpaces of the whole, however it is
// cut. One thread.
class SpaceCleaner {
 public:
  // All but what may yet lose a space.
  std::string Read(std::string_view piece);
  // The rest.
  std::string Finish();

 private:
  std::string held_;
};

}  // namespace quartet
