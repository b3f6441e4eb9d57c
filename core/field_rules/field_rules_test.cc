#include "core/field_rules/field_rules.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/field_rule.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::HasSubstr;

std::string ErrorIn(const std::string& text) {
  RunConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return std::string(CheckRules("", config).message());
}

TEST(FieldRules, FillWhatIsNotSetInTheMessagesThatAreThere) {
  RolloutConfig rollout;
  rollout.set_top_k(7);
  rollout.set_dtype("fp32");
  FillRules(&rollout);
  EXPECT_EQ(rollout.top_k(), 7);
  EXPECT_EQ(rollout.dtype(), "fp32");
  EXPECT_EQ(rollout.rollout_batch_size(), 128);
  EXPECT_EQ(rollout.kv_cache_bytes(), int64_t{1} << 30);
  EXPECT_FALSE(rollout.has_max_model_len()) << "it depends on others";
  EXPECT_FALSE(rollout.has_http());
  RunConfig config;
  config.mutable_reward()->add_source();
  config.mutable_algorithm();
  FillRules(&config);
  EXPECT_EQ(config.reward().source(0).weight(), 1);
  EXPECT_EQ(config.algorithm().eps_clip(), 0.2f);
  EXPECT_FALSE(config.has_data());
}

TEST(FieldRules, OfNumbersSayTheirRange) {
  EXPECT_EQ(ErrorIn("rollout { top_k: -2 }"), "rollout.top_k: -2 is not allowed; it must be at least -1");
  EXPECT_EQ(ErrorIn("rollout { top_p: 0 }"),
            "rollout.top_p: 0 is not allowed; it must be greater than 0 and at most 1");
  EXPECT_EQ(ErrorIn("rollout { max_calls: 16385 }"),
            "rollout.max_calls: 16385 is not allowed; it must be at least 1 and at most 16384");
  EXPECT_EQ(ErrorIn("actor { ema_decay: 1 }"), "actor.ema_decay: 1 is not allowed; it must be at least 0 and below 1");
  EXPECT_EQ(ErrorIn("actor { max_norm: nan }"), "actor.max_norm: nan is not allowed; it must be at least 0");
  EXPECT_EQ(ErrorIn("algorithm { reward_clip_min: -inf }"),
            "algorithm.reward_clip_min: -inf is not allowed; it must be a finite number");
  EXPECT_EQ(ErrorIn("data { prompt_max_len: 16777217 }"),
            "data.prompt_max_len: 16777217 is not allowed; it must be at least 1 and at most 16777216");
  EXPECT_EQ(ErrorIn("train { updates_per_batch: 0 }"),
            "train.updates_per_batch: 0 is not allowed; it must be at least 1");
  EXPECT_EQ(ErrorIn("rollout { top_p: 1 max_calls: 16384 } actor { ema_decay: 0 }"), "");
}

TEST(FieldRules, OfChoicesNameAll) {
  EXPECT_EQ(ErrorIn("actor { zero_stage: 1 }"), "actor.zero_stage: 1 is not allowed; allowed: 0, 2, 3");
  EXPECT_EQ(ErrorIn("actor { lr_scheduler: \"cos\" }"),
            "actor.lr_scheduler: \"cos\" is not allowed; allowed: \"constant\", \"linear\", \"cosine\"");
  EXPECT_THAT(ErrorIn("actor { dtype: \"fp16\" }"), HasSubstr("fp16 is not supported"));
}

TEST(FieldRules, HoldForEachOfAList) {
  EXPECT_EQ(ErrorIn("rollout { stop_token_ids: [1, -1] }"),
            "rollout.stop_token_ids: -1 is not allowed; it must be at least 0");
  EXPECT_EQ(ErrorIn("reward { source { weight: 1 } source { timeout_seconds: 0 } }"),
            "reward.source[1].timeout_seconds: 0 is not allowed; it must be greater than 0 and at most 86400");
}

void ForEachField(const Descriptor& message, const std::string& path,
                  const std::function<void(const FieldDescriptor&, const std::string&)>& body) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string place = absl::StrCat(path, path.empty() ? "" : ".", field.name());
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      ForEachField(*field.message_type(), place, body);
    } else {
      body(field, place);
    }
  }
}

TEST(FieldRules, AllowWhatTheyFillIn) {
  ForEachField(*RunConfig::descriptor(), "", [](const FieldDescriptor& field, const std::string& path) {
    const FieldRule& rule = field.options().GetExtension(field_rule);
    if (!rule.has_default_()) return;
    const std::unique_ptr<google::protobuf::Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(field.containing_type())->New());
    FillRules(message.get());
    EXPECT_TRUE(CheckRules("", *message).ok()) << CheckRules("", *message);
    EXPECT_TRUE(message->GetReflection()->HasField(*message, &field)) << path;
  });
}

// Rows of README's table: "| `rollout.top_p`, `top_k` | 1, -1 | meaning |". Of defaults that stand in no rule nothing
// can be said here.
TEST(FieldRules, AreWhatTheReadmeSays) {
  std::map<std::string, std::string> defaults;
  ForEachField(*RunConfig::descriptor(), "", [&](const FieldDescriptor& field, const std::string& path) {
    defaults[path] = field.options().GetExtension(field_rule).default_();
  });
  std::ifstream readme("README.md");
  std::stringstream all;
  all << readme.rdbuf();
  const std::vector<std::string> lines = absl::StrSplit(all.str(), '\n');
  auto line = std::find(lines.begin(), lines.end(), "| option | default | meaning |");
  ASSERT_NE(line, lines.end());
  int compared = 0;
  for (line += 2; line != lines.end() && absl::StartsWith(*line, "|"); ++line) {
    const std::vector<std::string> cells = absl::StrSplit(*line, '|');
    const std::vector<std::string> names = absl::StrSplit(cells[1], ','), said = absl::StrSplit(cells[2], ',');
    std::string section;
    for (size_t i = 0; i < names.size(); ++i) {
      std::string name(absl::StripAsciiWhitespace(names[i]));
      name = name.substr(1, name.size() - 2);  // without its quotes
      name = absl::StrReplaceAll(name, {{"<name>", "rollout"}});
      const size_t dot = name.rfind('.');
      if (dot != std::string::npos) section = name.substr(0, dot + 1);
      const std::string path = dot == std::string::npos ? section + name : name;
      ASSERT_TRUE(defaults.contains(path) || path == "reward.source" || path == "eval.set") << path;
      const std::string& rule = defaults[path];
      // One value for all names, or one for each.
      std::string value(absl::StripAsciiWhitespace(said.size() == 1 ? said[0] : said[i]));
      value = std::string(absl::StripSuffix(absl::StripPrefix(value, "`"), "`"));
      value = std::string(absl::StripSuffix(absl::StripPrefix(value, "\""), "\""));
      value = value.substr(0, value.find(" ("));
      if (value == "1 GiB") value = "1073741824";
      if (rule.empty() || value.empty()) continue;
      EXPECT_EQ(value, rule) << path;
      ++compared;
    }
  }
  EXPECT_GT(compared, 30);
}

}  // namespace
}  // namespace quartet
