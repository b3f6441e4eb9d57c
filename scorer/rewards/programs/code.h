// Rewards for programs: the answer's code against the label's tests.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scorer/rewards/programs/sandbox.h"
#include "scorer/rewards/reward.h"

namespace quartet {

// One test of a program. It passes where the program, given `input`, exits with 0 and writes `output` (lines compared
// without white space at their ends, and without empty lines at the end); with `caller`, where the last line that this
// writes is JSON of `returned`, which the program is not told; with `statements`, where these run to their end.
struct CodeTest {
  std::string input;
  std::string output;
  std::string caller;  // Python, run after the program, in its globals
  nlohmann::json returned;
  std::string statements;  // Python, run where the program cannot see them
};

// The tests of a label, JSON in one of the forms of public data sets:
//   {"inputs": [text...], "outputs": [text...]}: standard input and output;
//   {"inputs": [[argument...]...], "outputs": [value...], "fn_name": name}: calls of a function of the program, or of a
//     method of its class Solution; tuples equal lists;
//   {"asserts": [text...], "setup": text?}, or a list of texts: Python statements, after `setup`.
// INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<std::vector<CodeTest>> ReadCodeTests(std::string_view label);

struct CodeOptions {
  bool share = false;    // the share of tests that pass; else 1 where all do
  SandboxLimits limits;  // of each test
};

// The program is the last code block of the answer that is marked as Python's (```python, ```python3, ```py), else its
// last code block; an answer without one is worth 0. extra_logs: "passed", the share of tests that pass; without
// `share`, those after the first that does not are not run and count as not passed.
std::unique_ptr<RewardFunction> NewCode(const CodeOptions& options);

}  // namespace quartet
