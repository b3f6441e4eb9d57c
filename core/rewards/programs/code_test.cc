#include "core/rewards/programs/code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Long, as machines that run tests are busy; short where a test waits for it.
constexpr absl::Duration kLong = absl::Seconds(120);

absl::StatusOr<Reward> Score(const std::string& program, const std::string& label, bool share = false,
                             absl::Duration timeout = kLong) {
  const auto code = NewCode({.share = share, .limits = {.timeout = timeout, .memory_bytes = 512 << 20}});
  Answer answer;
  answer.response = absl::StrCat("So I write:\n```python\n", program, "\n```\nDone.");
  answer.label = label;
  const Answer* const one[] = {&answer};
  return code->Score(one, {}).at(0);
}

float Value(const std::string& program, const std::string& label, bool share = false, absl::Duration timeout = kLong) {
  const auto reward = Score(program, label, share, timeout);
  EXPECT_TRUE(reward.ok()) << reward.status();
  return reward.ok() ? reward->value : -1;
}

constexpr char kSum[] = R"({"inputs": ["1 2\n", "5 -7\n"], "outputs": ["3\n", "-2"]})";

TEST(CodeRewards, RunProgramsOnInputs) {
  EXPECT_EQ(Value("a, b = map(int, input().split())\nprint(a + b, ' ')", kSum), 1);
  EXPECT_EQ(Value("import sys\nprint(sum(map(int, open('/dev/stdin').read().split())))", kSum), 1);
  EXPECT_EQ(Value("print(3)", kSum), 0);
  EXPECT_EQ(Value("print(3)", kSum, /*share=*/true), 0.5);
  EXPECT_EQ(Value("def main(): print(sum(map(int, input().split())))\nif __name__ == '__main__': main()", kSum), 1);
  EXPECT_EQ(Value("print(3\n", kSum), 0);
  EXPECT_EQ(Value("print(sum(map(int, input().split())))\nraise SystemExit(1)", kSum), 0);
  EXPECT_EQ(Value("print(sum(map(int, input().split())))\nexit()", kSum), 1);
}

TEST(CodeRewards, CallFunctions) {
  const char* calls = R"({"inputs": [[1, 2], [[1], [2]]], "outputs": [3, [1, 2]], "fn_name": "add"})";
  EXPECT_EQ(Value("def add(a, b): return a + b", calls), 1);
  EXPECT_EQ(Value("class Solution:\n  def add(self, a, b): return a + b", calls), 1);
  EXPECT_EQ(Value("def add(a, b): return tuple(a + b) if a == [1] else a + b", calls), 1);
  EXPECT_EQ(Value("def add(a, b): return 3", calls, true), 0.5);
  EXPECT_EQ(Value("def sub(a, b): return 3", calls), 0);
}

TEST(CodeRewards, CompareWhatIsReturnedAsPythonDoes) {
  const auto returns = [](const std::string& value, const std::string& expected) {
    return Value("def f(): return " + value, R"({"inputs": [[]], "fn_name": "f", "outputs": [)" + expected + "]}");
  };
  EXPECT_EQ(returns("1.0", "1"), 1);
  EXPECT_EQ(returns("1 == 1", "1"), 1);
  EXPECT_EQ(returns("{'a': (1, 2)}", R"({"a": [1, 2]})"), 1);
  EXPECT_EQ(returns("{'a': 1, 'b': 2}", R"({"a": 1})"), 0);
  EXPECT_EQ(returns("[1, 2]", "[[1, 2]]"), 1) << "some data sets have it in a list";
  EXPECT_EQ(returns("'1'", "1"), 0);
  EXPECT_EQ(returns("None", "null"), 1);
  EXPECT_EQ(returns("'two\\nlines'", R"("two\nlines")"), 1);
  EXPECT_EQ(returns("float('nan')", "0"), 0);
  EXPECT_EQ(returns("object()", "0"), 0);
  EXPECT_EQ(returns("print('0', end='')", "0"), 0) << "what is printed is not returned";
}

TEST(CodeRewards, KeepWholeNumbersExact) {
  const std::string fib = "def f(n):\n  a, b = 0, 1\n  for _ in range(n): a, b = b, a + b\n  return a";
  const char* of_100 = R"({"inputs": [[100]], "outputs": [354224848179261915075], "fn_name": "f"})";
  EXPECT_EQ(Value(fib, of_100), 1);
  EXPECT_EQ(Value(fib + " + 12345", of_100), 0);
  EXPECT_EQ(Value(fib + " + 0.0", of_100), 0) << "which is 354224848179261931520.0";
  const auto given = [](const std::string& number) {
    return Value("def f(x): return [x, isinstance(x, int)]",
                 R"({"inputs": [[)" + number + R"(]], "outputs": [[)" + number + R"(, true]], "fn_name": "f"})");
  };
  EXPECT_EQ(given("100000000000000000000000"), 1);
  EXPECT_EQ(given("-100000000000000000000001"), 1);
  EXPECT_EQ(given("9007199254740993"), 1);
  const auto returns = [](const std::string& value, const std::string& expected) {
    return Value("def f(): return " + value, R"({"inputs": [[]], "fn_name": "f", "outputs": [)" + expected + "]}");
  };
  EXPECT_EQ(returns("9007199254740992.0", "9007199254740993"), 0);
  EXPECT_EQ(returns("float(2**70)", "1180591620717411303424"), 1) << "as Python compares them";
  EXPECT_EQ(returns("-0.0", "0"), 1);
  EXPECT_EQ(returns("10**300", "1" + std::string(300, '0')), 1);
  EXPECT_EQ(returns("1e23", "1e23"), 1);
}

TEST(CodeRewards, TakeTheFormsOfPublicDataSets) {
  const std::string add = "def add(a, b): return a + b", sum = "a, b = map(int, input().split())\nprint(a + b)",
                    lines = "print(int(input()) + int(input()))\nprint('end')";
  const struct {
    const char* form;
    std::string program, label;
  } cases[] = {
      {"LiveCodeBench's calls", add,
       R"({"inputs": ["1\n2", "[1]\n[2]\n"], "outputs": ["3", "[1, 2]"], "fn_name": "add"})"},
      {"LiveCodeBench's calls, named in metadata", add,
       R"({"inputs": ["1\n2"], "outputs": ["3"], "metadata": {"func_name": "add"}})"},
      {"LiveCodeBench's metadata as it is in its files", add,
       R"({"inputs": ["1\n2"], "outputs": ["3"], "metadata": "{\"func_name\": \"add\"}"})"},
      {"calls under LiveCodeBench's name", add, R"({"inputs": ["1\n2"], "outputs": ["3"], "func_name": "add"})"},
      {"calls under HumanEval's name", add, R"({"inputs": ["1\n2"], "outputs": ["3"], "entry_point": "add"})"},
      {"tests of one function", add, R"({"test_cases": [{"input": "1\n2", "output": "3"}], "fn_name": "add"})"},
      {"LiveCodeBench's metadata of output", sum, R"({"inputs": ["1 2"], "outputs": ["3"], "metadata": "{}"})"},
      {"metadata that are a text", sum, R"({"inputs": ["1 2"], "outputs": ["3"], "metadata": "from a contest {"})"},
      {"metadata that are JSON of something else", sum,
       R"({"inputs": ["1 2"], "outputs": ["3"], "metadata": "[\"easy\"]"})"},
      {"metadata that are a text, beside a name", add,
       R"([{"input": "1\n2", "output": "3", "fn_name": "add", "metadata": "easy"}])"},
      {"LiveCodeBench's tests of calls", add,
       R"([{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}])"},
      {"LiveCodeBench's tests of output", sum, R"([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])"},
      {"PRIME's tests", sum,
       R"({"language": "python", "test_cases": [{"type": "stdin_stdout", "input": "1 2", "output": "3", "fn_name": null}]})"},
      {"PRIME's tests of calls", add,
       R"({"test_cases": [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]})"},
      {"APPS' lines", lines, R"({"inputs": [["1", "2"]], "outputs": [["3", "end"]], "fn_name": null})"},
      {"APPS' values in lists", add,
       R"({"inputs": [[1, 2], [[1], [2]]], "outputs": [[3], [[1, 2]]], "fn_name": "add"})"},
      {"APPS' dictionaries", "def f(x): return {k + 1: v for k, v in x.items()}",
       R"({"inputs": [[{"1": 2}]], "outputs": [{"2": 2}], "fn_name": "f"})"},
      {"dictionaries of texts", "def f(x): return x['a']",
       R"({"inputs": [[{"a": 2}]], "outputs": [2], "fn_name": "f"})"},
      {"MBPP", add, R"j({"test_list": ["assert add(1, 2) == 3"], "test_setup_code": "", "challenge_test_list": []})j"},
      {"sanitized MBPP", add,
       R"j({"test_list": ["assert math.sqrt(add(1, 3)) == 2"], "test_imports": ["import math"], "test_setup_code": null})j"},
      {"HumanEval", add,
       R"j({"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"})j"},
      {"no setup", add, R"j({"setup": null, "asserts": ["assert add(1, 2) == 3"]})j"},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(Value(one.program, one.label), 1) << one.form;
    EXPECT_EQ(Value("def add(a, b): return 0\ndef f(x): return 0\nprint(0)", one.label), 0) << one.form;
  }
}

TEST(CodeRewards, CompareLinesOfNumbersAsNumbers) {
  const auto writes = [](const std::string& written, const std::string& expected) {
    return Value("print(" + nlohmann::json(written).dump() + ")",
                 nlohmann::json{{"inputs", {""}}, {"outputs", {expected}}}.dump());
  };
  EXPECT_EQ(writes("1.0 2\n3", "1 2.00\n3.0\n"), 1);
  EXPECT_EQ(writes("-0.0 +7 1e3 0.50", "0 7 1000 .5"), 1);
  EXPECT_EQ(writes("1  2", "1 2"), 1);
  EXPECT_EQ(writes("50000000000000000.0", "50000000000000001"), 0);
  EXPECT_EQ(writes("0.1000001", "0.1"), 0);
  EXPECT_EQ(writes("1 2", "1\n2"), 0);
  EXPECT_EQ(writes("1 2 3", "1 2"), 0);
  EXPECT_EQ(writes("x 1.0", "x 1"), 0) << "no line of numbers";
  EXPECT_EQ(writes("1e1000000000000", "1e1000000000001"), 0);
  EXPECT_EQ(writes("", ""), 1);
  EXPECT_EQ(writes(". - 1", ". - 1.0"), 0);
}

TEST(CodeRewards, AreOfTheLastBlockThatDefinesWhatIsAskedFor) {
  const auto value = [](const std::string& response, const std::string& label) {
    Answer answer;
    answer.response = response;
    answer.label = label;
    const Answer* const one[] = {&answer};
    return NewCode({.limits = {.timeout = kLong}})->Score(one, {}).at(0)->value;
  };
  const std::string use = "\nUse it so:\n```python\nx = add(1, 2)\nprint(x)\n```\n";
  const char* calls = R"({"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"})";
  const char* asserts = R"j(["assert add(1, 2) == 3"])j";
  for (const char* label : {calls, asserts}) {
    EXPECT_EQ(value("```python\ndef add(a, b): return a + b\n```" + use, label), 1);
    EXPECT_EQ(value("```\nadd = lambda a, b: a + b\n```\n```\nprint(add(1, 2))\n```", label), 1);
    EXPECT_EQ(
        value("```python\ndef add(a, b): return a + b\n```\nBetter:\n```python\ndef add(a, b): return 0\n```" + use,
              label),
        0);
    EXPECT_EQ(value("```python\nadd(1, 2)\n```", label), 0);
  }
  EXPECT_EQ(value("```python\nclass Solution:\n  def add(self, a, b): return a + b\n```" + use, calls), 1);
  EXPECT_EQ(value("```python\ndef read(): return input()\n```\n```python\nprint(3)\n```",
                  R"({"inputs": [""], "outputs": ["3"]})"),
            1);
}

TEST(CodeRewards, GiveProgramsTheImportsThatTheyTakeForGranted) {
  EXPECT_EQ(Value("from __future__ import annotations\ndef main() -> List[int]:\n  print(gcd(4, 6), math.floor(2.5), "
                  "Counter('aab')['a'], *accumulate([1, 2]), datetime.date(2024, 1, 2).year)\nmain()",
                  R"({"inputs": [""], "outputs": ["2 2 2 1 3 2024"]})"),
            1);
  EXPECT_EQ(Value("class Solution:\n  def f(self, x: Optional[List[int]]) -> Dict[str, int]:\n    return sorted(x)[0]",
                  R"({"inputs": [[[3, 2]]], "outputs": [2], "fn_name": "f"})"),
            1);
  EXPECT_EQ(Value("pass", R"({"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"})"), 0)
      << "operator.add is none of it";
  EXPECT_EQ(Value("print('free_names' in globals(), 'given' in dir(), __name__)",
                  R"({"inputs": [""], "outputs": ["False False __main__"]})"),
            1);
}

TEST(CodeRewards, DoNotTellWhatAFunctionOughtToReturn) {
  const char* secret = R"({"inputs": [[]], "outputs": ["zebra"], "fn_name": "f"})";
  EXPECT_EQ(Value(R"(
def f():
    import sys
    seen = open("/run/caller.py").read() + open("/run/answer.py").read()
    frame = sys._getframe()
    while frame:
        seen += str(frame.f_globals) + str(frame.f_locals)
        frame = frame.f_back
    word = "ze" + "bra"
    return word if word in seen else "not found")",
                  secret),
            0);
  EXPECT_EQ(Value("def f(): return 'zebra'", secret), 1);
}

TEST(CodeRewards, TestFunctionsWithoutRunningTheirProgram) {
  EXPECT_EQ(Value("def f(x): return x\nif __name__ == '__main__':\n  print(f(input()))",
                  R"({"inputs": [[1]], "outputs": [1], "fn_name": "f"})"),
            1);
}

TEST(CodeRewards, RunAsserts) {
  const char* asserts =
      R"j({"setup": "import math", "asserts": ["assert f(4) == math.isqrt(16)", "assert f(0) == 0"]})j";
  EXPECT_EQ(Value("def f(x): return x", asserts), 1);
  EXPECT_EQ(Value("def f(x): return x + 1", asserts), 0);
  EXPECT_EQ(Value("def f(x): return x", R"j(["assert f(1) == 1"])j"), 1);
}

TEST(CodeRewards, RunAssertsOnWhateverFunctionsTakeAndReturn) {
  const auto passes = [](const std::string& program, const std::string& test, const std::string& setup = "") {
    return Value(program, nlohmann::json{{"setup", setup}, {"asserts", {test}}}.dump()) == 1;
  };
  EXPECT_TRUE(passes("def f(x): return (x, [x], {x}, {x: b'a'}, 1j, 10**400, None, 'é', float('inf'))",
                     "assert f(3) == (3, [3], {3}, {3: b'a'}, 1j, 10**400, None, 'é', float('inf'))"));
  EXPECT_FALSE(passes("def f(x): return [x]", "assert f(3) == (3,)")) << "a list is no tuple";
  EXPECT_TRUE(passes("def f(x):\n  x.sort()\n  x[0] = -1",
                     "a = [3, 1, 2]\nb = a\nassert f(a) is None\nassert b == [-1, 2, 3]"));
  EXPECT_TRUE(passes("def f(g, x): return [g(y) for y in x]", "assert f(lambda y: y * 2, (1, 2)) == [2, 4]"));
  EXPECT_TRUE(passes("def f(n):\n  yield from range(n)", "assert list(f(3)) == [0, 1, 2]\nassert sum(f(4)) == 6"));
  EXPECT_TRUE(passes("def f(a, *, b=1): return a - b", "assert f(5, b=2) == 3\nassert list(map(f, [1, 2])) == [0, 1]"));
  EXPECT_TRUE(passes("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(2), 2 ** 0.5)"));
  EXPECT_TRUE(passes("def f(x):\n  raise ValueError('no')",
                     "try:\n  f(1)\nexcept ValueError as e:\n  assert str(e) == 'no'\nelse:\n  assert False"));
  EXPECT_TRUE(passes("class Bad(KeyError): pass\ndef f(x):\n  raise Bad(x)",
                     "try:\n  f(1)\nexcept Bad:\n  pass\nelse:\n  assert False"));
  EXPECT_TRUE(passes("from fractions import Fraction\ndef f(): return Fraction(1, 3)",
                     "assert f() * 3 == 1 and f().denominator == 3"));
  constexpr char kTree[] =
      "class Node:\n  def __init__(self, v): self.v, self.left = v, None\n"
      "  def __eq__(self, o): return self.v == o.v\n  def __lt__(self, o): return self.v < o.v\n"
      "  def __add__(self, o): return Node(self.v + o.v)\n  def __len__(self): return self.v\n"
      "def height(n): return 0 if n is None else 1 + height(n.left)";
  EXPECT_TRUE(passes(kTree, "assert height(root) == 2 and root.left.v == 4", "root = Node(3)\nroot.left = Node(4)"));
  EXPECT_TRUE(passes(kTree, "assert Node(3) == Node(3) and Node(2) < Node(3) and (Node(2) + Node(3)).v == 5"));
  EXPECT_TRUE(passes(kTree, "assert isinstance(Node(1), Node) and not isinstance(3, Node) and len(Node(7)) == 7"));
  EXPECT_TRUE(
      passes("def add(a, b): return a + b", "check(add)", "def check(candidate):\n  assert candidate(1, 2) == 3"));
  EXPECT_FALSE(passes("def add(a, b): return a", "check(add)", "def check(candidate):\n  assert candidate(1, 2) == 3"));
  EXPECT_TRUE(passes("class Solution:\n  def add(self, a, b): return a + b", "assert Solution().add(1, 2) == 3"));
  EXPECT_TRUE(passes("print('hello')\ndef f():\n  print('more')\n  return 1", "assert f() == 1"));
}

// Of a file of testdata/: an answer's program, and the statements that it is tested with.
struct TestedAnswer {
  std::string title, program, statements;
};

std::vector<TestedAnswer> ReadAnswers(const std::string& file) {
  std::ifstream in("core/rewards/programs/testdata/" + file);
  std::vector<TestedAnswer> answers;
  std::string line, *part = nullptr;
  while (std::getline(in, line)) {
    if (line.starts_with("=== ")) {
      answers.push_back({.title = line.substr(4)});
      part = &answers.back().program;
    } else if (line == "---") {
      part = &answers.back().statements;
    } else if (part != nullptr) {
      absl::StrAppend(part, line, "\n");
    }
  }
  return answers;
}

void ExpectAll(const std::string& file, float worth) {
  const std::vector<TestedAnswer> answers = ReadAnswers(file);
  EXPECT_GT(answers.size(), 20);
  for (const TestedAnswer& answer : answers) {
    EXPECT_EQ(Value(answer.program, nlohmann::json::array({answer.statements}).dump()), worth) << answer.title;
  }
}

TEST(CodeRewards, AreNotEarnedByObjectsAndNamesThatThePlainValuesAreNot) { ExpectAll("wrong_answers.txt", 0); }

TEST(CodeRewards, AreEarnedByRightAnswersOfAllForms) { ExpectAll("right_answers.txt", 1); }

TEST(CodeRewards, AreNotEarnedByElementsWithoutEnd) {
  const char* asserts = R"j(["assert 7 in f(2)"])j";
  for (const char* program :
       {"import itertools\ndef f(x): return itertools.count()",
        "class All:\n  n = 0\n  def __iter__(self): return self\n  def __next__(self):\n    All.n += 1\n    return "
        "All.n\n"
        "def f(x): return All()",
        "class All:\n  def __getitem__(self, i): return i\n  def __contains__(self, x): return True\n"
        "  def __len__(self): return 1\ndef f(x): return All()"}) {
    EXPECT_EQ(Value(program, asserts, /*share=*/false, absl::Seconds(3)), 0) << program;
  }
  EXPECT_EQ(Value("def f(x): return (i for i in range(8))", asserts), 1);
  EXPECT_EQ(Value("def f(x): return (i for i in range(7))", asserts), 0);
}

TEST(CodeRewards, SayWhichModuleATestNeedsThatIsNotThere) {
  const auto imports = [](const std::string& module) {
    return nlohmann::json{{"setup", "import " + module}, {"asserts", {"assert f(1) == 1"}}}.dump();
  };
  const absl::Status status = Score("def f(x): return x", imports("no_such_module.part")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs the module no_such_module.part"));
  EXPECT_EQ(Value("def f(x): raise ModuleNotFoundError('no_such_module')", imports("math")), 0);
  EXPECT_EQ(Value("def f(x): return x",
                  R"j(["try:\n  import no_such_module\nexcept ImportError:\n  pass\nassert f(1) == 1"])j"),
            1);
  const auto numpy = Score("def f(x): return [x / 3]", R"j(["assert np.allclose(f(2.0), 0.6666666667)"])j");
  if (Value("import numpy\nprint(1)", R"({"inputs": [""], "outputs": ["1"]})") == 1) {
    ASSERT_TRUE(numpy.ok()) << numpy.status();
    EXPECT_EQ(numpy->value, 1);
  } else {
    EXPECT_THAT(std::string(numpy.status().message()), HasSubstr("needs the module numpy"));
  }
}

TEST(CodeRewards, AreNotForgedByObjectsThatTheJudgeIsAskedToMake) {
  const std::string forger = R"(
import __main__
def add(a, b):
    return __main__.link.ask('call', type, {}, 'X', (), {'__eq__': bool})())";
  EXPECT_EQ(Value(forger, R"j(["assert add(1, 2) == 3", "assert add(5, 6) == 11"])j"), 0);
  EXPECT_EQ(Value("def add(a, b): return a + b", R"j(["assert add(1, 2) == 3", "assert add(5, 6) == 11"])j"), 1);
}

TEST(CodeRewards, OpenNoSettingOfTheMachineAndNoSockets) {
  const char* refused = R"({"inputs": [""], "outputs": ["refused"]})";
  const auto tries = [&](const std::string& what) {
    return Value("import os, socket\ntry:\n  " + what + "\nexcept OSError:\n  print('refused')", refused);
  };
  EXPECT_EQ(tries("os.open('/proc/sys/vm/swappiness', os.O_WRONLY)"), 1);
  EXPECT_EQ(tries("os.open('/proc/sys/kernel/hostname', os.O_WRONLY)"), 1);
  EXPECT_EQ(tries("socket.socket()"), 1);
  EXPECT_EQ(tries("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)"), 1);
  EXPECT_EQ(tries("socket.socket(socket.AF_UNIX)"), 1);
  EXPECT_EQ(tries("socket.socketpair()"), 0) << "between threads of the program";
}

TEST(CodeRewards, AreNotForgedByProgramsThatLookForTheirTests) {
  const char* asserts = R"j(["assert f('zebra') == 'crossing'"])j";
  EXPECT_EQ(Value("def f(x): return 'crossing'", asserts), 1);
  // An answer that claims to equal anything.
  EXPECT_EQ(
      Value("class Any:\n  def __eq__(self, other): return True\n  __hash__ = None\ndef f(x): return Any()", asserts),
      0);
  EXPECT_EQ(Value("class Any(str):\n  def __eq__(self, other): return True\ndef f(x): return Any('a')", asserts), 0);
  // One that reads all that there is to read.
  EXPECT_EQ(Value(R"(
import gc, glob, sys
seen = ""
for path in glob.glob("/run/*") + glob.glob("/proc/self/fd/*") + ["/proc/self/cmdline", "/proc/self/environ"]:
    try: seen += open(path, errors="replace").read(100000) if "/fd/" not in path else ""
    except OSError: pass
for frame in sys._current_frames().values():
    while frame:
        seen += str(frame.f_globals) + str(frame.f_locals)
        frame = frame.f_back
seen += "".join(x for x in gc.get_objects() if isinstance(x, str))
word = "cross" + "ing"
def f(x): return word if "zeb" + "ra" in seen and word in seen else "not found")",
                  asserts),
            0);
  // Some that say that it has passed.
  for (const char* said : {R"("passed")", R"({"value": "crossing"})", "passed"}) {
    EXPECT_EQ(Value(absl::StrCat("import os, sys\nfor fd in range(64):\n  try: os.write(fd, b'", said,
                                 "\\n')\n  except OSError: pass\nos._exit(0)"),
                    asserts),
              0)
        << said;
  }
  EXPECT_EQ(Value("def f(x): raise SystemExit(0)", asserts), 0);
  EXPECT_EQ(
      Value("import builtins\nbuiltins.AssertionError = builtins.Exception = ZeroDivisionError\ndef f(x): return 1",
            asserts),
      0);
  // One that takes the place of what tests compare with.
  constexpr char kClose[] = R"j(["assert math.isclose(f(2), 4) and sorted([f(1)]) == [2]"])j";
  EXPECT_EQ(Value("class math:\n  isclose = lambda *a: True\ndef sorted(x): return [2]\ndef f(x): return 7", kClose),
            0);
  EXPECT_EQ(Value("def f(x): return 2 * x", kClose), 1);
  // One that leaves the protocol, or has objects of the other side do something.
  for (const char* reply :
       {"[]", "{}", "{\"do\": \"call\", \"with\": []}", "{\"value\": {\"yours\": 0}}", "{\"value\": {\"array\": [1]}}",
        "{\"value\": {\"module\": \"os\"}}", "x", "{\"raised\": 1}"}) {
    EXPECT_EQ(Value(absl::StrCat("def f(x):\n  import os\n  for fd in range(3, 9):\n    try: os.write(fd, b'", reply,
                                 "\\n')\n    except OSError: pass\n  return 1"),
                    asserts),
              0)
        << reply;
  }
}

TEST(CodeRewards, RefuseAssertsThatAreNoPython) {
  const absl::Status status = Score("def f(x): return x", R"j(["assert f(1 == 1"])j").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("assert f(1 == 1"), HasSubstr("never closed")));
}

TEST(CodeRewards, RefuseAssertsThatCallNothingOfTheProgram) {
  for (const char* label :
       {R"j({"test": "def check(candidate):\n  assert candidate(1) == 1"})j", R"j(["assert 1 == 1"])j",
        R"j(["import unittest\nclass Test(unittest.TestCase):\n  def test(self): self.assertEqual(f(1), 1)"])j"}) {
    const absl::Status status = Score("def f(x): return 2", label).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << label << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("calls nothing of the program's"));
  }
  EXPECT_EQ(Value("x = 3", R"j(["assert x == 3"])j"), 1);
  EXPECT_EQ(Value("x = 2", R"j(["assert x == 3"])j"), 0);
  EXPECT_EQ(Value("def g(): pass", R"j(["try:\n  f(1)\nexcept NameError:\n  pass\nelse:\n  assert False"])j"), 1);
}

TEST(CodeRewards, RefuseStatementsOfWhichNoneCanFail) {
  for (const char* label : {R"j(["add(1, 2) == 3"])j", R"j([""])j", R"j(["print(add(1, 2))"])j",
                            R"j(["assert (add(1, 2) == 3, 'a sum')"])j", R"j(["add(1, 2)\nassert True"])j",
                            R"j({"setup": "def check(f): return f(1, 2) == 3", "asserts": ["check(add)"]})j"}) {
    const absl::Status status = Score("def add(a, b): return a - b", label).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << label << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has no tests of a program: nothing in it can fail"));
  }
  for (const char* label :
       {R"j(["if add(1, 2) != 3: raise ValueError"])j", R"j(["import sys\nif add(1, 2) != 3: sys.exit(1)"])j",
        R"j(["import unittest\nunittest.TestCase().assertEqual(add(1, 2), 3)"])j"}) {
    EXPECT_EQ(Value("def add(a, b): return a + b", label), 1) << label;
    EXPECT_EQ(Value("def add(a, b): return a - b", label), 0) << label;
  }
}

TEST(CodeRewards, AreNotEarnedByEndingBeforeTheTests) {
  const char* asserts = R"j(["assert f(4) == 16"])j";
  EXPECT_EQ(Value("import sys\nsys.exit(0)", asserts), 0);
  EXPECT_EQ(Value("import os\nos._exit(0)", asserts), 0);
  EXPECT_EQ(Value("def f(x):\n  import os\n  os._exit(0)", asserts), 0);
}

TEST(CodeRewards, GiveNoNetworkAndNoFilesAndNoProcesses) {
  const char* nothing = R"({"inputs": [""], "outputs": ["refused"]})";
  const auto refused = [&](const std::string& what) {
    return Value(absl::StrCat("try:\n  ", what, "\nexcept OSError:\n  print('refused')"), nothing);
  };
  EXPECT_EQ(refused("import socket; socket.create_connection(('127.0.0.1', 22), 1)"), 1);
  EXPECT_EQ(refused("import socket; socket.create_connection(('1.1.1.1', 53), 1)"), 1);
  EXPECT_EQ(refused("open('/etc/passwd')"), 1);
  EXPECT_EQ(refused("open('/usr/x', 'w')"), 1);
  EXPECT_EQ(refused("open('/x', 'w')"), 1);
  EXPECT_EQ(refused("open('/run/answer.py', 'w')"), 1);
  EXPECT_EQ(refused("open('/dev/x', 'w')"), 1);
  EXPECT_EQ(refused("open('/dev/shm/x', 'w')"), 1);
  EXPECT_EQ(refused("import os; os.fork()"), 1);
  EXPECT_EQ(refused("import subprocess; subprocess.run(['/usr/bin/true'])"), 1);
  EXPECT_EQ(refused("import os; os.kill(1, 9); os.listdir('/proc/3')"), 1);
  EXPECT_EQ(refused("import os; f = [open('/dev/null') for i in range(100)]"), 1);
  EXPECT_EQ(refused("open('/tmp/x', 'wb').write(b'x' * 20000000)"), 1);
  EXPECT_EQ(refused("import os; os.chroot('/tmp')"), 1);
  EXPECT_EQ(refused("import os; os.setuid(0)"), 1);
  EXPECT_EQ(refused("import os; os.mknod('/tmp/x', 0o60644, os.makedev(8, 0))"), 1);
  EXPECT_EQ(refused("import os; os.memfd_create('x')"), 1);
  EXPECT_EQ(refused("import os; os.posix_spawn('/usr/bin/true', ['true'], {})"), 1);
  // unshare(CLONE_NEWUSER), mount, ptrace(TRACEME), keyctl, io_uring_setup, bpf, perf_event_open, memfd_secret, shmget
  for (const char* call : {"272, 0x10000000", "165, b'x', b'/tmp', b'tmpfs', 0, 0", "101, 0, 0, 0, 0", "250, 0, 0",
                           "425, 8, 0", "321, 0, 0, 0", "298, 0, 0, 0, 0, 0", "447, 0", "29, 0, 4096, 0o1600"}) {
#if defined(__x86_64__)
    EXPECT_EQ(refused(absl::StrCat("import ctypes, os; c = ctypes.CDLL(None, use_errno=True)\n  if c.syscall(", call,
                                   ") < 0: raise OSError(ctypes.get_errno(), 'refused')")),
              1)
        << call;
#endif
  }
  EXPECT_EQ(
      Value("import os\nopen('x', 'w').write('refused')\nprint(open('/tmp/x').read())\nassert len(os.environ) < 12",
            nothing),
      1);
  EXPECT_EQ(
      Value("import threading\nt = threading.Thread(target=lambda: print('refused'))\nt.start(); t.join()", nothing),
      1);
}

TEST(CodeRewards, SeeNothingOfTheScorersEnvironment) {
  setenv("QUARTET_TEST_SECRET", "hidden", 1);
  EXPECT_EQ(Value(R"(
import glob
seen = b""
for path in glob.glob("/proc/*/environ"):
    try: seen += open(path, "rb").read()
    except OSError: pass
print("seen" if b"hid" + b"den" in seen else "refused"))",
                  R"({"inputs": [""], "outputs": ["refused"]})"),
            1);
  unsetenv("QUARTET_TEST_SECRET");
}

TEST(CodeRewards, BoundMemoryAndTimeAndOutput) {
  const char* nothing = R"({"inputs": [""], "outputs": [""]})";
  EXPECT_EQ(Value("x = bytearray(1 << 30)", nothing), 0);
  EXPECT_EQ(Value("while True: print('x' * 1000)", nothing), 0);
  EXPECT_EQ(Value("import time\nwhile True: time.sleep(1)", nothing, false, absl::Seconds(1)), 0);
  EXPECT_EQ(Value("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass", nothing, false,
                  absl::Seconds(1)),
            0);
}

TEST(CodeRewards, BoundTheTimeOfAllTestsOfAnAnswer) {
  nlohmann::json inputs, outputs, asserts;
  for (int i = 0; i < 11; ++i) {
    // For the last one no time is left, though it would pass.
    const std::string input = i < 10 ? "sleep" : "go";
    inputs.push_back(input);
    outputs.push_back("done");
    asserts.push_back("assert f('" + input + "')");
  }
  constexpr char kProgram[] =
      "import time\ndef f(x):\n  while x == 'sleep': time.sleep(1)\n  return True\n"
      "if __name__ == '__main__' and f(input()): print('done')";
  const nlohmann::json streams = {{"inputs", inputs}, {"outputs", outputs}};
  for (const std::string& label : {streams.dump(), asserts.dump()}) {
    EXPECT_EQ(Value(kProgram, label, /*share=*/true, absl::Milliseconds(400)), 0) << label;
  }
}

// Of 512 MiB, and 16 MiB in /tmp.
TEST(CodeRewards, BoundMemoryByWhateverWayItIsTaken) {
  EXPECT_EQ(Value(R"(
import mmap, os, socket, threading
got, kept = 0, []
def grow(take):
    global got
    try:
        while True: got += take()
    except (OSError, MemoryError, RuntimeError, ValueError): pass
def fill(pair):
    kept.append(pair)
    os.set_blocking(pair[1], False)
    sum = 0
    try:
        while True: sum += os.write(pair[1], b"x" * 65536)
    except BlockingIOError: return sum
def sockets():
    a, b = socket.socketpair()
    kept.append((a, b))
    return fill((a.fileno(), b.fileno()))
files = iter(range(1 << 30))
def file():
    with open(f"/tmp/{next(files)}", "wb") as f: return f.write(b"x" * (1 << 20))
def shared():
    m = mmap.mmap(-1, 8 << 20)
    kept.append(m)
    return m.write(b"x" * (8 << 20))
def own():
    kept.append(bytearray(b"x") * (8 << 20))
    return 8 << 20
stop = threading.Event()
def thread():
    threading.Thread(target=stop.wait, daemon=True).start()
    return 0
for take in (lambda: fill(os.pipe()), sockets, file, shared, own, thread): grow(take)
threads = threading.active_count()
kept.clear()
stop.set()
print("bounded" if 256 << 20 < got < 600 << 20 and threads < 200 else f"{got} {threads}"))",
                  R"({"inputs": [""], "outputs": ["bounded"]})"),
            1);
}

TEST(CodeRewards, AreNothingForAnAnswerWithoutCode) {
  const auto code = NewCode({});
  Answer answer;
  answer.response = "I cannot.";
  answer.label = kSum;
  const Answer* const one[] = {&answer};
  const auto reward = code->Score(one, {}).at(0);
  ASSERT_TRUE(reward.ok()) << reward.status();
  EXPECT_EQ(reward->value, 0);
}

TEST(CodeRewards, RefuseLabelsWithoutTests) {
  for (const char* label :
       {"", "72", "{}", "[]", "[1]", R"({"inputs": ["1"], "outputs": []})", R"({"inputs": [1], "outputs": [2]})",
        R"({"inputs": [1], "outputs": [2], "fn_name": "f"})", R"([{"input": "1"}])",
        R"([{"input": "1", "output": "1", "testtype": "functional"}])",
        R"({"inputs": ["1"], "outputs": ["1"], "testtype": "functional"})",
        R"({"inputs": ["[1"], "outputs": ["1"], "metadata": "{\"func_name\": \"f\"}"})",
        R"({"inputs": ["1"], "outputs": ["1"], "testtype": "functional", "metadata": "of a contest"})",
        R"({"inputs": ["1"], "outputs": ["1"], "metadata": {"func_name": 1}})", R"({"asserts": "assert x"})",
        R"({"setup": 1, "asserts": ["x"]})", R"({"inputs": ["[1"], "outputs": ["1"], "fn_name": "f"})"}) {
    const absl::Status status = Score("print(1)", label).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << label << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has no tests of a program"));
  }
}

TEST(Sandbox, StandsHere) { EXPECT_TRUE(CheckSandbox().ok()) << CheckSandbox(); }

TEST(Sandbox, IsRefusedWithTheCureWhereBubblewrapIsMissing) {
  const std::string path = getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const absl::Status status = CheckSandbox();
  setenv("PATH", path.c_str(), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("apt-get install bubblewrap"));
}

}  // namespace
}  // namespace quartet
