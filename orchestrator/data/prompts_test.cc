#include "orchestrator/data/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/testing/scratch_folder.h"
#include "core/clients/testing/byte_tokenizer.h"
#include "orchestrator/data/reward_sources.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PromptsTest : public ::testing::Test {
 protected:
  PromptsTest() {
    data().set_input_key("question");
    data().set_label_key("answer");
    data().set_input_template("{}");
    data().set_source_key("data_source");
    data().set_prompt_max_len(100);
    config_.mutable_reward()->add_source()->set_rule("number");
  }
  DataConfig& data() { return *config_.mutable_data(); }
  void Write(const std::string& lines, const std::string& name = "data.jsonl") {
    data().add_prompt_data(scratch_.Write(name, lines));
  }
  // All prompts of a file of these lines, in its order.
  absl::StatusOr<std::vector<PromptRecord>> Load(const std::string& lines) {
    data().clear_prompt_data();
    Write(lines);
    return Load();
  }
  absl::StatusOr<std::vector<PromptRecord>> Load() {
    const auto prompts = Prompts::Open(config_, tokenizer_);
    if (!prompts.ok()) return prompts.status();
    const auto taken = (*prompts)->Take(0, (*prompts)->size());
    if (!taken.ok()) return taken.status();
    std::vector<PromptRecord> records;
    for (const auto& prompt : *taken) records.push_back(*prompt);
    return records;
  }
  std::string Error(const std::string& lines) {
    const absl::Status status = Load(lines).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  const ScratchFolder scratch_;
  const ByteTokenizer tokenizer_;
  RunConfig config_;
};

TEST_F(PromptsTest, AreTokenisedWithTheirLabels) {
  data().set_label_extract("after_####");
  data().set_input_template("Q: {} A:");
  const std::string lines =
      "{\"question\": \"2+2\", \"answer\": \"two and two\\n#### 4\"}\n{\"question\": \"{}\", \"answer\": \"#### 1\"}\n";
  const auto prompts = Load(lines);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2);
  EXPECT_EQ((*prompts)[0].text, "Q: 2+2 A:");
  EXPECT_EQ((*prompts)[0].label, "4");
  EXPECT_EQ((*prompts)[0].ids.size(), 9);
  EXPECT_EQ((*prompts)[1].text, "Q: {} A:");
  data().set_max_samples(1);
  EXPECT_EQ(Load(lines)->size(), 1);
}

TEST_F(PromptsTest, HaveTheirMessagesAndTheRestOfTheirRowForAnAgent) {
  data().set_input_template("Compute {}.");
  const std::string lines = "{\"question\": \"2+2 \\u00bd\", \"answer\": \"4\", \"tools\": [\"sum\"], \"n\": 1.5}\n";
  EXPECT_EQ(Load(lines)->front().messages, "");
  EXPECT_EQ(Load(lines)->front().row, "");
  config_.mutable_agent()->set_command("agent");
  const PromptRecord prompt = Load(lines)->front();
  EXPECT_EQ(prompt.messages, "[{\"role\": \"user\", \"content\": \"Compute 2+2 \\u00bd.\"}]");
  EXPECT_EQ(prompt.row, "{\"tools\": [\"sum\"], \"n\": 1.5}");
  EXPECT_EQ(prompt.label, "4");
}

TEST_F(PromptsTest, GoThroughTheChatTemplateAsAUsersMessage) {
  data().set_apply_chat_template(true);
  EXPECT_EQ((*Load("{\"question\": \"hi\", \"answer\": \"1\"}\n"))[0].text, "[user]hi[assistant]");
}

TEST_F(PromptsTest, BeginWithTheTokenOnceThatTheTokenizerPutsBeforeThem) {
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("core/tokenizer/testdata/llama_class").value();
  ASSERT_EQ(tokenizer->ids_before_text(), (std::vector<int32_t>{1}));
  config_.clear_reward();
  data().set_skip_malformed(true);
  data().set_shuffle(false);
  const std::string plain = "{\"question\": \"se\"}\n", rendered = "{\"question\": \"<s>set\"}\n";
  // One row among many.
  Write(plain + rendered + plain);
  const auto prompts = Prompts::Open(config_, *tokenizer);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ((*prompts)->first().ids, (std::vector<int32_t>{1, 12, 14}));
  EXPECT_EQ((*prompts)->size(), 2);
  EXPECT_EQ((*prompts)->rows().left_out().malformed, 1);
  EXPECT_THAT(
      std::string((*prompts)->rows().left_out().first_malformed.message()),
      HasSubstr("data.jsonl line 2: the text begins with \"<s>\", which the tokenizer puts before every text: the "
                "model would read it twice; leave it out of the text"));
  data().set_skip_malformed(false);
  EXPECT_THAT(std::string(Prompts::Open(config_, *tokenizer).status().message()), HasSubstr("data.jsonl line 2: "));
  data().clear_prompt_data();
  Write(plain);
  data().set_input_template("<s>{}?");
  EXPECT_THAT(std::string(Prompts::Open(config_, *tokenizer).status().message()),
              HasSubstr("leave it out of data.input_template"));
}

TEST_F(PromptsTest, BeginWithTheTokenOnceBehindSpacesAndTheInputTemplate) {
  config_.clear_reward();
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("core/tokenizer/testdata/llama_class").value();
  const auto load = [&](const std::string& text) {
    data().clear_prompt_data();
    Write("{\"question\": \"" + text + "\"}\n");
    return Prompts::Open(config_, *tokenizer);
  };
  for (const char* space : {" \\n", "\u00a0", "\u2003 ", "\u3000"}) {
    EXPECT_THAT(
        std::string(load(std::string(space) + "<s>set").status().message()),
        HasSubstr("data.jsonl line 1: the text begins with \"<s>\", which the tokenizer puts before every text"));
  }
  // As conversations of several turns have it that were put through a template before.
  EXPECT_EQ(load("se<s>t").value()->first().ids, (std::vector<int32_t>{1, 12, 14, 1, 10}));
  data().set_input_template("t {}");
  EXPECT_THAT(std::string(load("<s>set").status().message()), HasSubstr("leave it out of the text"));
  EXPECT_EQ(load("set").value()->first().ids, (std::vector<int32_t>{1, 10, 3, 12, 14, 10}));
  data().set_input_template(" <s>{}");
  EXPECT_THAT(std::string(load("set").status().message()), HasSubstr("leave it out of data.input_template"));
}

TEST_F(PromptsTest, HaveTheTokenThatTextsBeginWithWhereTheChatTemplateWritesItAlone) {
  config_.clear_reward();
  data().set_apply_chat_template(true);
  const auto load = [&](const std::string& chat_template, const std::string& messages,
                        const std::string& folder = "core/tokenizer/testdata/llama_class") {
    data().clear_prompt_data();
    Write("{\"question\": " + messages + "}\n");
    const auto tokenizer = Tokenizer::Load(folder, {.file = scratch_.Write("chat.jinja", chat_template)});
    const auto prompts = Prompts::Open(config_, **tokenizer);
    EXPECT_TRUE(prompts.ok() || absl::IsInvalidArgument(prompts.status())) << prompts.status();
    return prompts.ok() ? ::testing::PrintToString((*prompts)->first().ids) : std::string(prompts.status().message());
  };
  const std::string once = "<s>t{% for m in messages %}{{ m.content }}{% endfor %}",
                    each_turn = "{% for m in messages %}<s>{{ m.content }}{% endfor %}",
                    never = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const auto turns = [](const std::string& last) {
    return R"([{"role": "system", "content": "n"}, {"role": "user", "content": ")" + last + R"("}])";
  };
  EXPECT_EQ(load(once, turns("se")), "{ 1, 10, 9, 12, 14 }");
  EXPECT_EQ(load(each_turn, turns("se")), "{ 1, 9, 1, 12, 14 }");
  EXPECT_EQ(load(each_turn, turns("s<s>e")), "{ 1, 9, 1, 12, 1, 14 }");
  for (const std::string& doubled : {once, each_turn}) {
    EXPECT_THAT(load(doubled, turns(" <s>se")),
                HasSubstr("data.jsonl line 1: message 1 (counted from 0) begins with \"<s>\", which the chat template "
                          "writes itself: the model would read it twice; leave it out of the text"));
  }
  EXPECT_THAT(
      load(once,
           R"([{"role": "user", "content": [{"type": "text", "text": "n"}, {"type": "text", "text": "<s>se"}]}])"),
      HasSubstr("line 1: a part of a message's content begins with \"<s>\", which the chat template writes"));
  // Also of a tokenizer that leaves it to the template.
  const std::string left = scratch_.path() + "/left";
  std::filesystem::copy("core/tokenizer/testdata/llama_class", left);
  std::filesystem::remove(left + "/tokenizer_config.json");
  scratch_.Write("left/tokenizer_config.json",
                 R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "eos_token": "<end>"})");
  ASSERT_TRUE(Tokenizer::Load(left).value()->ids_before_text().empty());
  EXPECT_EQ(load(once, turns("se"), left), "{ 1, 10, 9, 12, 14 }");
  EXPECT_THAT(load(once, turns("<s>se"), left), HasSubstr("message 1 (counted from 0) begins with \"<s>\""));
  EXPECT_EQ(load(never, R"("<s>se")", left), "{ 1, 12, 14 }");
  // Texts that have it in the template's place.
  EXPECT_EQ(load(never, R"("<s>se")"), "{ 1, 12, 14 }");
  EXPECT_EQ(load(never, R"([{"role": "system", "content": "<s>n"}, {"role": "user", "content": "<s>s"}])"),
            "{ 1, 9, 1, 12 }");
}

TEST_F(PromptsTest, MayBeListsOfMessages) {
  config_.clear_reward();
  const auto load = [&](const std::string& messages, bool with_template = true,
                        const std::string& input_template = "{}") {
    data().set_apply_chat_template(with_template);
    data().set_input_template(input_template);
    return Load("{\"question\": " + messages + "}\n");
  };
  const std::string user = R"({"role": "user", "content": "hi"})", tool = R"({"role": "tool", "content": null})",
                    system = R"({"role": "system", "content": "be"})",
                    assistant = R"({"content": "yes", "role": "assistant", "name": null})";
  EXPECT_EQ(load("[" + system + ", " + user + ", " + assistant + ", " + user + "]").value()[0].text,
            "[system]be[user]hi[assistant]yes[user]hi[assistant]");
  const auto error = [&](const auto& prompts) { return std::string(prompts.status().message()); };
  EXPECT_THAT(error(load("[" + user + "]", false)),
              HasSubstr("line 1: field \"question\" is a list of messages; only a chat template writes such: set "
                        "data.apply_chat_template"));
  EXPECT_THAT(error(load("[" + user + "]", true, "Q: {}")), HasSubstr("in which data.input_template has no place"));
  EXPECT_THAT(error(load("[]")), HasSubstr("without a message"));
  EXPECT_THAT(error(load("[" + user + ", 5]")), HasSubstr("field \"question\": message[1] is 5; allowed: {"));
  EXPECT_THAT(error(load("[" + tool + "]")),
              HasSubstr("message[0] is {\"role\":\"tool\",\"content\":null}; allowed: a \"content\""));
  EXPECT_THAT(error(load(R"([{"content": "a"}])")), HasSubstr("allowed: a string as \"role\""));
  EXPECT_THAT(error(load(R"([{"role": "user", "content": "a", "weight": 1}])")),
              HasSubstr("message[0].weight is not known, and would not be read"));
  EXPECT_THAT(error(load(R"([{"role": "user", "content": "a", "name": "Ann"}])")),
              HasSubstr("message[0].name would not be read"));
  EXPECT_THAT(error(load("[" + user + ", " + assistant + "]")),
              HasSubstr("(data.input_key) is the assistant's; a prompt ends before the answer"));
}

TEST_F(PromptsTest, MayHaveCallsAndTheirResultsBeforeTheAnswer) {
  config_.clear_reward();
  data().set_apply_chat_template(true);
  data().set_prompt_max_len(200);
  const auto text = [&](std::string list) {
    std::ranges::replace(list, '\n', ' ');
    return Load("{\"question\": " + list + "}\n");
  };
  const std::string calls = R"([{"type":"function","function":{"name":"add","arguments":{"b":1,"a":[null]}}}])";
  const std::string expected = "[user]1+1?[assistant]" + calls + "[tool]2[assistant]";
  EXPECT_EQ(text(R"([{"role": "user", "content": [{"type": "text", "text": "1+1?"}]},
                     {"role": "assistant", "content": null, "tool_calls": )" +
                 calls + R"(},
                     {"role": "tool", "content": "2"}])")
                .value()[0]
                .text,
            expected);
  EXPECT_EQ(text(R"([{"from": "human", "value": "1+1?"},
                     {"from": "function_call", "value": "{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": [null]}}"},
                     {"from": "observation", "value": "2", "loss": null}])")
                .value()[0]
                .text,
            expected);
  const auto error = [&](const std::string& list) { return std::string(text(list).status().message()); };
  EXPECT_THAT(error(R"([{"from": "humn", "value": "a"}])"),
              HasSubstr("message[0].from is \"humn\"; allowed: human, user, gpt, "));
  EXPECT_THAT(error(R"([{"from": "human", "value": 1}])"), HasSubstr("message[0].value is of JSON type number"));
  EXPECT_THAT(error(R"([{"from": "human"}])"), HasSubstr("message[0] has no \"value\""));
  EXPECT_THAT(error(R"([{"from": "human", "value": "a", "weight": 0}])"), HasSubstr("message[0].weight is not known"));
  EXPECT_THAT(error(R"([{"from": "human", "value": "a"}, {"from": "function_call", "value": "add"}])"),
              HasSubstr("message[1].value: not well-formed JSON"));
  EXPECT_THAT(error(R"([{"from": "human", "value": "a"}, {"from": "function_call", "value": "[]"}])"),
              HasSubstr("message[1] is"));
}

TEST_F(PromptsTest, MayHaveToolsForTheTemplate) {
  config_.clear_reward();
  data().set_apply_chat_template(true);
  data().set_tools_key("tools");
  const auto text = [&](const std::string& tools) { return (*Load(R"({"question": "a")" + tools + "}"))[0].text; };
  EXPECT_EQ(text(R"(, "tools": [{"name": "f", "a": null, "b": [1, {"c": null}]}])"),
            R"([{"name":"f","a":null,"b":[1,{"c":null}]}][user]a[assistant])");
  EXPECT_EQ(text(R"(, "tools": "[{\"z\": 1, \"a\": 2}]")"), R"([{"z":1,"a":2}][user]a[assistant])") << "in their order";
  EXPECT_EQ(text(""), "[user]a[assistant]");
  EXPECT_EQ(text(R"(, "tools": null)"), "[user]a[assistant]");
  EXPECT_THAT(Error(R"({"question": "a", "tools": "{}"})"), HasSubstr("is the JSON text of a value of type object"));
  EXPECT_THAT(Error(R"({"question": "a", "tools": "f"})"),
              HasSubstr("field \"tools\" (data.tools_key): not well-formed JSON"));
}

TEST_F(PromptsTest, ThatAreTooLongAreLeftOutAndCounted) {
  data().set_prompt_max_len(20);
  data().set_filter_overlong_prompts(true);
  Write("{\"question\": \"a\", \"answer\": \"1\"}\n{\"question\": \"0123456789012345678901\", \"answer\": \"1\"}\n");
  const auto prompts = Prompts::Open(config_, tokenizer_);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ((*prompts)->size(), 1);
  EXPECT_EQ((*prompts)->rows().left_out().overlong, 1);
}

TEST_F(PromptsTest, ThatAreTooLongAreNamedByLineWhereTheyAreNotLeftOut) {
  data().set_prompt_max_len(20);
  const std::string error = Error(
      "{\"question\": \"a\", \"answer\": \"1\"}\n{\"question\": \"0123456789012345678901\", \"answer\": \"1\"}\n");
  EXPECT_EQ(error, "data.prompt_data: " + data().prompt_data(0) +
                       " line 2: the prompt has 22 tokens, more than data.prompt_max_len (20)");
}

TEST_F(PromptsTest, WithoutATokenAreRefused) {
  const std::string error = Error("{\"question\": \"\", \"answer\": \"1\"}\n");
  EXPECT_THAT(error, HasSubstr(data().prompt_data(0) + " line 1: the prompt has no token"));
}

TEST_F(PromptsTest, NeedLabelsForRulesThatReadThem) {
  const std::string line = "{\"question\": \"a\"}\n";
  EXPECT_THAT(Error(line), HasSubstr("line 1: has no field \"answer\" (data.label_key: the rules of the reward compare "
                                     "with it); it has: question"));
  config_.mutable_reward()->mutable_source(0)->set_rule("finished");
  const auto prompts = Load(line);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ((*prompts)[0].label, "");
}

TEST_F(PromptsTest, AreFoundUnderTheKeyThatAnOptionNames) {
  EXPECT_THAT(Error("{\"prompt\": \"a\", \"answer\": \"b\"}\n"),
              HasSubstr("has no field \"question\" (data.input_key); it has: prompt, answer"));
}

TEST_F(PromptsTest, KnowWhereTheyAreFrom) {
  Write(R"({"question": "1", "answer": "1", "data_source": "openai/gsm8k"})", "mixed.jsonl");
  Write(R"({"question": "2", "answer": "1"})", "other.jsonl");
  std::vector<PromptRecord> prompts = Load().value();
  EXPECT_EQ(prompts[0].source, "openai/gsm8k");
  EXPECT_EQ(prompts[1].source, "other");
  EXPECT_THAT((*Prompts::Open(config_, tokenizer_))->sources(), ElementsAre("openai/gsm8k", "other"));
}

TEST_F(PromptsTest, GiveProgramsTheRestOfTheirRows) {
  constexpr char kRow[] = R"({"question": "1", "answer": "2", "level": 3, "tests": ["a", {"b": null}]})";
  EXPECT_EQ(Load(std::string(kRow) + "\n").value()[0].row, "") << "nobody reads it";
  config_.mutable_reward()->mutable_source(0)->clear_rule();
  config_.mutable_reward()->mutable_source(0)->set_command("./judge");
  EXPECT_EQ(Load(std::string(kRow) + "\n").value()[0].row, R"({"level": 3, "tests": ["a", {"b": null}]})");
}

TEST_F(PromptsTest, OfWhichARowLacksTheLabelThatIsAskedForAreRefused) {
  config_.mutable_reward()->mutable_source(0)->clear_rule();
  config_.mutable_reward()->mutable_source(0)->set_command("./judge");
  data().set_label_required(true);
  EXPECT_THAT(Error("{\"question\": \"a\"}\n"),
              HasSubstr("has no field \"answer\" (data.label_key; data.label_required=false where rows may lack it)"));
  data().set_label_required(false);
  EXPECT_EQ(Load("{\"question\": \"a\"}\n").value()[0].label, "");
}

TEST_F(PromptsTest, HaveLabelsThatAreListsAndObjectsWhereASourceReadsThemAsJson) {
  const std::string list = "{\"question\": \"a\", \"answer\": [\"assert f(1) == 1\"]}\n";
  EXPECT_THAT(Error(list), HasSubstr("field \"answer\""));
  EXPECT_THAT(Error(list), HasSubstr("is a list or an object"));
  config_.mutable_reward()->mutable_source(0)->clear_rule();
  config_.mutable_reward()->mutable_source(0)->set_code("python");
  EXPECT_EQ(Load(list).value()[0].label, R"j(["assert f(1) == 1"])j");
  constexpr char kTests[] = R"({"inputs": [[354224848179261915075]], "outputs": [1], "fn_name": "f"})";
  EXPECT_EQ(Load(R"({"question": "a", "answer": )" + std::string(kTests) + "}\n").value()[0].label, kTests);
}

TEST_F(PromptsTest, HaveLabelsOfAnyKindWhereNoSourceReadsThem) {
  RewardSource* source = config_.mutable_reward()->mutable_source(0);
  source->set_rule("finished");
  const std::string list = "{\"question\": \"a\", \"answer\": [\"4\"]}\n";
  EXPECT_EQ(Load(list).value()[0].label, R"(["4"])");
}

TEST_F(PromptsTest, HaveLabelsOfTheKindThatTheSourcesForThemRead) {
  RewardSource* source = config_.mutable_reward()->mutable_source(0);
  source->add_only("gsm8k");
  config_.mutable_reward()->add_source()->set_rule("finished");
  const auto row = [](const std::string& from, const std::string& label) {
    return R"({"question": "a", "data_source": ")" + from + R"(", "answer": )" + label + "}\n";
  };
  const std::string list = R"(["4"])";
  EXPECT_EQ(Load(row("chat", list) + row("gsm8k", "4")).value()[0].label, list) << "no source for it reads labels";
  EXPECT_THAT(Error(row("chat", list) + row("gsm8k", list)),
              HasSubstr("line 2: field \"answer\" (data.label_key) is a list or an object; a string, a number"));
  RewardSource* code = config_.mutable_reward()->add_source();
  code->set_rule("json_field");
  code->set_field("x");
  code->add_only("json");
  EXPECT_EQ(Load(row("json", list)).value()[0].label, list);
  EXPECT_THAT(Error(row("gsm8k", list)), HasSubstr("is a list or an object")) << "a source of others reads JSON";
}

TEST_F(PromptsTest, WhoseAnswersAreReadWithoutTheDelimiterOfTheirReasoningAreRefused) {
  constexpr char kLine[] = "{\"question\": \"a\", \"answer\": \"1\"}\n";
  RewardSource* source = config_.mutable_reward()->mutable_source(0);
  source->set_reasoning_delimiter("</think>");
  EXPECT_TRUE(Load(kLine).ok());
  const std::string end(1, static_cast<char>(ByteTokenizer::kEnd));
  for (const std::string& delimiter : {end, "so" + end}) {
    source->set_reasoning_delimiter(delimiter);
    const std::string error = Error(kLine);
    EXPECT_THAT(error, HasSubstr("reward.source[0].reasoning_delimiter is "));
    EXPECT_THAT(error, HasSubstr("and \"<end>\" is a special token of the tokenizer's"));
    EvalSet set;
    set.set_data(data().prompt_data(0));
    set.set_input_key("question");
    set.set_label_key("answer");
    EXPECT_EQ(ReadHeldOutPrompts(set, "eval.data", config_, tokenizer_).status().message(), error);
  }
}

TEST_F(PromptsTest, OfMoreThanAHundredSourcesAreFromOthers) {
  std::string lines;
  for (int i = 0; i < 150; ++i) {
    lines += "{\"question\": \"1\", \"answer\": \"1\", \"data_source\": \"" + std::to_string(i) + "\"}\n";
  }
  const std::vector<PromptRecord> prompts = Load(lines).value();
  EXPECT_EQ(prompts[99].metrics_source, "99");
  EXPECT_EQ(prompts[100].metrics_source, "other");
  EXPECT_EQ(prompts[100].source, "100");
}

TEST_F(PromptsTest, WhoseLabelsARuleCannotReadAreNamedByLine) {
  const std::string good = "{\"question\": \"1\", \"answer\": \"2\"}\n";
  const std::string bad = "{\"question\": \"1\", \"answer\": \"two\"}\n";
  const std::string error = Error(good + bad);
  EXPECT_EQ(error,
            "data.prompt_data: " + data().prompt_data(0) +
                " line 2: label \"two\" is no number, which rule \"number\" needs: such as 72, -1,234.5, 3/4, or "
                "text with \"#### 72\" or \\boxed{72}");
  EvalSet set;
  set.set_data(scratch_.Write("held_out.jsonl", good + bad));
  set.set_input_key("question");
  set.set_label_key("answer");
  EXPECT_THAT(std::string(ReadHeldOutPrompts(set, "eval.data", config_, tokenizer_).status().message()),
              HasSubstr("eval.data: " + set.data() + " line 2: label \"two\" is no number"));
  data().set_skip_malformed(true);
  EXPECT_EQ(Load(good + bad)->size(), 1);
  EXPECT_THAT(ReadHeldOutPrompts(set, "eval.data", config_, tokenizer_)->description, HasSubstr("1 not well-formed"));
  config_.mutable_reward()->mutable_source(0)->set_rule("exact_match");
  EXPECT_EQ(Load(good + bad)->size(), 2);
}

TEST_F(PromptsTest, WhoseLabelsARuleCannotReadAreLeftOutBehindTheCheckedRowsToo) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += "{\"question\": \"" + std::to_string(i) + "\", \"answer\": \"" + (i % 4 == 3 ? "none" : "1") + "\"}\n";
  }
  Write(lines);
  data().set_checked_rows(2);
  data().set_shuffle(true);
  auto prompts = Prompts::Open(config_, tokenizer_);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_THAT(std::string((*prompts)->Take(0, 40).status().message()),
              HasSubstr(": label \"none\" is no number, which rule \"number\" needs"));
  data().set_skip_malformed(true);
  prompts = Prompts::Open(config_, tokenizer_);
  const auto taken = (*prompts)->Take(0, 40);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size(), 40);
  for (const auto& prompt : *taken) EXPECT_EQ(prompt->label, "1");
  EXPECT_GE((*prompts)->rows().left_out().malformed, 10);
}

TEST_F(PromptsTest, NeedTheLabelsThatSourcesForThemCompareWith) {
  RewardSource* const number = config_.mutable_reward()->mutable_source(0);
  number->add_only("math");
  config_.mutable_reward()->add_source()->set_rule("finished");
  config_.mutable_reward()->mutable_source(1)->add_only("chat");
  const auto row = [](const std::string& source, const std::string& more = "") {
    return R"({"question": "1", "data_source": ")" + source + "\"" + more + "}\n";
  };
  const auto prompts = Load(row("chat") + row("math", R"(, "answer": "1")"));
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ((*prompts)[0].label, "");
  EXPECT_THAT(Error(row("chat") + row("math")), HasSubstr("line 2: label \"\" is no number"));
  EXPECT_THAT(Error(row("poems")), HasSubstr("line 1: the prompt is from \"poems\""));
  const auto error = [&](const std::set<std::string>& sources) {
    return std::string(CheckOnly(config_.reward(), sources).message());
  };
  EXPECT_EQ(error({"math", "chat", "code"}), "");
  EXPECT_EQ(error({"maths", "chat"}),
            "reward.source[0].only is \"math\", and no prompt is from there (data.source_key); "
            "prompts are from: chat, maths");
}

TEST_F(PromptsTest, OfParquetAreReadInTheFormsOfDataSets) {
  config_.mutable_reward()->mutable_source(0)->set_rule("math");
  data().set_apply_chat_template(true);
  data().set_input_key("prompt");
  data().set_label_key("reward_model.ground_truth");
  data().add_prompt_data("core/data/testdata/verl.parquet");
  const std::vector<PromptRecord> prompts = Load().value();
  ASSERT_EQ(prompts.size(), 70);
  EXPECT_EQ(prompts[3].label, "6");
  EXPECT_EQ(prompts[3].source, "openai/gsm8k");
  EXPECT_TRUE(prompts[3].text.starts_with("[user]What is 3 + 3?\nThink"));
}

TEST_F(PromptsTest, AreTheSameOnesFromAnyPositionByTheSeedAlone) {
  data().set_shuffle(true);
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += "{\"question\": \"" + std::to_string(i) + "\", \"answer\": \"1\"}\n";
  Write(lines);
  const auto texts = [&](int64_t begin, int64_t count) {
    std::vector<std::string> taken;
    const auto prompts = Prompts::Open(config_, tokenizer_);
    const auto records = (*prompts)->Take(begin, count);
    EXPECT_TRUE(records.ok()) << records.status();
    for (const auto& record : *records) taken.push_back(record->text);
    return taken;
  };
  const std::vector<std::string> whole = texts(0, 24);
  EXPECT_EQ(texts(7, 9), std::vector<std::string>(whole.begin() + 7, whole.begin() + 16));
  std::vector<std::string> epoch = texts(10, 10), first = texts(0, 10);
  EXPECT_NE(epoch, first);
  std::sort(epoch.begin(), epoch.end());
  std::sort(first.begin(), first.end());
  EXPECT_EQ(epoch, first);
  config_.set_seed(1);
  EXPECT_NE(texts(0, 24), whole);
}

TEST_F(PromptsTest, AreToldApartByTheirHash) {
  const auto hash = [&](const std::string& question, const std::string& more) {
    data().clear_prompt_data();
    Write("{\"question\": \"" + question + "\", \"answer\": \"1\"}\n" + more);
    return (*Prompts::Open(config_, tokenizer_))->hash();
  };
  const uint64_t a = hash("a", "");
  EXPECT_EQ(hash("a", ""), a);
  EXPECT_NE(hash("b", ""), a);
  data().set_checked_rows(1);
  const std::string one = R"({"question": "1", "answer": "1"})", two = R"({"question": "2", "answer": "1"})";
  EXPECT_EQ(hash("a", one), hash("a", one));
  EXPECT_NE(hash("a", one), hash("a", two)) << "of rows that are not checked, too";
}

}  // namespace
}  // namespace quartet
