// What of a chat's answer is a thought, what a call, and what is said, as the text comes. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/openai/call_format.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// How an answer is written.
struct MessageForm {
  const CallFormat* calls = nullptr;  // null: calls stay text
  bool thoughts = false;              // those between <think> and </think>; else they stay text
  bool in_thought = false;            // the prompt has begun one

  // Whether the chat template writes back thoughts that it is given as reasoning_content.
  static bool WritesThoughts(std::string_view chat_template);
  // Whether a prompt ends with the beginning of a thought.
  static bool BeginsThought(std::string_view prompt);
  // The marks that are special tokens, which texts do not have (AnswerTextOptions::marks).
  std::map<int32_t, std::string> SpecialMarks(const Tokenizer& tokenizer) const;
};

struct MessagePart {
  std::string content, reasoning;
  std::vector<nlohmann::ordered_json> calls;  // {"id", "type", "function": {"name", "arguments": JSON text}}
  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
  int64_t bytes() const;  // about, as JSON
  // What comes behind it.
  void Add(MessagePart more);
};

// What Read and Finish give, laid end to end, is the message. White space around thoughts and calls is left out;
// between texts on both sides of calls what stands before these, or else a newline. What has the marks of calls and is
// none that requests can bring back and the chat template writes, with those before it, is content with its marks, and
// so is a call behind the first 128. Thoughts come first. The work for a piece does not grow with the text before it.
class MessageReader {
 public:
  // `tokenizer` outlives this. Ids of calls follow from `id`.
  MessageReader(const MessageForm& form, const Tokenizer& tokenizer, std::string id);

  MessagePart Read(std::string_view text);
  // The rest. `ended`: by its own end, and not cut off. Only then a call may lack its end mark.
  MessagePart Finish(bool ended);

  bool has_calls() const { return !calls_.empty(); }

 private:
  enum class Place { kBegin, kThought, kText, kCall };

  bool plain() const { return form_.calls == nullptr && !form_.thoughts; }
  // Goes on with what is held; false where more has to come.
  bool Step(MessagePart* part);
  bool Begin();
  // The first `bytes` of what is held are a part of a text, whose end may be white space that is left out.
  void Tell(size_t bytes, std::string* text);
  bool TellCalls(std::string_view written, MessagePart* part);
  bool CanComeBack(const std::vector<nlohmann::ordered_json>& calls) const;

  MessageForm form_;
  const Tokenizer* tokenizer_;
  std::string id_;
  Place place_ = Place::kBegin;
  std::string held_;               // not told yet
  std::string space_;              // before it, for when it turns out to be within a text
  bool leaves_space_out_ = false;  // until something else comes
  std::string joint_;              // between the content before calls and what may come behind them
  bool thought_ = false;           // there was one
  size_t body_ = 0;                // where in `held_` a call's JSON begins
  size_t searched_ = 0;            // where its end mark may begin
  bool has_content_ = false;
  std::vector<nlohmann::ordered_json> calls_;  // all that are told, without their arguments
  std::set<std::string> ids_;                  // of these
};

}  // namespace quartet
