// A rollout that is played, for tests of what stands before it: a dispatcher, and a thread in place of its rank.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time/deadline.h"
#include "core/tokenizer/testing/piece_tokenizer.h"
#include "rollout/calls/dispatcher.h"
#include "rollout/calls/rollout_backend.h"

namespace quartet {

// Answers " a b c d e f g h" to everything, until told otherwise.
class PlayedRollout final : public RolloutBackend {
 public:
  // max_num_seqs is 4.
  explicit PlayedRollout(int64_t max_waiting = 8, int64_t max_calls = 8, int64_t max_reply_bytes = int64_t{256} << 20)
      : dispatcher_({.ranks = 1,
                     .max_num_seqs = 4,
                     .max_waiting = max_waiting,
                     .max_calls = max_calls,
                     .max_guest_reply_bytes = max_reply_bytes}),
        rank_([this] { Work(); }) {}
  ~PlayedRollout() override {
    Close();
    rank_.join();
  }
  // As a service that stops.
  void Close() { dispatcher_.Close(); }

  std::atomic<bool> serving = true;
  std::atomic<bool> has_weights = true;
  std::atomic<bool> answers = true;  // else calls stay as they are
  std::atomic<int> cancelled = 0;    // calls
  std::atomic<int> asked = 0;        // calls, as they come
  absl::Status failure;              // of the first answer
  Dispatcher& dispatcher() { return dispatcher_; }

  absl::Status CheckServing() const override {
    return serving ? absl::OkStatus() : absl::UnavailableError("the rollout is still loading its model");
  }
  absl::Status CheckWeights() const override {
    return has_weights ? absl::OkStatus() : absl::FailedPreconditionError("the rollout has no weights");
  }
  absl::Status CheckHealth() const override {
    return has_weights ? absl::OkStatus() : absl::UnavailableError("the rollout's weights are released");
  }
  const Tokenizer* tokenizer() const override { return &tokenizer_; }
  int64_t vocab_size() const override { return tokenizer_.vocab_size(); }
  int64_t max_model_len() const override { return 32; }
  int64_t max_guest_sequences() const override { return dispatcher_.max_guest_sequences(); }
  int64_t max_guest_calls() const override { return dispatcher_.max_guest_calls(); }
  std::set<int32_t> eos_token_ids() const override { return {0}; }
  std::set<int32_t> stop_token_ids() const override { return {}; }
  absl::Status Check(const SamplingParams&, const std::vector<Prompt>& prompts) const override {
    if (prompts[0].ids_size() > 20) return absl::InvalidArgumentError("prompt 0: ids need 3 blocks of KV cache");
    return absl::OkStatus();
  }
  absl::Status CheckVersion(uint64_t) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<BlockingCall>> Begin(const GenerateHeader& header, std::vector<Prompt> prompts,
                                                      std::stop_token gone, uint64_t* version) override {
    *version = 7;
    ++asked;
    return BlockingCall::Begin(
        dispatcher_, header, std::move(prompts), [] { return absl::OkStatus(); }, std::move(gone),
        Dispatcher::Origin::kGuest);
  }
  absl::StatusOr<GenerationState> State(const Deadline&) override {
    GenerationState state;
    state.policy_version = 7;
    return state;
  }

 private:
  void Work() {
    std::vector<Dispatcher::WorkQueue> works;
    while (dispatcher_.Take(0, &works)) {
      for (const RankWork& work : works.front()) {
        RankEvents events;
        for (const CallPart& part : work.parts()) {
          for (const GenerateTask& task : part.tasks()) {
            for (int s = 0; answers && s < task.samples(); ++s) Answer(part, task, task.first_sample() + s, &events);
          }
        }
        cancelled += work.cancel_size();
        if (work.hold() > 0) events.add_events()->set_held(work.hold());
        dispatcher_.Answer(0, std::move(events));
      }
    }
  }
  void Answer(const CallPart& part, const GenerateTask& task, int sample, RankEvents* events) {
    GeneratedSequence sequence;
    sequence.set_prompt_index(task.prompt().index());
    sequence.set_sample(sample);
    *sequence.mutable_tokens()->mutable_ids() = task.prompt().ids();
    for (int32_t id = 1; id <= std::min(8, part.sampling().max_new_tokens()); ++id) {
      sequence.mutable_tokens()->add_ids(id);
      sequence.add_log_probs(-0.5f);
      TokenAlternatives likeliest;
      for (int i = 0; i < part.sampling().logprobs(); ++i) {
        likeliest.add_ids(i % 8 + 1);
        likeliest.add_log_probs(-0.5f - static_cast<float>(i));
      }
      if (part.sampling().logprobs() > 0) *sequence.add_alternatives() = likeliest;
      if (!part.stream_tokens()) continue;
      RankEvent& event = *events->add_events();
      event.set_call(part.call());
      event.mutable_tokens()->set_prompt_index(task.prompt().index());
      event.mutable_tokens()->set_sample(sample);
      event.mutable_tokens()->add_ids(id);
      event.mutable_tokens()->add_log_probs(-0.5f);
      if (part.sampling().logprobs() > 0) *event.mutable_tokens()->add_alternatives() = std::move(likeliest);
    }
    sequence.set_finish_reason(GeneratedSequence::LENGTH);
    RankEvent& event = *events->add_events();
    event.set_call(part.call());
    if (!failure.ok()) {
      event.mutable_error()->set_code(failure.raw_code());
      event.mutable_error()->set_message(std::string(failure.message()));
    } else {
      *event.mutable_sequence() = std::move(sequence);
    }
  }

  const PieceTokenizer tokenizer_{{"<end>", " a", " b", " c", " d", " e", " f", " g", " h", "hi", "user", ":", ";"}};
  Dispatcher dispatcher_;
  std::thread rank_;
};

}  // namespace quartet
