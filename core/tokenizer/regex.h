// Regular expressions as tokenizer.json writes them (Oniguruma's syntax), run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// Immutable; thread safe.
class Regex {
 public:
  // INVALID_ARGUMENT for what is not well-formed, and by name for what the two syntaxes read differently.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // Matches `text` itself; empty text never matches.
  static Regex Literal(std::string_view text);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Begin and end byte of the matches that are not empty, from left to right. `text` is valid UTF-8.
  std::vector<std::pair<size_t, size_t>> FindAll(std::string_view text) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet
