// From the requests of one agent to prompts by ids, and to the sequences that are trained on. No I/O, LibTorch-free.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// What is asked of a policy.
struct EpisodeRequest {
  int64_t turn = 0;  // its name in this episode: 0, 1, ...
  std::string text;  // of the prompt, as the template writes it
  std::vector<int32_t> prompt;
  int64_t repeats = 0;  // how many requests before it had this prompt
};

// What a policy drew behind a prompt.
struct DrawnAnswer {
  std::vector<int32_t> ids;  // with the end token, where one was drawn
  // One an id each: of the whole distribution, and of what was drawn from, after penalties and truncation.
  std::vector<float> log_probs;
  std::vector<float> sampled_log_probs;
};

// What an episode leaves to train on.
struct EpisodeSequence {
  int64_t last_turn = 0;  // the one that it ends with
  int64_t turns = 0;      // in it
  std::vector<int32_t> ids;
  std::vector<bool> is_action;  // as long as `ids`
  // One an action each.
  std::vector<float> log_probs;
  std::vector<float> sampled_log_probs;
};

// The requests of one agent and the answers to them, as a tree of turns: a turn goes on from another where its prompt
// begins with that one's prompt and with the ids that were drawn behind it, however these would be encoded again.
// Not thread safe.
class Episode {
 public:
  // `ends`: the tokens that end an answer. The tokenizer is used until the end of the episode.
  Episode(const Tokenizer* tokenizer, const std::vector<int32_t>& ends);

  // The prompt of a request for the answer to `messages`. `kwargs`, an object, is what the chat template is told beside
  // them, `tools` among it. Of what was answered earlier the client may have left out thoughts, white space at its ends
  // and the ids of calls, and may have written arguments otherwise: it is taken as it was answered. Errors are those of
  // Tokenizer::ApplyChatTemplate and Encode.
  absl::StatusOr<EpisodeRequest> Begin(std::vector<ChatMessage> messages, const nlohmann::ordered_json& kwargs);

  // What was drawn for a turn that Begin gave and that has no answer yet, and the message that the client gets of it.
  // Turns without an answer leave nothing behind.
  void Answered(int64_t turn, DrawnAnswer drawn, ChatMessage message);

  // A turn that Begin gave gets no answer: what is held of it is freed.
  void Unanswered(int64_t turn);

  // The client has not got the answer of that turn: what was drawn is no action, and no later turn goes on from it.
  void Undelivered(int64_t turn);

  // Every id that was drawn is an action in one of these, the first that has it, and stands behind the ids that it was
  // drawn behind. A turn that several others go on from is context in the later ones. The last one ends with the answer
  // that was asked for last. Of those between whose requests no answer came, which the agent has asked for side by
  // side, it is the one of the greatest prompt by ids, whichever came first. The order of the others follows from their
  // ids.
  std::vector<EpisodeSequence> Sequences() const;

 private:
  // A text that is known again, and not kept.
  struct KnownText {
    size_t size = 0;
    uint64_t hash = 0;

    explicit KnownText(std::string_view text = "");
    bool Begins(std::string_view text) const;
  };

  // The end of a conversation. All of an episode are a tree.
  struct Line {
    int64_t before = -1;  // the line that this one goes on from; -1: it stands for the kwargs
    uint64_t told = 0;    // a hash of what is told with it
    int64_t turn = -1;    // whose answer it is, or -1
  };

  struct Turn {
    int64_t parent = -1;         // the turn that this one goes on from
    std::vector<int32_t> fed;    // the prompt, or what of it stands behind the ids of the parent
    KnownText text;              // of the whole prompt, as the template writes it
    KnownText before_opening;    // of it, what stands before the opening of the answer's turn
    int64_t asked = -1;          // the last line asked with
    int64_t answers_before = 0;  // of the episode, when it was asked
    bool answered = false;
    bool delivered = true;  // as far as is known
    DrawnAnswer drawn;
    ChatMessage message;
  };

  // Puts what was answered in the place of what the client made of it. By message the turn that it is of, or -1.
  std::vector<int64_t> PutBack(std::vector<ChatMessage>* messages, uint64_t kwargs) const;
  // By message the line before it; then the last one.
  std::vector<int64_t> LinesOf(const std::vector<ChatMessage>& messages, const std::vector<int64_t>& answers,
                               uint64_t kwargs);
  // The conversation that `turn` was asked for with, from its end on: the turns of its messages, as long as the client
  // tells the same in `messages`; and whether these are all of both.
  std::pair<std::vector<int64_t>, bool> TurnsBefore(int64_t turn, std::span<const ChatMessage> messages,
                                                    std::span<const uint64_t> told, uint64_t kwargs) const;
  // Whether the prompt, its opening and the words of `turn` stand in `text`, which is soon looked at: BehindTurn takes
  // that the template writes the conversation again.
  static bool MayStandIn(const Turn& turn, std::string_view text);
  // `messages` end with the answer of `turn`, and are the beginning of those that the template writes as `text`: what
  // stands there from the end token on which it writes behind that answer. "" where the turn does not stand there as it
  // was drawn.
  std::string_view BehindTurn(const Turn& turn, std::vector<ChatMessage> messages, const nlohmann::ordered_json& kwargs,
                              std::string_view text) const;
  // The ids of `behind`, which such an end token begins, behind those of the turn; nothing where they do not fit there.
  absl::StatusOr<std::optional<std::vector<int32_t>>> IdsBehindTurn(const Turn& turn, std::string_view behind) const;
  // Whether an end token was drawn.
  bool Ended(const Turn& turn) const;
  std::vector<int64_t> PathTo(int64_t turn) const;  // from the first turn on
  std::vector<int32_t> PromptOf(int64_t turn) const;

  const Tokenizer* const tokenizer_;
  std::map<int32_t, std::string> ends_;  // with their texts
  std::vector<Turn> turns_;
  std::vector<Line> lines_;
  std::map<std::pair<int64_t, uint64_t>, int64_t> line_of_;  // by the line before it and a hash of its message and turn
  std::map<uint64_t, std::vector<int64_t>> told_;            // answered turns, by a hash of what is told
  std::map<uint64_t, int64_t> asked_;                        // how often, by a hash of the prompt
  int64_t answers_ = 0;
};

}  // namespace quartet
