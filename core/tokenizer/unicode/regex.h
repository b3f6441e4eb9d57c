// Regular expressions as tokenizer.json writes them (Oniguruma's syntax), run by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// What searches may cost, together: a pattern out of a file can be made to take any time on some texts. One thread.
class RegexBudget {
 public:
  // For texts of so many bytes in all.
  explicit RegexBudget(size_t bytes);

 private:
  friend class Regex;
  uint64_t steps_left_;   // beyond those that each place of a text has
  const double allowed_;  // seconds of the thread's CPU time
  double end_ = 0;        // of them; 0: not begun
  double next_look_ = 0;  // at them, seconds of the machine's clock
};

// Immutable; thread safe.
class Regex {
 public:
  // INVALID_ARGUMENT for what is not well-formed or above 16 KiB, and by name for what the two syntaxes read
  // differently.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  using Range = std::pair<size_t, size_t>;
  // Begin and end byte of the matches that are not empty, from left to right. `text` is valid UTF-8. INVALID_ARGUMENT
  // names the pattern where they take more than `budget` or the memory that a match may have.
  absl::StatusOr<std::vector<Range>> FindAll(std::string_view text, RegexBudget* budget) const;
  // Of the last match, which may be empty, the first group, where the pattern has groups; else all of it. Nothing
  // without a match, or where the group has no part in it. Errors as FindAll.
  absl::StatusOr<std::optional<Range>> FindLast(std::string_view text, RegexBudget* budget) const;

 private:
  struct Impl;
  class Search;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The places of `literal` in `text`, from left to right; none where it is empty.
std::vector<Regex::Range> FindLiteral(std::string_view text, std::string_view literal);

}  // namespace quartet
