#include "core/rewards/programs/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "absl/time/clock.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Answer Of(const std::string& response, const std::string& label = "") {
  Answer answer;
  answer.query = "Question? " + response + "<end>";
  answer.prompt = "Question? ";
  answer.response = response;
  answer.label = label;
  return answer;
}

absl::StatusOr<Reward> Ask(RewardFunction& function, const Answer& answer, std::stop_token stop = {}) {
  const Answer* const one[] = {&answer};
  return function.Score(one, std::move(stop)).at(0);
}

std::unique_ptr<RewardFunction> Python(const std::string& program, absl::Duration timeout = absl::Seconds(60),
                                       int64_t memory = 0) {
  static int number = 0;
  const std::string file = testing::TempDir() + "/program" + std::to_string(number++) + ".py";
  std::ofstream(file) << "import json, os, sys, time\n" << program;
  return NewCommand({.command = "python3 " + file, .timeout = timeout, .memory_limit_bytes = memory}).value();
}

TEST(Command, AnswersEachLineWithALine) {
  const auto command = Python(R"(
for line in sys.stdin:
    item = json.loads(line)
    print(json.dumps({"reward": len(item["response"]) / 4, "score": item["label"] == "yes",
                      "extra_logs": {"query": len(item["query"]), "pid": os.getpid() % 1000}}), flush=True)
)");
  const auto first = Ask(*command, Of("four", "yes"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->value, 1);
  EXPECT_EQ(first->score, 1);
  EXPECT_EQ(first->extra_logs.at("query"), 19);
  const auto second = Ask(*command, Of("three \n\xE2\x82\xAC\xFF", "no"));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->score, 0);
  EXPECT_EQ(second->extra_logs.at("pid"), first->extra_logs.at("pid"));  // the same process
  EXPECT_TRUE(Ask(*command, Of(std::string(1 << 20, 'x'), "no")).ok());
}

TEST(Command, ReadsTheConversationOfAnAgentBesideItsLastAnswer) {
  const auto command = Python(R"(
for line in sys.stdin:
    messages = json.loads(line).get("messages")
    print(json.dumps({"reward": len(messages) if messages is not None else -1}), flush=True)
)");
  EXPECT_EQ(Ask(*command, Of("4"))->value, -1);
  Answer answer = Of("4");
  answer.messages = R"([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])";
  EXPECT_EQ(Ask(*command, answer)->value, 2);
}

TEST(Command, ScoresByTheExample) {
  const auto command =
      NewCommand({.command = "python3 examples/rewards/command.py", .timeout = absl::Seconds(60)}).value();
  const auto right = Ask(*command, Of(" yes", "yes"));
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(right->value, 1);
  EXPECT_EQ(right->score, 1);
  EXPECT_EQ(right->extra_logs.at("length"), 4);
  Answer cut = Of("no", "yes");
  cut.truncated = true;
  EXPECT_FLOAT_EQ(Ask(*command, cut)->value, -0.1f);
}

TEST(Command, BelievesNoLineWithoutAnIdOnceThereWereSome) {
  const auto command = Python(R"(
for line in sys.stdin:
    item = json.loads(line)
    named = {} if item["response"] == "forged" else {"id": item["id"]}
    print(json.dumps({"reward": 1, **named}), flush=True)
)");
  EXPECT_TRUE(Ask(*command, Of("a")).ok());
  const absl::Status forged = Ask(*command, Of("forged")).status();
  EXPECT_TRUE(absl::IsInternal(forged)) << forged;
  EXPECT_THAT(std::string(forged.message()), HasSubstr("does not repeat the question's \"id\""));
}

TEST(Command, MayBeAskedForManyAnswersInALine) {
  const std::string file = testing::TempDir() + "/lists.py";
  std::ofstream(file) << R"(
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    said = [{"reward": len(asked), "id": a["id"]} for a in asked]
    word = asked[0]["response"]
    if word == "bad": said[1] = {"error": "I cannot", "id": asked[1]["id"]}
    if word == "nan": said[1]["reward"] = float("nan")
    if word == "short": said.pop()
    if word == "swapped": said.reverse()
    print(json.dumps(said if word != "alone" else said[0]), flush=True)
)";
  const auto command = NewCommand({.command = "python3 " + file, .in_lists = true}).value();
  const auto ask = [&command](const std::string& first) {
    const Answer one = Of(first), two = Of("b");
    const Answer* const both[] = {&one, &two};
    return command->Score(both, {});
  };
  for (const auto& reward : ask("a")) {
    ASSERT_TRUE(reward.ok()) << reward.status();
    EXPECT_EQ(reward->value, 2);
  }
  EXPECT_EQ(Ask(*command, Of("a"))->value, 1);
  const auto bad = ask("bad");
  EXPECT_TRUE(bad[0].ok()) << bad[0].status();
  EXPECT_THAT(std::string(bad[1].status().message()), HasSubstr("I cannot"));
  const auto nan = ask("nan");
  EXPECT_TRUE(nan[0].ok()) << nan[0].status();
  EXPECT_THAT(std::string(nan[1].status().message()), HasSubstr("\"reward\" is \"NaN\", no finite number"));
  EXPECT_THAT(std::string(ask("short")[0].status().message()), HasSubstr("has 1 rewards for 2 questions"));
  EXPECT_THAT(std::string(ask("alone")[1].status().message()), HasSubstr("is no JSON array of 2"));
  const absl::Status swapped = ask("swapped")[0].status();
  EXPECT_TRUE(absl::IsInternal(swapped)) << swapped;  // by their ids nothing is taken for another's
  EXPECT_THAT(std::string(swapped.message()), HasSubstr("to another question"));
  EXPECT_TRUE(ask("a")[1].ok());
}

// Functions as they are written for other frameworks, served by the example.
class RewardFunc : public testing::Test {
 protected:
  static std::vector<absl::StatusOr<Reward>> Ask(const std::string& functions, const std::string& flags = "",
                                                 bool in_lists = true) {
    static int number = 0;
    const std::string file = testing::TempDir() + "/functions" + std::to_string(number++) + ".py";
    std::ofstream(file) << functions;
    const auto command = NewCommand({.command = "python3 examples/rewards/reward_func.py " + file + " " + flags,
                                     .timeout = absl::Seconds(60),
                                     .in_lists = in_lists});
    if (!command.ok()) return {command.status(), command.status()};
    Answer yes = Of("yes", "yes"), no = Of("no", "yes");
    yes.source = no.source = "math";
    yes.row = R"({"level": 3})";
    no.row = R"({"extra_info": {"level": 5}})";
    const Answer* const both[] = {&yes, &no};
    return (*command)->Score(both, {});
  }
  static std::vector<float> Values(const std::string& functions, const std::string& flags = "", bool in_lists = true) {
    std::vector<float> values;
    for (const auto& reward : Ask(functions, flags, in_lists)) {
      EXPECT_TRUE(reward.ok()) << reward.status();
      values.push_back(reward.ok() ? reward->value : NAN);
    }
    return values;
  }
  static std::string ErrorOf(const std::string& functions, const std::string& flags = "") {
    return std::string(Ask(functions, flags)[0].status().message());
  }
};

TEST_F(RewardFunc, ServesOpenRlhfs) {
  const std::string tensor = R"(
class Tensor:
    def __init__(self, values): self.values = values
    def tolist(self): return self.values
def reward_func(queries, prompts, labels):
    print("called")
    right = [q[len(p):].startswith(l) for q, p, l in zip(queries, prompts, labels)]
    return {"rewards": Tensor([[float(r)] for r in right]), "scores": Tensor(right), "extra_logs": {"n": Tensor([len(right)] * len(right))}}
)";
  for (const bool in_lists : {true, false}) {
    const auto rewards = Ask(tensor, "", in_lists);
    ASSERT_TRUE(rewards[0].ok() && rewards[1].ok()) << rewards[0].status() << rewards[1].status();
    EXPECT_EQ(rewards[0]->value, 1);
    EXPECT_EQ(rewards[1]->value, 0);
    EXPECT_EQ(rewards[1]->score, 0);
    EXPECT_EQ(rewards[0]->extra_logs.at("n"), in_lists ? 2 : 1);
  }
}

TEST_F(RewardFunc, ServesTrlsWithTheRowsFieldsAsColumns) {
  EXPECT_THAT(Values("def near(prompts, completions, level, **kwargs):\n"
                     "    return [(l or 0) + len(c) + len(kwargs['label'][0]) for c, l in zip(completions, level)]\n"),
              ElementsAre(9, 5));
  EXPECT_THAT(Values("async def f(completions, answer, prompts):\n"
                     "    return [c[0]['content'] == a for c, a in zip(completions, answer)]\n",
                     "--label=answer --messages"),
              ElementsAre(1, 0));
}

TEST_F(RewardFunc, ServesVerls) {
  const std::string score = R"(
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth) + extra_info["level"], "acc": True, "pred": solution_str}
)";
  const auto rewards = Ask(score);
  ASSERT_TRUE(rewards[0].ok() && rewards[1].ok()) << rewards[0].status() << rewards[1].status();
  EXPECT_EQ(rewards[0]->value, 4);
  EXPECT_EQ(rewards[1]->value, 5);
  EXPECT_EQ(rewards[1]->extra_logs, (std::map<std::string, float>{{"acc", 1}}));
  EXPECT_THAT(Values("def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
                     "    return len(data_source)\n"),
              ElementsAre(4, 4));
}

TEST_F(RewardFunc, AnErrorOrNoneIsOneAnswersAlone) {
  for (const char* no : {"None", "1 / 0", "float('nan')", "'much'"}) {
    const auto rewards = Ask(std::string("def f(prompts, completions, **_):\n"
                                         "    return [1 if c == 'yes' else ") +
                             no + " for c in completions]\n");
    ASSERT_TRUE(rewards[0].ok()) << no << rewards[0].status();
    EXPECT_FALSE(rewards[1].ok()) << no;
  }
}

TEST_F(RewardFunc, KeepsItsChannelFromProgramsThatTheFunctionStarts) {
  EXPECT_THAT(Values("import os, subprocess\n"
                     "def f(prompts, completions, **_):\n"
                     "    os.system('echo \\'{\"reward\": 1}\\'')\n"
                     "    read = subprocess.run(['cat'], capture_output=True, text=True).stdout\n"
                     "    return [0.5 + len(read) for _ in completions]\n"),
              ElementsAre(0.5, 0.5));
}

TEST_F(RewardFunc, OfAnotherNumberOfValuesIsAnErrorOfAll) {
  for (const char* values : {"[1.0]", "1.0", "[1, 0, 1]"}) {
    const auto rewards = Ask(std::string("def f(prompts, completions, **_): return ") + values + "\n");
    EXPECT_THAT(std::string(rewards[0].status().message()), HasSubstr("for 2 answers")) << values;
    EXPECT_FALSE(rewards[1].ok()) << values;
  }
}

TEST_F(RewardFunc, LeavesOutLogsThatAreNoNumbers) {
  const auto rewards = Ask(R"(
def reward_func(queries, prompts, labels):
    return {"rewards": [1, 1], "scores": [1, float("nan")],
            "extra_logs": {"text": ["a", "b"], "set": [{1}, {2}], "nan": [float("nan"), 2]}}
)");
  ASSERT_TRUE(rewards[0].ok()) << rewards[0].status();
  EXPECT_TRUE(rewards[0]->extra_logs.empty());
  EXPECT_THAT(std::string(rewards[1].status().message()), HasSubstr("nan as score of this answer"));
}

TEST_F(RewardFunc, TakesRowsWithColumnsOfItsOwnNames) {
  const std::string file = testing::TempDir() + "/columns.py";
  std::ofstream(file) << "def f(prompts, completions, **_): return [len(p) for p in prompts]\n";
  const auto command =
      NewCommand({.command = "python3 examples/rewards/reward_func.py " + file, .timeout = absl::Seconds(60)}).value();
  Answer answer = Of("yes");
  answer.row = R"({"prompts": "mine", "completions": 3})";
  const Answer* const one[] = {&answer};
  const auto reward = command->Score(one, {}).at(0);
  ASSERT_TRUE(reward.ok()) << reward.status();
  EXPECT_EQ(reward->value, 10);
}

TEST_F(RewardFunc, SaysWhichFunctionIsNotFound) {
  EXPECT_THAT(ErrorOf("def reward(answer): return 1\n"), HasSubstr("queries, completions, solution_str"));
  const std::string two = "def a(completions, **_): return [1]\ndef b(completions, **_): return [0, 0]\n";
  EXPECT_THAT(ErrorOf(two), HasSubstr("several: a, b"));
  EXPECT_THAT(ErrorOf(two, "c"), HasSubstr("no function c; it has a, b"));
  EXPECT_THAT(
      Values("def a(completions, **_): return [1]\ndef b(completions, **_): return [0] * len(completions)\n", "b"),
      ElementsAre(0, 0));
}

TEST(Command, IsStartedAnewAfterItHasDied) {
  const auto command = Python(R"(
for line in sys.stdin:
    if json.loads(line)["response"] == "die":
        print("I die", file=sys.stderr)
        sys.exit(3)
    print(json.dumps({"reward": 1}), flush=True)
)");
  EXPECT_TRUE(Ask(*command, Of("live")).ok());
  const absl::Status died = Ask(*command, Of("die")).status();
  EXPECT_TRUE(absl::IsAborted(died)) << died;
  EXPECT_THAT(std::string(died.message()), HasSubstr("exit code 3"));
  EXPECT_THAT(std::string(died.message()), HasSubstr("it has written last:\nI die"));
  EXPECT_TRUE(Ask(*command, Of("live")).ok());
}

TEST(Command, IsKilledWhereItTakesTooLong) {
  const auto command = Python(R"(
for line in sys.stdin:
    if json.loads(line)["response"] == "sleep": time.sleep(1000)
    print(json.dumps({"reward": 1}), flush=True)
)",
                              absl::Seconds(2));
  const absl::Status late = Ask(*command, Of("sleep")).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("no answer after 2s"));
  EXPECT_TRUE(Ask(*command, Of("work")).ok());
}

TEST(Command, IsKeptToItsMemory) {
  const auto command =
      Python("for line in sys.stdin: print(json.dumps({'reward': len(bytearray(1 << 30)) > 0}), flush=True)",
             absl::Seconds(60), 256 << 20);
  EXPECT_THAT(std::string(Ask(*command, Of("")).status().message()), HasSubstr("exit code 1"));
}

TEST(Command, IsAnErrorWhereItSaysNoReward) {
  const auto said = Python("for line in sys.stdin: print(json.loads(line)['response'], flush=True)");
  const auto message = [&](const std::string& reply) { return std::string(Ask(*said, Of(reply)).status().message()); };
  EXPECT_THAT(message("loading the judge"), HasSubstr("\"loading the judge\" is no JSON object"));
  EXPECT_THAT(message("{}"), HasSubstr("has no \"reward\""));
  EXPECT_THAT(message(R"({"reward": "high"})"), HasSubstr("no finite number"));
  EXPECT_THAT(message(R"({"reward": 1e300})"), HasSubstr("beyond fp32"));
  EXPECT_THAT(message(R"({"reward": NaN})"), HasSubstr("\"reward\" is \"NaN\", no finite number"));
  EXPECT_THAT(message(R"({"reward": -Infinity})"), HasSubstr("\"reward\" is \"-Infinity\", no finite number"));
  EXPECT_THAT(message(R"({"reward": 1e400})"), HasSubstr("\"reward\" is \"1e400\", no finite number"));
  EXPECT_THAT(message(R"({"reward": 1, "NaN" NaN})"), HasSubstr("is no JSON object {\"reward\": number}: not well"));
  EXPECT_THAT(message(R"({"reward": null})"), HasSubstr("a \"reward\" that is null"));
  EXPECT_THAT(message(R"({"reward": 1, "score": []})"), HasSubstr("\"score\""));
  EXPECT_THAT(message(R"({"error": "the judge is asleep"})"), HasSubstr("the judge is asleep"));
  EXPECT_THAT(message(std::string(2 << 20, 'x')), HasSubstr("more than 1048576 bytes"));
}

// Each answer has its own reward, or an error; what comes late is never the next one's.
TEST(Command, AnAnswerNeverGetsTheRewardOfAnother) {
  const auto numbered = [](const std::string& then) {
    return Python(
        "for line in sys.stdin:\n  item = json.loads(line)\n"
        "  reply = json.dumps({'reward': float(item['response']), 'id': item['id']})\n"
        "  print(reply, flush=True)\n  " +
        then);
  };
  const auto ask = [](RewardFunction& command, int i) {
    absl::SleepFor(absl::Milliseconds(30));
    return Ask(command, Of(std::to_string(i)));
  };
  for (const char* twice :
       {"print(reply, flush=True)", "time.sleep(0.01); print(reply, flush=True)", "os.write(1, b'half a line')"}) {
    const auto command = numbered(twice);
    EXPECT_TRUE(ask(*command, 0).ok());
    const absl::Status status = ask(*command, 1).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("nothing was asked for"));
    EXPECT_EQ(ask(*command, 2)->value, 2) << "of another process";
  }
  // So late that the next question is there.
  const auto command = numbered("time.sleep(0.3); print(reply, flush=True)");
  EXPECT_TRUE(ask(*command, 0).ok());
  EXPECT_THAT(std::string(ask(*command, 1).status().message()), HasSubstr("is to another question than "));
}

// Without ids nothing tells whose the rewards before were.
TEST(Command, ThatSaysMoreThanItWasAskedLeavesNoRewardToTrustWithoutIds) {
  const auto status_of_second = [](const std::string& twice) {
    const auto command =
        Python("for line in sys.stdin:\n  item = json.loads(line)\n  os.write(1, (" + twice + ").encode())\n");
    const auto first = Ask(*command, Of("1"));
    EXPECT_TRUE(first.ok()) << first.status();
    return Ask(*command, Of("2")).status();
  };
  const absl::Status status = status_of_second("json.dumps({'reward': 1}) + '\\n' + json.dumps({'reward': 1}) + '\\n'");
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("nothing was asked for"), HasSubstr("may be those of other answers"),
                             HasSubstr("\"id\"")));
  // Some of them without.
  EXPECT_TRUE(absl::IsDataLoss(
      status_of_second("json.dumps({'reward': 1}) + '\\n' + json.dumps({'reward': 1, 'id': item['id']}) + '\\n'")));
  EXPECT_TRUE(absl::IsInternal(status_of_second("(json.dumps({'reward': 1, 'id': item['id']}) + '\\n') * 2")));
}

TEST(Command, ReadsTheRowOfThePrompt) {
  const auto command =
      Python("for line in sys.stdin: print(json.dumps({'reward': json.loads(line)['row']['level'][1]}), flush=True)");
  Answer answer = Of("");
  answer.row = R"({"level": [1, 7]})";
  EXPECT_EQ(Ask(*command, answer)->value, 7);
}

TEST(Command, ReadsWholeNumbersOfTheRowExactly) {
  const auto command = Python(
      "for line in sys.stdin: print(json.dumps({'reward': json.loads(line)['row']['n'] % 1000, 'id': "
      "json.loads(line)['id']}), flush=True)");
  Answer answer = Of("");
  answer.row = R"({"n": 12345678901234567890123})";
  EXPECT_EQ(Ask(*command, answer)->value, 123);
}

TEST(Command, ThatDefinesAFunctionAndEndsIsToldWhatServesIt) {
  const std::string file = testing::TempDir() + "/function.py";
  std::ofstream(file) << "def reward_func(queries, prompts, labels): return [1]\n";
  const absl::Status status = NewCommand({.command = "python3 " + file}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("examples/rewards/reward_func.py"));
  const auto slow = NewCommand({.command = "sleep 1"});
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_THAT(std::string(Ask(**slow, Of("a")).status().message()), HasSubstr("examples/rewards/reward_func.py"));
  EXPECT_THAT(std::string(NewCommand({.command = "exit 3"}).status().message()), Not(HasSubstr("reward_func")));
}

TEST(Command, IsFoundBeforeItIsAskedWhereItCannotRun) {
  const auto check = [](const std::string& command) { return NewCommand({.command = command}).status(); };
  EXPECT_TRUE(check("cat").ok()) << check("cat");
  EXPECT_TRUE(check("python3 examples/rewards/command.py").ok());
  const absl::Status missing = check("./no_such_program --fast");
  EXPECT_TRUE(absl::IsInvalidArgument(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), testing::AllOf(HasSubstr("./no_such_program --fast"),
                                                             HasSubstr("exit code 127"), HasSubstr("not found")));
}

// What Check says once it says anything.
absl::Status Found(RewardFunction& function) {
  for (int i = 0; i < 600 && function.Check().ok(); ++i) absl::SleepFor(absl::Milliseconds(50));
  return function.Check();
}

// As one whose imports take a while, and of which the last one is missing.
TEST(Command, IsFoundBeforeItIsAskedWhereItEndsAfterAWhile) {
  for (const bool checked : {true, false}) {
    const auto command = Python("time.sleep(1)\nimport no_such_module\n");
    EXPECT_TRUE(command->Check().ok()) << "it loads";
    if (!checked) absl::SleepFor(absl::Seconds(5));
    const absl::Status status = checked ? Found(*command) : Ask(*command, Of("")).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr("before it was asked anything it has ended: exit code 1"),
                               HasSubstr("ModuleNotFoundError: No module named 'no_such_module'")));
    EXPECT_EQ(command->Check(), status) << "it stays so";
  }
}

TEST(Command, IsFoundBeforeItIsAskedWhereItWritesWhatIsNoReply) {
  const auto command = Python("time.sleep(1)\nprint('loaded', flush=True)\ntime.sleep(100)");
  EXPECT_THAT(std::string(Found(*command).message()),
              HasSubstr("before it was asked anything it has written \"loaded\", and its output is for replies alone"));
}

// A judge that loads for long does so once, while nothing is asked.
TEST(Command, AnswersTheFirstQuestionByTheProcessThatWasStartedAtOnce) {
  const auto command = Python(R"(
time.sleep(1)
begun = time.time()
for line in sys.stdin: print(json.dumps({"reward": time.time() - begun}), flush=True)
)");
  EXPECT_TRUE(command->Check().ok());
  absl::SleepFor(absl::Seconds(3));
  EXPECT_TRUE(command->Check().ok());
  const auto age = Ask(*command, Of(""));
  ASSERT_TRUE(age.ok()) << age.status();
  EXPECT_GT(age->value, 0.5) << "its own start would not have taken so long";
  EXPECT_TRUE(command->Check().ok());
}

TEST(Command, LeavesWhenTheCallEnds) {
  const auto command = Python("for line in sys.stdin: time.sleep(1000)");
  std::stop_source stop;
  const std::jthread stopper([&] {
    absl::SleepFor(absl::Milliseconds(50));
    stop.request_stop();
  });
  EXPECT_TRUE(absl::IsCancelled(Ask(*command, Of(""), stop.get_token()).status()));
}

}  // namespace
}  // namespace quartet
