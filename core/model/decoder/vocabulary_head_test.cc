// Against the same formulas written out over the whole tokens x vocabulary tensor, in float64, with autograd.
#include "core/model/decoder/vocabulary_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "core/kernels/linear.h"
#include "core/memory/accounted_tensor.h"
#include "core/rl/losses.h"

namespace quartet {
namespace {

constexpr int64_t kTokens = 23, kHidden = 16, kVocabulary = 57;

// Bytes of as many tokens' logits.
constexpr int64_t Logits(int64_t tokens) { return tokens * kVocabulary * 4; }

struct Case {
  at::Tensor hidden = at::randn({kTokens, kHidden});
  at::Tensor head = at::randn({kVocabulary, kHidden});
  at::Tensor targets = at::randint(kVocabulary, {kTokens}, at::kLong);
  at::Tensor upstream = at::randn({kTokens});  // gradient that arrives at each log-probability
};

struct Expected {
  at::Tensor log_prob, entropy, hidden_grad, head_grad;
};

Expected WrittenOut(const Case& c, double temperature) {
  const at::Tensor hidden = c.hidden.to(at::kDouble).detach().set_requires_grad(true);
  const at::Tensor head = c.head.to(at::kDouble).detach().set_requires_grad(true);
  const at::Tensor logits = hidden.matmul(head.t());
  const at::Tensor log_prob = at::log_softmax(logits / temperature, -1).gather(1, c.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor at_1 = at::log_softmax(logits, -1).detach();
  (log_prob * c.upstream).sum().backward();
  return {log_prob.detach(), -(at_1.exp() * at_1).sum(-1), hidden.grad(), head.grad()};
}

double Difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

class Temperatures : public testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Some, Temperatures, testing::Values(1.0, 0.5, 2.0));

TEST_P(Temperatures, GiveWhatTheWrittenOutFormulasGive) {
  const Case c;
  const Expected expected = WrittenOut(c, GetParam());
  for (const int64_t chunk : {1, 7, 23, 100}) {
    const at::Tensor hidden = c.hidden.clone().set_requires_grad(true);
    const at::Tensor head = c.head.clone().set_requires_grad(true);
    const TokenLogProbs result = ChunkedLogProbs(hidden, head, c.targets, GetParam(), {.wanted = true}, Logits(chunk));
    EXPECT_EQ(result.log_prob_T.scalar_type(), at::kFloat);
    EXPECT_LT(Difference(result.log_prob_T, expected.log_prob), 1e-5);
    EXPECT_LT(Difference(result.entropy_T, expected.entropy), 1e-5);
    EXPECT_FALSE(result.entropy_T.requires_grad());
    (result.log_prob_T * c.upstream).sum().backward();
    EXPECT_LT(Difference(hidden.grad(), expected.hidden_grad), 1e-5);
    EXPECT_LT(Difference(head.grad(), expected.head_grad), 1e-5);
  }
}

TEST_P(Temperatures, LeaveRoundingAloneInFloat64) {
  Case c;
  c.hidden = c.hidden.to(at::kDouble);
  c.head = c.head.to(at::kDouble);
  c.upstream = c.upstream.to(at::kDouble);
  const Expected expected = WrittenOut(c, GetParam());
  const at::Tensor hidden = c.hidden.clone().set_requires_grad(true);
  const at::Tensor head = c.head.clone().set_requires_grad(true);
  const TokenLogProbs result = ChunkedLogProbs(hidden, head, c.targets, GetParam(), {.wanted = true}, Logits(16));
  EXPECT_LT(Difference(result.log_prob_T, expected.log_prob), 1e-13);
  EXPECT_LT(Difference(result.entropy_T, expected.entropy), 1e-13);
  (result.log_prob_T * c.upstream).sum().backward();
  EXPECT_LT(Difference(hidden.grad(), expected.hidden_grad), 1e-13);
  EXPECT_LT(Difference(head.grad(), expected.head_grad), 1e-13);
}

// Gradients that arrive at log-probabilities and at entropies, of softmax(logits / entropy_temperature).
Expected WrittenOutWithEntropy(const Case& c, const at::Tensor& entropy_upstream, double temperature,
                               double entropy_temperature) {
  const at::Tensor hidden = c.hidden.to(at::kDouble).detach().set_requires_grad(true);
  const at::Tensor head = c.head.to(at::kDouble).detach().set_requires_grad(true);
  const at::Tensor logits = hidden.matmul(head.t());
  const at::Tensor log_prob = at::log_softmax(logits / temperature, -1).gather(1, c.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor log_p = at::log_softmax(logits / entropy_temperature, -1);
  const at::Tensor entropy = -(log_p.exp() * log_p).sum(-1);
  ((log_prob * c.upstream).sum() + (entropy * entropy_upstream).sum()).backward();
  return {log_prob.detach(), entropy.detach(), hidden.grad(), head.grad()};
}

TEST_P(Temperatures, GiveTheGradientOfEntropyToo) {
  for (const double entropy_temperature : {1.0, GetParam()}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      Case c;
      c.hidden = c.hidden.to(type);
      c.head = c.head.to(type);
      c.upstream = c.upstream.to(type);
      const at::Tensor entropy_upstream = at::randn({kTokens}).to(type);
      const double tolerance = type == at::kFloat ? 1e-5 : 1e-13;
      const Expected expected = WrittenOutWithEntropy(c, entropy_upstream, GetParam(), entropy_temperature);
      for (const int64_t chunk : {7, 100}) {
        const at::Tensor hidden = c.hidden.clone().set_requires_grad(true);
        const at::Tensor head = c.head.clone().set_requires_grad(true);
        const TokenLogProbs result = ChunkedLogProbs(
            hidden, head, c.targets, GetParam(),
            {.wanted = true, .temperature = entropy_temperature, .differentiable = true}, Logits(chunk));
        EXPECT_LT(Difference(result.entropy_T, expected.entropy), tolerance);
        ((result.log_prob_T * c.upstream).sum() + (result.entropy_T * entropy_upstream).sum()).backward();
        EXPECT_LT(Difference(hidden.grad(), expected.hidden_grad), tolerance);
        EXPECT_LT(Difference(head.grad(), expected.head_grad), tolerance);
      }
    }
  }
}

TEST(ChunkedLogProbs, KeepsBfloat16GradientsInTheirType) {
  Case c;
  c.hidden = c.hidden.to(at::kBFloat16);
  c.head = c.head.to(at::kBFloat16);
  const Expected expected = WrittenOut(c, 1);
  const at::Tensor hidden = c.hidden.clone().set_requires_grad(true);
  const at::Tensor head = c.head.clone().set_requires_grad(true);
  const TokenLogProbs result = ChunkedLogProbs(hidden, head, c.targets, 1, {.wanted = true}, Logits(8));
  EXPECT_EQ(result.log_prob_T.scalar_type(), at::kFloat);
  EXPECT_LT(Difference(result.log_prob_T, expected.log_prob), 1e-2);
  (result.log_prob_T * c.upstream).sum().backward();
  EXPECT_EQ(hidden.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(head.grad().scalar_type(), at::kBFloat16);
  EXPECT_LT(Difference(hidden.grad(), expected.hidden_grad), 2e-2);
  EXPECT_LT(Difference(head.grad(), expected.head_grad), 2e-2);
}

TEST(ChunkedLogProbs, WeighsRowsBehindTheVocabularyWithNothing) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const Case c;
    const at::Tensor head = c.head.to(type), hidden = c.hidden.to(type);
    // Ten rows that copy a token's.
    const at::Tensor padded = at::cat({head, head.slice(0, 3, 4).expand({10, kHidden})}).contiguous();
    const auto compute = [&](const at::Tensor& weight) {
      struct {
        at::Tensor log_prob, entropy, hidden_grad, head_grad;
      } out;
      const at::Tensor x = hidden.clone().set_requires_grad(true), w = weight.clone().set_requires_grad(true);
      const TokenLogProbs now =
          ChunkedLogProbs(x, w, HeadTargets{.vocabulary = kVocabulary, .ids_A = c.targets}, 0.7,
                          {.wanted = true, .temperature = 1.3, .differentiable = true}, Logits(7));
      ((now.log_prob_T * c.upstream.to(now.log_prob_T.scalar_type())).sum() + now.entropy_T.sum()).backward();
      out = {now.log_prob_T.detach(), now.entropy_T.detach(), x.grad(), w.grad()};
      return out;
    };
    const auto cut = compute(head), found = compute(padded);
    // LibTorch's products of other types have bits that depend on the number of rows.
    if (UsesGemm(head)) {
      EXPECT_TRUE(at::equal(found.log_prob, cut.log_prob)) << type;
      EXPECT_TRUE(at::equal(found.entropy, cut.entropy)) << type;
    }
    const double rounding = type == at::kBFloat16 ? 1e-2 : 1e-5;
    EXPECT_LT(Difference(found.log_prob, cut.log_prob), rounding);
    EXPECT_LT(Difference(found.entropy, cut.entropy), rounding);
    EXPECT_LT(Difference(found.hidden_grad, cut.hidden_grad), rounding);
    EXPECT_LT(Difference(found.head_grad.slice(0, 0, kVocabulary), cut.head_grad), rounding);
    EXPECT_EQ(found.head_grad.slice(0, kVocabulary).abs().max().item<double>(), 0);
    EXPECT_THROW(ChunkedLogProbs(c.hidden, at::cat({c.head, c.head}),
                                 HeadTargets{.vocabulary = 5, .ids_A = at::full({kTokens}, 5, at::kLong)}, 1, {}),
                 c10::Error);
  }
}

TEST(ChunkedLogProbs, LeavesOutWhatIsNotAskedFor) {
  const Case c;
  EXPECT_FALSE(ChunkedLogProbs(c.hidden, c.head, c.targets, 1, {}).entropy_T.defined());
  const at::Tensor hidden = c.hidden.clone().set_requires_grad(true);  // a frozen head
  ChunkedLogProbs(hidden, c.head, c.targets, 1, {}).log_prob_T.sum().backward();
  EXPECT_TRUE(hidden.grad().defined());
}

TEST(ChunkedLogProbs, GivesTheSameGradientsWhereAGraphIsGoneThroughOnceMore) {
  const Case c;
  const at::Tensor hidden = c.hidden.clone().set_requires_grad(true);
  const at::Tensor head = c.head.clone().set_requires_grad(true);
  const at::Tensor loss = (ChunkedLogProbs(hidden, head, c.targets, 1, {}, Logits(10)).log_prob_T * c.upstream).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor hidden_grad = hidden.grad().clone(), head_grad = head.grad().clone();
  hidden.mutable_grad() = head.mutable_grad() = at::Tensor();
  loss.backward();
  EXPECT_TRUE(hidden.grad().equal(hidden_grad));
  EXPECT_TRUE(head.grad().equal(head_grad));
}

TEST(ChunkedLogProbs, ReadsTheLogitsOfARowOnceForAllItsTargets) {
  const std::vector<int64_t> rows = {5, 3, 5, 5, 0, 3, 22}, ids = {1, 2, 1, 7, 8, 56, 0};
  const at::Tensor rows_A = at::tensor(rows, at::kLong), ids_A = at::tensor(ids, at::kLong);
  const HeadTargets targets = MakeHeadTargets(rows, ids, at::kCPU);
  EXPECT_EQ(targets.rows_U.numel(), 4);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t chunk : {1, 2, 100}) {
      Case c;
      c.hidden = c.hidden.to(type);
      c.head = c.head.to(type);
      const at::Tensor upstream = at::randn({7}), entropy_upstream = at::randn({7});
      const at::Tensor wide_hidden = c.hidden.to(at::kDouble);
      Case repeated = c;
      repeated.hidden = wide_hidden.index_select(0, rows_A);
      repeated.targets = ids_A;
      repeated.upstream = upstream;
      const Expected expected = WrittenOutWithEntropy(repeated, entropy_upstream, 0.7, 1.0);
      const at::Tensor hidden_grad = at::zeros_like(wide_hidden).index_add(0, rows_A, expected.hidden_grad);

      const at::Tensor hidden = c.hidden.clone().set_requires_grad(true);
      const at::Tensor head = c.head.clone().set_requires_grad(true);
      const TokenLogProbs found =
          ChunkedLogProbs(hidden, head, targets, 0.7, {.wanted = true, .differentiable = true}, Logits(chunk));
      const TokenLogProbs each = ChunkedLogProbs(hidden.index_select(0, rows_A), head, ids_A, 0.7, {.wanted = true});
      if (UsesGemm(c.head)) {  // else sums are LibTorch's, in another order for other numbers of rows
        EXPECT_TRUE(found.log_prob_T.equal(each.log_prob_T)) << type;
        EXPECT_TRUE(found.entropy_T.equal(each.entropy_T)) << type;
      }
      ((found.log_prob_T * upstream).sum() + (found.entropy_T * entropy_upstream).sum()).backward();
      const double tolerance = type == at::kDouble ? 1e-13 : type == at::kFloat ? 1e-5 : 2e-2;
      EXPECT_LT(Difference(found.log_prob_T, expected.log_prob), tolerance) << type;
      EXPECT_LT(Difference(found.entropy_T, expected.entropy), tolerance) << type;
      EXPECT_LT(Difference(hidden.grad(), hidden_grad), tolerance) << type;
      EXPECT_LT(Difference(head.grad(), expected.head_grad), tolerance) << type;
    }
  }
}

TEST(ChunkedLogProbs, TakesNoTokens) {
  const Case c;
  const TokenLogProbs result =
      ChunkedLogProbs(c.hidden.slice(0, 0, 0), c.head, c.targets.slice(0, 0, 0), 1, {.wanted = true});
  EXPECT_EQ(result.log_prob_T.numel(), 0);
  EXPECT_EQ(result.entropy_T.numel(), 0);
}

TEST(ChunkedLogProbs, RefusesTargetsOutsideOfTheVocabulary) {
  for (const int64_t target : {int64_t{-1}, kVocabulary}) {
    Case c;
    c.targets[5] = target;
    EXPECT_THROW(ChunkedLogProbs(c.hidden, c.head, c.targets, 1, {}), c10::Error) << target;
  }
}

// What the logits' category holds at most while `work` runs.
template <typename Work>
int64_t PeakBytes(const Work& work) {
  Ledger ledger;
  {
    const MemoryScope scope(&ledger, MemoryCategory::kLogits);
    work();
  }
  EXPECT_EQ(ledger.current(MemoryCategory::kLogits), 0);
  return ledger.peak(MemoryCategory::kLogits);
}

class Peaks : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, Peaks, testing::Values(at::kFloat, at::kBFloat16));

TEST_P(Peaks, DoNotGrowWithTheNumberOfTokens) {
  constexpr int64_t kWords = 4000, kSmallHidden = 8;
  constexpr int64_t kChunk = int64_t{100} * kWords * 4;  // 100 tokens: even 256 are more than one chunk
  const at::Tensor head = at::randn({kWords, kSmallHidden}).to(GetParam()).set_requires_grad(true);
  // Beside the logits: the head's gradient, in fp32 and its own type, and what a widened part of the head needs.
  constexpr int64_t kOfHead = 3 * kWords * kSmallHidden * 4;
  constexpr double kTemperature = 0.7;  // not 1: scaled logits are one temporary more
  int64_t forward_at_256 = 0, backward_at_256 = 0;
  for (const int64_t tokens : {256, 1024, 4096}) {
    const at::Tensor hidden = at::randn({tokens, kSmallHidden}).to(GetParam()).set_requires_grad(true);
    const at::Tensor targets = at::randint(kWords, {tokens}, at::kLong);
    const at::Tensor weights = at::randn({tokens});
    // One number a token, and one a token and hidden dimension, that go in or come out.
    const int64_t of_tokens = tokens * (kSmallHidden * 4 * 2 + 64);
    const int64_t log_prob = PeakBytes([&] {
      const at::NoGradGuard no_grad;
      ChunkedLogProbs(hidden, head, targets, kTemperature, {}, kChunk);
    });
    const int64_t entropy = PeakBytes([&] {
      const at::NoGradGuard no_grad;
      ChunkedLogProbs(hidden, head, targets, kTemperature, {.wanted = true}, kChunk);
    });
    const int64_t sft = PeakBytes([&] {
      const TokenLogProbs out = ChunkedLogProbs(hidden, head, targets, kTemperature, {.wanted = true}, kChunk);
      SftLoss(out.log_prob_T, weights).backward();
      hidden.mutable_grad() = at::Tensor();
      head.mutable_grad() = at::Tensor();
    });
    EXPECT_GE(log_prob, kChunk) << "nothing was counted";
    EXPECT_LE(log_prob, 2 * kChunk + kOfHead + of_tokens) << tokens;
    EXPECT_LE(entropy, 2 * kChunk + kOfHead + of_tokens) << tokens;
    EXPECT_LE(sft, 2 * kChunk + kOfHead + of_tokens) << tokens;
    if (tokens == 256) {
      forward_at_256 = entropy;
      backward_at_256 = sft;
    } else {
      EXPECT_LE(entropy, forward_at_256 + of_tokens);
      EXPECT_LE(sft, backward_at_256 + of_tokens);
    }
  }
}

}  // namespace
}  // namespace quartet
