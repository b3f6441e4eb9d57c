#include "core/generation/sampling_params.h"

#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "core/service/rpc/message_size.h"
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
  EXPECT_EQ(Refusal([](auto* s) {
              for (int i = 0; i < 4097; ++i) s->add_stop_token_ids(7);
            }),
            "sampling.stop_token_ids is a list of 4097 ids; allowed: at most 4096");
  EXPECT_EQ(Refusal([](auto* s) {
              for (int i = 0; i < 32769; ++i) (*s->mutable_logit_bias())[i] = 1;
            }),
            "sampling.logit_bias is for 32769 tokens; allowed: at most 32768");
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

// What the engine answers of the longest answer that is allowed.
GeneratedSequence LargestAnswer(const SamplingParams& sampling, int64_t prompt_len, int32_t id) {
  const auto tell = [id](int32_t count, TokenAlternatives* out) {
    for (int32_t i = 0; i < count; ++i) {
      out->add_ids(id);
      out->add_log_probs(-1);
    }
  };
  GeneratedSequence answer;
  answer.set_prompt_index(~uint64_t{0});
  answer.set_stop_string(std::string(8192, 'x'));
  for (int64_t i = 0; i < prompt_len; ++i) {
    answer.mutable_tokens()->add_ids(id);
    answer.mutable_tokens()->add_action_mask(false);
    if (!sampling.has_prompt_logprobs()) continue;
    answer.add_prompt_log_probs(-1);
    if (sampling.prompt_logprobs() > 0) tell(sampling.prompt_logprobs(), answer.add_prompt_alternatives());
  }
  for (int32_t i = 0; i < sampling.max_new_tokens(); ++i) {
    answer.mutable_tokens()->add_ids(id);
    answer.mutable_tokens()->add_action_mask(true);
    answer.add_log_probs(-1);
    answer.add_sampled_log_probs(-1);
    answer.add_policy_versions((1 << 28) - 1);
    if (sampling.logprobs() > 0) tell(sampling.logprobs(), answer.add_alternatives());
  }
  return answer;
}

TEST(SamplingParams, AllowNoAnswerThatNoMessageHasRoomFor) {
  constexpr int64_t kVocabulary = 150'000;
  for (const int32_t logprobs : {0, 1, 20}) {
    for (const int32_t prompt_logprobs : {-1, 0, 20}) {
      const std::vector<int32_t> ids(10'000, kVocabulary - 1);
      SamplingParams sampling = Plain();
      sampling.set_logprobs(logprobs);
      if (prompt_logprobs >= 0) sampling.set_prompt_logprobs(prompt_logprobs);
      sampling.set_max_new_tokens(50'000);
      const int64_t bytes = LargestAnswer(sampling, std::ssize(ids), kVocabulary - 1).ByteSizeLong();
      const int64_t allowed = AnswerBytes(sampling, std::ssize(ids), sampling.max_new_tokens(), kVocabulary);
      EXPECT_LT(bytes, allowed);
      EXPECT_GT(bytes, allowed * 85 / 100) << "more is refused than needs to be";

      const int64_t most = MostNewTokens(sampling, std::ssize(ids), kVocabulary);
      EXPECT_LE(AnswerBytes(sampling, std::ssize(ids), most, kVocabulary), kMaxMessageBytes - 4096);
      EXPECT_GT(AnswerBytes(sampling, std::ssize(ids), most + 1, kVocabulary), kMaxMessageBytes - 4096);
      sampling.set_max_new_tokens(static_cast<int32_t>(most));
      EXPECT_TRUE(CheckPrompt(sampling, 0, ids, kVocabulary).ok());
      sampling.set_max_new_tokens(static_cast<int32_t>(most) + 1);
      EXPECT_TRUE(absl::IsInvalidArgument(CheckPrompt(sampling, 0, ids, kVocabulary)));
    }
  }
  SamplingParams sampling = Plain();
  EXPECT_GT(MostNewTokens(sampling, 100'000, kVocabulary), 8'000'000);
  sampling.set_prompt_logprobs(20);
  EXPECT_EQ(MostNewTokens(sampling, 10'000'000, kVocabulary), -1);
}

}  // namespace
}  // namespace quartet
