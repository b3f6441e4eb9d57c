// Rewards for programs: the answer's code against the label's tests.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rewards/programs/sandbox.h"
#include "core/rewards/reward.h"

namespace quartet {

// One test of a program. It passes where the program, given `input`, exits with 0 and writes `output` (lines compared
// without white space at their ends, and without empty lines at the end; lines of numbers as numbers, exactly); with
// `caller`, where the last line that this writes is JSON of `returned`, which the program is not told; with
// `statements`, where these run to their end.
struct CodeTest {
  std::string input;
  std::string output;
  std::string function;     // that `caller` calls
  std::string caller;       // Python, run after the program, in its globals
  nlohmann::json returned;  // of ParseExactJson
  std::string statements;   // Python, run where the program cannot see them
};

// The tests of a label, JSON in one of the forms of public data sets:
//   {"inputs": [text...], "outputs": [text...]}: standard input and output; in place of a text a list of its lines will
//     do (APPS);
//   {"inputs": [[argument...]...], "outputs": [value...], "fn_name": name}: calls of a function of the program, or of a
//     method of its class Solution; tuples equal lists; what is expected may stand alone in a list, and an only
//     argument that is an object with whole numbers for keys has these as numbers (both APPS). Or texts: of an input a
//     line of JSON for each argument, of an output the value's JSON (LiveCodeBench);
//   [{"input": ..., "output": ..., "fn_name": name?}...], or that list as "test_cases": the same one by one; the name
//   may
//     also be in "metadata", as "func_name";
//   {"asserts": [text...], "setup": text?}, or a list of texts: Python statements, after `setup`; MBPP's "test_list",
//     "test_setup_code" and "test_imports" are that, too;
//   {"test": text, "entry_point": name?}: HumanEval's statements, which define `check`, and check(name).
// What is null is as if it were not there. INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<std::vector<CodeTest>> ReadCodeTests(std::string_view label);

struct CodeOptions {
  bool share = false;  // the share of tests that pass; else 1 where all do
  SandboxLimits
      limits;  // of each test; all of an answer together take at most ten times as long, and then have not passed
};

// The program is the last code block of the answer that defines a function or class that the tests name, else the last;
// of blocks that are marked as Python's (```python, ```python3, ```py), where there are any. An answer without one is
// worth 0. The program need not import what LiveCodeBench gives to programs (judging/names.py). extra_logs: "passed",
// the share of tests that pass; without `share`, those after the first that does not are not run and count as not
// passed.
std::unique_ptr<RewardFunction> NewCode(const CodeOptions& options);

}  // namespace quartet
