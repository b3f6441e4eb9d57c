// The sampler's log-probabilities, as clients of OpenAI's interface read them.

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/openai/openai_request.h"
#include "core/openai/openai_response.h"
#include "core/openai/testing/generated_answers.h"
#include "core/openai/testing/openai_requests.h"
#include "core/tokenizer/testing/piece_tokenizer.h"
#include "gtest/gtest.h"
#include "rollout/engine/sampling/sampler.h"
#include "rollout/engine/sampling/sampling_rule.h"

namespace quartet {
namespace {

using nlohmann::json;

// tools/golden/make_vllm_golden.py
TEST(OpenAiLogProbs, HasTheLogprobsThatVllmReturnsForTheSameRequest) {
  std::vector<std::string> pieces;
  for (int id = 0; id < 60; ++id) pieces.push_back(absl::StrCat("<", id, ">"));
  const PieceTokenizer tokenizer(pieces);
  const ServedModel model = {
      .name = "tiny", .tokenizer = &tokenizer, .vocab_size = 60, .max_model_len = 64, .max_sequences = 100};
  std::ifstream file("rollout/engine/sampling/testdata/vllm_sampler.json");
  Sampler sampler;
  int cases = 0;
  for (const json& golden : json::parse(file)) {
    SCOPED_TRACE(cases);
    // The request has vLLM's names; all of its parameters but those of the log-probabilities are the case's.
    json body = {{"prompt", golden["prompt"]}, {"max_tokens", 20}, {"logprobs", 3}};
    for (const auto& [name, value] : golden.items()) {
      if (name == "temperature" || name.starts_with("top_") || name.starts_with("min_") || name.ends_with("penalty") ||
          name == "logit_bias") {
        body[name] = value;
      }
    }
    const absl::StatusOr<OpenAiRequest> request = ReadOpenAiRequest(false, body.dump(), model, kSeed);
    ASSERT_TRUE(request.ok()) << request.status();
    const SamplingRule rule = MakeSamplingRule(request->header.sampling());
    const auto logits = golden["logits"].get<std::vector<float>>();
    const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
    const auto before = golden["answer"].get<std::vector<int32_t>>();
    const auto stops = golden["stop_tokens"].get<std::vector<int32_t>>();
    SamplingHistory history{.prompt = prompt, .answer = before, .forbidden = {}};
    if (static_cast<int32_t>(before.size()) < request->header.sampling().min_tokens()) history.forbidden = stops;
    const auto token = sampler.Sample(logits, rule, history, NoiseKey(1, cases, 0, 0));
    ASSERT_TRUE(token.ok()) << token.status();
    ASSERT_TRUE(golden["sampled_log_probs"].contains(std::to_string(token->id)));

    OpenAiAnswer answer(*request, model, {});
    answer.Take(
        SequenceReply(0, 0, prompt, {{token->id, token->log_prob, token->alternatives}}, GeneratedSequence::LENGTH));
    const json whole = json::parse(answer.Whole());
    const json& told = whole.at("choices").at(0).at("logprobs");
    const auto expected = golden["raw_log_probs"].get<std::vector<double>>();
    EXPECT_NEAR(told.at("token_logprobs").at(0).get<double>(), expected[token->id], 1e-5);
    const json& top = told.at("top_logprobs").at(0);
    ASSERT_GE(top.size(), 3u);
    double least = 0;
    for (const auto& [text, log_prob] : top.items()) {
      const auto id = std::find(pieces.begin(), pieces.end(), text) - pieces.begin();
      EXPECT_NEAR(log_prob.get<double>(), expected.at(id), 1e-5);
      if (id != token->id) least = std::min(least, log_prob.get<double>());
    }
    EXPECT_LE(std::count_if(expected.begin(), expected.end(), [&](double p) { return p > least + 1e-5; }), 3);
    ++cases;
  }
  EXPECT_EQ(cases, 60);
}

}  // namespace
}  // namespace quartet
