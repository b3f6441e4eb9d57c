#include "core/field_rules/field_rules.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
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

}  // namespace
}  // namespace quartet
