#include "orchestrator/loop/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "orchestrator/testing/byte_tokenizer.h"
#include "orchestrator/testing/scratch_folder.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DataConfig Data() {
  DataConfig data;
  data.set_input_key("question");
  data.set_label_key("answer");
  data.set_input_template("{}");
  data.set_prompt_max_len(20);
  return data;
}

JsonlFile FileAt(const std::string& path) { return {.path = path, .option = "eval.data"}; }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Prompts, AreTokenisedWithTheirLabels) {
  const ScratchFolder scratch;
  const std::string path =
      scratch.Write("data.jsonl",
                    "{\"question\": \"2+2\", \"answer\": \"two and two\\n#### 4\"}\n{\"question\": \"1\", "
                    "\"answer\": \"#### 1\"}\n");
  DataConfig data = Data();
  data.set_label_extract("after_####");
  data.set_input_template("Q: {} A:");
  const auto prompts = LoadPrompts(FileAt(path), data, 0, true, ByteTokenizer());
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2);
  EXPECT_EQ((*prompts)[0].text, "Q: 2+2 A:");
  EXPECT_EQ((*prompts)[0].label, "4");
  EXPECT_EQ((*prompts)[0].ids.size(), 9);
  EXPECT_EQ(LoadPrompts(FileAt(path), data, 1, true, ByteTokenizer())->size(), 1) << "max_samples";
}

TEST(Prompts, GoThroughTheChatTemplateAsAUsersMessage) {
  const ScratchFolder scratch;
  const std::string path = scratch.Write("data.jsonl", "{\"question\": \"hi\", \"answer\": \"x\"}\n");
  DataConfig data = Data();
  data.set_apply_chat_template(true);
  EXPECT_EQ((*LoadPrompts(FileAt(path), data, 0, true, ByteTokenizer()))[0].text, "[user]hi[assistant]");
}

TEST(Prompts, MayBeListsOfMessages) {
  const ScratchFolder scratch;
  const auto load = [&](const std::string& messages, bool with_template = true,
                        const std::string& input_template = "{}") {
    DataConfig data = Data();
    data.set_prompt_max_len(100);
    data.set_apply_chat_template(with_template);
    data.set_input_template(input_template);
    return LoadPrompts(FileAt(scratch.Write("data.jsonl", "{\"question\": " + messages + "}\n")), data, 0, false,
                       ByteTokenizer());
  };
  const std::string user = R"({"role": "user", "content": "hi"})", tool = R"({"role": "tool", "content": null})",
                    assistant = R"({"content": "yes", "role": "assistant", "name": null})";
  EXPECT_EQ(load("[" + user + ", " + assistant + ", " + user + "]").value()[0].text,
            "[user]hi[assistant]yes[user]hi[assistant]");
  const auto error = [&](const auto& prompts) { return Message(prompts.status()); };
  EXPECT_THAT(error(load("[" + user + "]", false)),
              HasSubstr("line 1: field \"question\" is a list of messages; only a chat template writes such: set "
                        "data.apply_chat_template"));
  EXPECT_THAT(error(load("[" + user + "]", true, "Q: {}")), HasSubstr("in which data.input_template has no place"));
  EXPECT_THAT(error(load("[]")), HasSubstr("without a message"));
  EXPECT_THAT(error(load("[" + user + ", 5]")), HasSubstr("message 1 (counted from 0) is of JSON type number"));
  EXPECT_THAT(error(load("[" + tool + "]")), HasSubstr("message 0 (counted from 0) its \"content\" is null"));
  EXPECT_THAT(error(load(R"([{"content": "a"}])")), HasSubstr("its \"role\" is missing"));
  EXPECT_THAT(error(load(R"([{"role": "user", "content": "a", "tool_calls": []}])")),
              HasSubstr("has \"tool_calls\", which would not be read"));
  EXPECT_THAT(error(load("[" + user + ", " + assistant + "]")),
              HasSubstr("(data.input_key) is the assistant's; a prompt ends before the answer"));
}

TEST(Prompts, ThatAreTooLongAreNamedByLine) {
  const ScratchFolder scratch;
  const std::string path = scratch.Write(
      "data.jsonl",
      "{\"question\": \"a\", \"answer\": \"\"}\n{\"question\": \"0123456789012345678901\", \"answer\": \"\"}\n");
  const absl::Status status = LoadPrompts(FileAt(path), Data(), 0, true, ByteTokenizer()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("eval.data: " + path + " line 2: "), HasSubstr("22 tokens"),
                                     HasSubstr("prompt_max_len (20)")));
}

TEST(Prompts, WithoutATokenAreRefused) {
  const ScratchFolder scratch;
  const std::string path = scratch.Write("data.jsonl", "{\"question\": \"\", \"answer\": \"\"}\n");
  EXPECT_THAT(Message(LoadPrompts(FileAt(path), Data(), 0, true, ByteTokenizer()).status()),
              HasSubstr(path + " line 1: "));
}

TEST(Prompts, NeedLabelsOnlyForRules) {
  const ScratchFolder scratch;
  const std::string path = scratch.Write("data.jsonl", "{\"question\": \"a\"}\n");
  EXPECT_THAT(
      Message(LoadPrompts(FileAt(path), Data(), 0, true, ByteTokenizer()).status()),
      HasSubstr("line 1: has no field \"answer\" (data.label_key: the rules of the reward compare with it); the "
                "line has: question"));
  const auto prompts = LoadPrompts(FileAt(path), Data(), 0, false, ByteTokenizer());
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ((*prompts)[0].label, "");
}

TEST(Prompts, AreFoundUnderTheKeyThatAnOptionNames) {
  const ScratchFolder scratch;
  const std::string path = scratch.Write("data.jsonl", "{\"prompt\": \"a\", \"answer\": \"b\"}\n");
  EXPECT_THAT(Message(LoadPrompts(FileAt(path), Data(), 0, true, ByteTokenizer()).status()),
              HasSubstr("has no field \"question\" (data.input_key); the line has: answer, prompt"));
}

TEST(PromptOrder, TakesEachPromptOnceAnEpoch) {
  PromptOrder order(7, 10);
  std::vector<int64_t> first = order.Take(0, 10);
  std::vector<int64_t> second = order.Take(10, 10);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 10);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 10);
  EXPECT_NE(first, second);
}

TEST(PromptOrder, DependsOnTheSeedAndNotOnTheBatches) {
  PromptOrder whole(7, 10), parts(7, 10), other(8, 10);
  const std::vector<int64_t> expected = whole.Take(0, 24);
  std::vector<int64_t> joined;
  for (int64_t begin : {0, 8, 16}) {
    const std::vector<int64_t> part = parts.Take(begin, 8);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, expected);
  EXPECT_NE(other.Take(0, 24), expected);
}

}  // namespace
}  // namespace quartet
