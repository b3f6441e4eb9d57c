// One episode of an agent as it is served: its requests over HTTP, the turns that they make, what it leaves.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/http/http_server.h"
#include "core/openai/openai_request.h"
#include "orchestrator/agents/call_gate.h"
#include "orchestrator/agents/episode.h"
#include "orchestrator/agents/episode_record.h"
#include "proto/rollout.pb.h"

namespace quartet {

// Draws one answer to a prompt as the header says: a sequence as GeneratedReplies (orchestrator/clients/replies.h)
// takes them. It ends soon once the token is requested to stop; any other error is ours, and the episode has failed.
// Called from many threads at once.
using GenerateFunction =
    std::function<absl::StatusOr<GeneratedSequence>(const GenerateHeader&, const Prompt&, const std::stop_token&)>;

struct EpisodeOptions {
  // Outlives the episodes. Where its chat template writes the day, that is a fixed one.
  const Tokenizer* tokenizer = nullptr;
  int64_t vocab_size = 0;
  std::string model;                   // what requests call it
  std::vector<int32_t> end_token_ids;  // that end an answer
  int64_t max_len = 0;                 // tokens of a prompt and its answer together
  int64_t max_turns = 0;               // requests of one episode that are answered
  // Of the run, with max_new_tokens of one answer. Its seed and n_samples have no effect.
  SamplingParams sampling;
  GenerateFunction generate;
  // Told of parameters that a request has and that have no effect (run_sampling.h).
  std::function<void(const std::vector<std::string>&)> on_set_aside;
};

// What requests are told whose episode is not open; 404.
absl::Status EpisodeIsClosed();

// Thread safe.
class ServedEpisode : public std::enable_shared_from_this<ServedEpisode> {
 public:
  // `options` and `gate` outlive it. Answers are drawn by `policy_version`.
  ServedEpisode(const EpisodeOptions* options, CallGate* gate, uint64_t seed, uint64_t policy_version);

  // The answer to a request for that of a chat.
  HttpReply Complete(HttpRequest& request, const std::stop_token& gone);
  // The reply to a request of it, noted where it is the fault of who called.
  HttpReply Refuse(HttpReply reply);
  // Gives up what is under way, and waits until its replies are sent. Once.
  EpisodeRecord Close();
  // The same without waiting.
  void GiveUp() { closing_.request_stop(); }

 private:
  // A request, until its reply is sent.
  class Call;
  // A prompt that is to be answered.
  struct Asked {
    OpenAiRequest request;
    int64_t turn = 0;
  };
  struct Turn {
    std::vector<ChatMessage> messages;  // with the answer, where there is one
    std::string text;                   // of the answer
    bool truncated = false;
    int64_t place = 0;  // among the answers; 0: it has none, or that was not delivered
  };

  absl::StatusOr<Asked> Ask(OpenAiChat chat);
  absl::StatusOr<GeneratedSequence> Generate(const Asked& asked, const std::stop_token& gone);
  HttpReply Answer(Asked asked, GeneratedSequence drawn, const std::shared_ptr<Call>& call);
  void Undelivered(int64_t turn);

  const EpisodeOptions& options_;
  const ServedModel model_;
  CallGate& gate_;
  const uint64_t seed_;
  const uint64_t policy_version_;
  std::stop_source closing_;

  std::mutex mutex_;
  std::condition_variable call_ended_;
  // Guarded by mutex_.
  Episode episode_;
  std::map<int64_t, Turn> turns_;  // by their names in episode_
  int64_t calls_ = 0;              // that are under way
  std::chrono::steady_clock::time_point busy_since_;
  int64_t asked_ = 0;  // of max_turns
  int64_t answers_ = 0;
  EpisodeRecord record_;
};

}  // namespace quartet
