// Chooses the next token from one row of logits. LibTorch-free.
//
// minimum length -> bias -> penalties -> temperature -> top-k and min-p -> top-p -> exponential race: of the tokens
// that are left, the one with the largest p / E, where E = -log(u) are independent exponential variables; token t wins
// with probability p_t. u is a pure function of (seed, prompt index, sample, position, token): a draw does not depend
// on the batch around it or on the machine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace quartet {

// Below this temperature sampling is greedy.
inline constexpr float kGreedyTemperature = 1e-5f;

struct SamplingRule {
  float temperature = 1;         // >= 0
  int32_t top_k = 0;             // <= 0: off. Ties with the k-th largest logit are kept.
  float top_p = 1;               // in (0, 1]; the smallest set of likeliest tokens with at least this mass is kept
  float min_p = 0;               // in [0, 1]; of the largest probability
  float repetition_penalty = 1;  // > 0
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t alternatives = 0;    // likeliest tokens to be told
  bool raw_log_probs = false;  // log-probabilities are those before the temperature
  bool greedy() const { return temperature < kGreedyTemperature; }
  // Of the log-probabilities that are told.
  float log_prob_temperature() const { return greedy() || raw_log_probs ? 1 : temperature; }
};

// What the logits of one place may be changed for. Ids are those of the vocabulary.
struct SamplingHistory {
  absl::Span<const int32_t> prompt;
  absl::Span<const int32_t> answer;
  absl::Span<const int32_t> forbidden;  // cannot come here
};

// What the noise of one drawn token depends on, mixed. `position` is the token's index in its sequence.
uint64_t NoiseKey(uint64_t seed, uint64_t prompt_index, int32_t sample, int64_t position);

struct SampledToken {
  int32_t id = 0;
  // Of `id` under softmax(logits / log_prob_temperature()).
  float log_prob = 0;
  // Of `id` under what was drawn from, after everything. Greedy: 0, since nothing else could have been chosen.
  float sampled_log_prob = 0;
  // With their log_prob, the likeliest first, the lower id among equals.
  std::vector<std::pair<int32_t, float>> alternatives;
};

// Holds scratch memory; one thread at a time.
class Sampler {
 public:
  // Logits are edited and cut in vLLM's order: forbidden tokens, bias, penalties, temperature, min_p, top_k, top_p.
  // `logits`: fp32, one a token of the vocabulary. Greedy takes the lowest id among equal largest logits. INTERNAL
  // where a logit is NaN or infinite upwards, or none is finite; INVALID_ARGUMENT where the rule leaves no token.
  absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const SamplingRule& rule,
                                      const SamplingHistory& history, uint64_t noise_key);

  // What Sample would tell of token `id`, had it been drawn, and of `alternatives` likeliest ones; sampled_log_prob is
  // not set.
  absl::StatusOr<SampledToken> Score(absl::Span<const float> logits, const SamplingRule& rule, int32_t id,
                                     int32_t alternatives);

  // What is wrong where the largest logit is not finite.
  static absl::Status NotFinite(float largest);
  // What is wrong where edits leave no token.
  static absl::Status NothingLeft();

 private:
  // Points `scaled` at values / temperature; returns the largest.
  float Scale(absl::Span<const float> values, float temperature, const float** scaled);
  void Edit(const SamplingRule& rule, const SamplingHistory& history);
  void FindAlternatives(absl::Span<const float> logits, int32_t count, std::vector<std::pair<int32_t, float>>* found);

  std::vector<float> edited_;    // logits after penalties
  std::vector<int32_t> counts_;  // of each token, all 0 between calls
  std::vector<float> scaled_;    // logits / temperature, where that is not 1
  std::vector<float> weights_;   // exp(scaled - largest)
  std::vector<float> sorted_;
  std::vector<int32_t> kept_;
};

}  // namespace quartet
