#include "scorer/rewards/programs/code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

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

TEST(CodeRewards, DoNotTellWhatAFunctionOughtToReturn) {
  const char* secret = R"({"inputs": [[]], "outputs": ["zebra"], "fn_name": "f"})";
  EXPECT_EQ(Value(R"(
def f():
    import sys
    seen = open("/run/epilogue.py").read() + open("/run/answer.py").read()
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
        R"({"inputs": [1], "outputs": [2], "fn_name": "f"})"}) {
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
