#include "rollout/engine/sampling/sampling_params.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace quartet {
namespace {

SamplingParams Plain() {
  SamplingParams sampling;
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_max_new_tokens(10);
  sampling.set_n_samples(1);
  return sampling;
}

std::string Refusal(const std::function<void(SamplingParams*)>& spoil, bool reads_text = true) {
  SamplingParams sampling = Plain();
  spoil(&sampling);
  const absl::Status status = CheckSamplingParams(sampling, 50, reads_text);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(SamplingParams, AreRefusedByFieldValueAndWhatIsAllowed) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Refusal([](auto* s) { s->set_min_p(1.5f); }),
            "sampling.min_p is 1.5; allowed: at least 0 (off) and at most 1");
  EXPECT_EQ(Refusal([](auto* s) { s->set_min_p(-0.5f); }),
            "sampling.min_p is -0.5; allowed: at least 0 (off) and at most 1");
  EXPECT_EQ(Refusal([](auto* s) { s->set_min_tokens(11); }),
            "sampling.min_tokens is 11; allowed: 0 to max_new_tokens, which is 10");
  EXPECT_EQ(Refusal([](auto* s) { s->set_min_tokens(-1); }),
            "sampling.min_tokens is -1; allowed: 0 to max_new_tokens, which is 10");
  for (const float bad : {0.0f, -1.0f, infinity, NAN}) {
    EXPECT_NE(
        Refusal([bad](auto* s) { s->set_repetition_penalty(bad); }).find("; allowed: finite and above 0; 1 is off"),
        std::string::npos);
  }
  EXPECT_EQ(Refusal([](auto* s) { s->set_presence_penalty(2.5f); }),
            "sampling.presence_penalty is 2.5; allowed: -2 to 2");
  EXPECT_EQ(Refusal([](auto* s) { s->set_frequency_penalty(-3); }),
            "sampling.frequency_penalty is -3; allowed: -2 to 2");
  EXPECT_EQ(Refusal([](auto* s) { s->set_frequency_penalty(NAN); }).substr(0, 29), "sampling.frequency_penalty is");
  EXPECT_EQ(Refusal([](auto* s) { s->set_logprobs(21); }), "sampling.logprobs is 21; allowed: 0 to 20");
  EXPECT_EQ(Refusal([](auto* s) { (*s->mutable_logit_bias())[50] = 1; }),
            "sampling.logit_bias holds token 50; allowed: 0 to 49");
  EXPECT_EQ(Refusal([](auto* s) { (*s->mutable_logit_bias())[4] = -101; }),
            "sampling.logit_bias[4] is -101; allowed: -100 to 100");
  EXPECT_EQ(Refusal([](auto* s) { s->add_stop(""); }), "sampling.stop holds an empty string; allowed: any other");
  EXPECT_EQ(Refusal([](auto* s) {
              for (int i = 0; i < 129; ++i) s->add_stop("x");
            }),
            "sampling.stop is a list of 129 strings; allowed: at most 128");
  EXPECT_EQ(Refusal([](auto* s) {
              s->add_stop(std::string(8192, 'x'));
              s->add_stop("x");
            }),
            "sampling.stop is 8193 bytes of strings; allowed: at most 8192");
  EXPECT_EQ(Refusal([](auto* s) { s->add_stop("END"); }, /*reads_text=*/false),
            "sampling.stop holds \"END\", but the model's folder has no tokenizer to read text with");
}

TEST(SamplingParams, WithoutARepetitionPenaltyThereIsNone) {
  EXPECT_EQ(MakeSamplingRule(Plain()).repetition_penalty, 1);
  SamplingParams sampling = Plain();
  sampling.set_repetition_penalty(1.5f);
  (*sampling.mutable_logit_bias())[3] = 2;
  ASSERT_TRUE(CheckSamplingParams(sampling, 50, false).ok());
  const SamplingRule rule = MakeSamplingRule(sampling);
  EXPECT_EQ(rule.repetition_penalty, 1.5f);
  EXPECT_EQ(rule.logit_bias, (std::vector<std::pair<int32_t, float>>{{3, 2.0f}}));
}

}  // namespace
}  // namespace quartet
