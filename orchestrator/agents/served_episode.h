// One episode of an agent as it is served: its requests over HTTP, the turns that they make, what it leaves.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time/stopwatch.h"
#include "core/http/http_server.h"
#include "core/openai/openai_request.h"
#include "orchestrator/agents/call_gate.h"
#include "orchestrator/agents/episode.h"
#include "orchestrator/agents/episode_record.h"
#include "proto/rollout.pb.h"

namespace quartet {

// Draws one answer to a prompt as the header says: a sequence as GeneratedReplies (core/clients/replies.h)
// takes them. It ends soon once the token is requested to stop. RESOURCE_EXHAUSTED: there is no room for it now, and it
// is asked again until there is; any other error is ours, and the episode has failed. Called from many threads at once.
using GenerateFunction =
    std::function<absl::StatusOr<GeneratedSequence>(const GenerateHeader&, const Prompt&, const std::stop_token&)>;

struct EpisodeOptions {
  // Outlives the episodes. Where its chat template writes the day, that is a fixed one.
  const Tokenizer* tokenizer = nullptr;
  int64_t vocab_size = 0;
  std::string model;                   // what requests call it
  std::vector<int32_t> end_token_ids;  // that end an answer
  int64_t max_len = 0;                 // tokens of a prompt and its answer together
  int64_t max_turns = 0;               // answers to requests of one episode that are delivered
  GenerateFunction generate;
  // Told of parameters that a request has and that have no effect (run_sampling.h).
  std::function<void(const std::vector<std::string>&)> on_set_aside;
};

// What requests are told whose episode is not open; 404.
absl::Status EpisodeIsClosed();

// Thread safe.
class ServedEpisode : public std::enable_shared_from_this<ServedEpisode> {
 public:
  // All that is pointed to outlives it: a request has a place of `reading` while it becomes a prompt, and one of `gate`
  // while that is answered. Answers are drawn as `generation` says (EpisodeServer::SetGeneration).
  ServedEpisode(const EpisodeOptions* options, CallGate* reading, CallGate* gate, uint64_t seed,
                GenerateHeader generation);

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
    bool shortened = false;  // its answer is shorter than the run's limits are, as the request says
  };
  struct Turn {
    std::vector<const std::string*> messages;  // of messages_, with the answer, where there is one
    std::string text;                          // of the answer
    bool truncated = false, overlong = false;  // EpisodeRecord
    bool delivered = false;                    // its answer
  };

  absl::StatusOr<Asked> Read(HttpRequest& request, const std::stop_token& give_up);
  // Under the lock.
  const std::string* Keep(const ChatMessage& message);
  absl::StatusOr<Asked> Ask(OpenAiChat chat);
  absl::StatusOr<GeneratedSequence> Generate(const Asked& asked, const std::stop_token& give_up);
  HttpReply Answer(Asked asked, GeneratedSequence drawn, const std::shared_ptr<Call>& call);
  void Unanswered(int64_t turn);
  void Undelivered(int64_t turn);

  const EpisodeOptions& options_;
  const ServedModel model_;
  CallGate& reading_;
  CallGate& gate_;
  const uint64_t seed_;
  const GenerateHeader generation_;
  std::stop_source closing_;

  std::mutex mutex_;
  std::condition_variable call_ended_;
  // Guarded by mutex_.
  Episode episode_;
  std::map<int64_t, Turn> turns_;  // by their names in episode_
  std::set<std::string>
      messages_;       // as OpenAI's interface has them, each once, though all requests of a conversation do
  int64_t calls_ = 0;  // that are under way
  Stopwatch busy_;     // since the first of them
  int64_t asked_ = 0;  // of max_turns: that have, or may still get, an answer
  EpisodeRecord record_;
};

}  // namespace quartet
