// The front of a program: a table of flags, from which its command line is read and --help and errors come.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quartet {

// Where a flag's value goes. What is pointed to outlives it, and keeps what it has where the flag is not given.
struct FlagTarget {
  std::function<bool(const std::string& text)> store;  // false: not what is allowed
  std::string allowed;                                 // "a whole number of at least 1"
  bool repeated = false;
};

// A flag without a value.
FlagTarget Switch(bool* to);
FlagTarget Text(std::string* to);
// Made absolute, as ResolveUserPath does.
FlagTarget UserPath(std::string* to);
// May be repeated.
FlagTarget Texts(std::vector<std::string>* to);

// Numbers. `To` is the type or an optional of it.
template <typename Number, typename To>
FlagTarget AtLeast(Number least, To* to) {
  constexpr bool kWhole = std::is_integral_v<Number>;
  return {.store =
              [=](const std::string& text) {
                Number value = {};
                if constexpr (kWhole) {
                  if (!absl::SimpleAtoi(text, &value)) return false;
                } else {
                  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return false;
                }
                if (value < least) return false;
                *to = value;
                return true;
              },
          .allowed = absl::StrCat(kWhole ? "a whole number of at least " : "a number of at least ", least)};
}
// A number above 0, which is multiplied by `unit`.
template <typename To>
FlagTarget Positive(To* to, double unit = 1) {
  return {.store =
              [=](const std::string& text) {
                double value = 0;
                if (!absl::SimpleAtod(text, &value) || !(value > 0) || !std::isfinite(value)) return false;
                *to = value * unit;
                return true;
              },
          .allowed = "a number above 0"};
}

// One of these words, for what stands beside it.
template <typename To>
FlagTarget OneOf(const std::vector<std::pair<std::string, To>>& words, To* to) {
  std::string allowed;
  for (const auto& [word, value] : words) absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", word);
  return {.store =
              [=](const std::string& text) {
                for (const auto& [word, value] : words) {
                  if (word == text) return *to = value, true;
                }
                return false;
              },
          .allowed = allowed};
}

struct Flag {
  std::string name;   // without dashes
  std::string value;  // what stands for its value in the help, such as "FILE"; "" of a switch
  std::string help;   // of one line or more
  FlagTarget to;
};

struct CommandLine {
  std::string program;
  // What --help says before the flags and behind them.
  std::string before;
  std::vector<Flag> flags;  // --help and --version are always there, too
  std::string after = {};
  // What is wrong though each flag by itself is right, once all are stored.
  std::function<absl::Status()> check = {};
  // Where the flags' help begins in a line.
  int column = 29;
};

// What is asked for beside or instead of a program's own work.
enum class Asked { kNothing, kHelp, kVersion };

// Stores the values of "--name=value", "--name value" and, for switches, "--name". Help goes before version.
// INVALID_ARGUMENT names an unknown flag, a flag without its value, one that is given twice, or a value and what is
// allowed.
absl::StatusOr<Asked> ParseFlags(int argc, const char* const* argv, const std::vector<Flag>& flags);

std::string HelpText(const CommandLine& line);

// ParseFlags and `check`. The exit code where the program has nothing else to do: 0 after --help and --version; 2 where
// something is wrong, which has been said. From then on exceptions that nobody catches end the program with code 1 and
// a sentence (core/errors/exceptions.h), and a write beyond the process's limit of a file's size (ulimit -f) is an
// error (EFBIG), as on a full disk, and no longer the end of the process.
std::optional<int> ReadCommandLine(int argc, const char* const* argv, const CommandLine& line);

// Reports the error, if it is one, and returns the program's exit code: 0; 130 where a run was stopped by a signal;
// 2 for a wrong configuration or wrong data; 1 for everything else.
int Finish(const std::string& program, const absl::Status& status);

}  // namespace quartet
