// A run whose chat template writes the date, over several days.

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

// What the model reads of the first example.
std::string FirstExample(const std::string& output) {
  const size_t begin = output.find("  read    ");
  return begin == std::string::npos ? output : output.substr(begin, output.find('\n', begin) - begin);
}

TEST(TemplateDate, IsThatOfTheFirstDayWhereARunGoesOnOnTheNext) {
  ProcessHarness harness;
  const auto run = [&](const std::vector<std::string>& sets, const std::map<std::string, std::string>& environment) {
    std::vector<std::string> arguments = {"--launch", "--set=data.apply_chat_template=true"};
    for (const std::string& set : sets) arguments.push_back("--set=" + set);
    return harness.Run("orchestrator/sft", arguments, absl::Seconds(240), environment);
  };
  std::vector<std::string> sets = {
      "actor.pretrain=" + WriteTinyModel(harness, "model"),
      "data.tokenizer_chat_template=" +
          harness.Write("dated.jinja",
                        "{{ strftime_now('%Y %j ') }}{% for m in messages %}{{ m.content }}{% endfor %}"),
      "sft.data=" + harness.Write("rows.jsonl",
                                  "{\"prompt\": \"1+1=\", \"response\": \"2\"}\n"
                                  "{\"prompt\": \"2+3=\", \"response\": \"5\"}\n"),
      "train.train_batch_size=2",
      "actor.learning_rate=1e-3",
      "actor.max_len=32",
      "train.save_steps=1",
      "run_dir=" + harness.Path("run"),
  };
  const auto first = run(sets, {});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  sets.insert(sets.end(), {"train.load_checkpoint=true", "train.max_steps=2"});
  const auto next = run(sets, {{"LD_PRELOAD", ExecutableFolder() + "/libskewed_clock.so"}, {"SKEW_SECONDS", "86400"}});
  ASSERT_EQ(next.exit_code, 0) << next.output;
  EXPECT_THAT(next.output, HasSubstr("going on after 1 of 2 steps"));
  EXPECT_EQ(FirstExample(next.output), FirstExample(first.output));
  // One that begins on that day has another.
  sets.back() = "run_dir=" + harness.Path("other");
  const auto other = run(sets, {{"LD_PRELOAD", ExecutableFolder() + "/libskewed_clock.so"}, {"SKEW_SECONDS", "86400"}});
  ASSERT_EQ(other.exit_code, 0) << other.output;
  EXPECT_NE(FirstExample(other.output), FirstExample(first.output));
}

}  // namespace
}  // namespace quartet
