#include "orchestrator/agents/episode.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Stripped(std::string text) {
  absl::StripAsciiWhitespace(&text);
  return text;
}

// "" where there is none, or a null.
std::string StrippedPart(const ChatMessage& message, const char* name) {
  const auto part = message.find(name);
  return part == message.end() || !part->is_string() ? "" : Stripped(part->get_ref<const std::string&>());
}

template <typename Json>
std::string Dump(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The value without what a client may change that reads and writes it again: the order of keys, 1.0 for 1.
nlohmann::json Value(const OrderedJson& written) {
  nlohmann::json value = written.is_object() ? nlohmann::json::object() : nlohmann::json::array();
  if (written.is_object()) {
    for (const auto& [name, inner] : written.items()) value[name] = Value(inner);
  } else if (written.is_array()) {
    for (const OrderedJson& inner : written) value.push_back(Value(inner));
  } else if (const double* number = written.get_ptr<const OrderedJson::number_float_t*>();
             number != nullptr && *number == std::floor(*number) && std::abs(*number) < 0x1p63) {
    value = static_cast<int64_t>(*number);
  } else {
    value = written;
  }
  return value;
}

OrderedJson CallsOf(const ChatMessage& message) { return message.value("tool_calls", OrderedJson::array()); }

// What has to be the same of an answer and of a message that comes again; beside it, what may be left out.
std::string Told(const ChatMessage& message) {
  nlohmann::json told = {message.value("role", ""), message.value("name", ""), StrippedPart(message, "content")};
  for (const OrderedJson& call : CallsOf(message)) told.push_back(Value(call["function"]));
  return Dump(told);
}

bool IsLeftOutOrSame(const OrderedJson& again, const OrderedJson& answered) {
  return again.is_null() || again == "" || again == answered;
}

bool AgreeInWhatMayBeLeftOut(const ChatMessage& again, const ChatMessage& answered) {
  const OrderedJson calls = CallsOf(again), answered_calls = CallsOf(answered);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!IsLeftOutOrSame(calls[i].value("id", OrderedJson()), answered_calls[i].value("id", OrderedJson()))) {
      return false;
    }
  }
  return IsLeftOutOrSame(StrippedPart(again, "reasoning_content"), StrippedPart(answered, "reasoning_content"));
}

size_t CommonPrefix(std::string_view a, std::string_view b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}
size_t CommonSuffix(std::string_view a, std::string_view b) {
  return std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin();
}

// How much of `text` is `closed`, which ends with `end`, but for one text that stands in it behind `opening`, and that
// stands in the same place of `other`. 0: none.
size_t SizeWithoutLastTurnsOwn(std::string_view text, std::string_view closed, std::string_view end, size_t opening,
                               std::string_view other) {
  const size_t alike = CommonPrefix(text, closed);
  for (size_t found = text.find(end, opening); found < closed.size() - end.size(); found = text.find(end, found + 1)) {
    const size_t size = found + end.size();
    const size_t left_out = closed.size() - size;
    const size_t at = std::max(opening, size - CommonSuffix(text.substr(0, size), closed.substr(opening)));
    if (at <= alike && other.starts_with(closed.substr(0, at + left_out))) return size;
  }
  return 0;
}

uint64_t HashOf(const std::vector<int32_t>& ids) {
  return HashBytes({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
}

template <typename T>
void Append(const std::vector<T>& more, std::vector<T>* to) {
  to->insert(to->end(), more.begin(), more.end());
}

}  // namespace

Episode::Episode(const Tokenizer* tokenizer, const std::vector<int32_t>& ends) : tokenizer_(tokenizer) {
  for (const int32_t end : ends) {
    std::string text = tokenizer->DecodeUncleaned({end}, /*skip_special_tokens=*/false);
    if (!text.empty()) ends_[end] = std::move(text);
  }
}

absl::StatusOr<EpisodeRequest> Episode::Begin(std::vector<ChatMessage> messages, const OrderedJson& kwargs) {
  Turn turn;
  std::vector<uint64_t> conversations;
  const std::vector<int64_t> answers = PutBack(&messages, &conversations);
  turn.conversation = conversations.back();
  QUARTET_ASSIGN_OR_RETURN(turn.text, tokenizer_->ApplyChatTemplate(messages, /*add_generation_prompt=*/true, kwargs));
  const absl::StatusOr<std::string> unopened = tokenizer_->ApplyChatTemplate(messages, false, kwargs);
  turn.opening = unopened.ok() && turn.text.starts_with(*unopened) ? unopened->size() : turn.text.size();

  for (size_t count = messages.size(); count > 0 && turn.parent < 0; --count) {
    const int64_t answer = answers[count - 1];
    if (answer < 0) continue;
    // The same words may have been answered to something else.
    if (conversations[count - 1] != turns_[answer].conversation) {
      const absl::StatusOr<std::string> asked =
          tokenizer_->ApplyChatTemplate({messages.begin(), messages.begin() + count - 1}, true, kwargs);
      if (!asked.ok() || *asked != turns_[answer].text) continue;
    }
    const std::string_view behind =
        BehindTurn(turns_[answer], {messages.begin(), messages.begin() + count}, kwargs, turn.text);
    if (behind.empty()) continue;
    QUARTET_ASSIGN_OR_RETURN(std::optional<std::vector<int32_t>> ids, IdsBehindTurn(turns_[answer], behind));
    if (!ids) continue;
    turn.parent = answer;
    turn.fed = *std::move(ids);
  }
  if (turn.parent < 0) {
    QUARTET_ASSIGN_OR_RETURN(turn.fed, tokenizer_->Encode(turn.text, /*add_special_tokens=*/false));
  }
  turns_.push_back(std::move(turn));
  EpisodeRequest request{.turn = static_cast<int64_t>(turns_.size()) - 1};
  request.text = turns_.back().text;
  request.prompt = PromptOf(request.turn);
  request.repeats = asked_[HashOf(request.prompt)]++;
  return request;
}

void Episode::Answered(int64_t turn, DrawnAnswer drawn, ChatMessage message) {
  QUARTET_CHECK(turn >= 0 && turn < static_cast<int64_t>(turns_.size()) && !turns_[turn].answered);
  QUARTET_CHECK(drawn.log_probs.size() == drawn.ids.size() && drawn.policy_versions.size() == drawn.ids.size());
  std::vector<int64_t>& same = by_message_[Told(message)];
  same.insert(std::upper_bound(same.begin(), same.end(), turn), turn);
  turns_[turn].drawn = std::move(drawn);
  turns_[turn].message = std::move(message);
  turns_[turn].answered = true;
}

void Episode::Undelivered(int64_t turn) {
  QUARTET_CHECK(turns_.at(turn).answered);
  std::erase(by_message_[Told(turns_[turn].message)], turn);
  turns_[turn].delivered = false;
}

std::vector<int64_t> Episode::PutBack(std::vector<ChatMessage>* messages, std::vector<uint64_t>* conversations) const {
  std::vector<int64_t> answers;
  conversations->assign(1, 0);
  for (ChatMessage& message : *messages) {
    answers.push_back(TurnOf(message, conversations->back()));
    if (answers.back() >= 0) message = turns_[answers.back()].message;
    conversations->push_back(HashBytes(Dump(message), conversations->back()));
  }
  return answers;
}

// Of several, one that was asked for with the messages that stand before this one here; of several again, the last.
int64_t Episode::TurnOf(const ChatMessage& message, uint64_t conversation) const {
  const auto same = by_message_.find(Told(message));
  if (same == by_message_.end()) return -1;
  int64_t elsewhere = -1;
  for (auto turn = same->second.rbegin(); turn != same->second.rend(); ++turn) {
    if (!AgreeInWhatMayBeLeftOut(message, turns_[*turn].message)) continue;
    if (turns_[*turn].conversation == conversation) return *turn;
    if (elsewhere < 0) elsewhere = *turn;
  }
  return elsewhere;
}

std::string_view Episode::BehindTurn(const Turn& turn, std::vector<ChatMessage> messages, const OrderedJson& kwargs,
                                     std::string_view text) const {
  if (!text.starts_with(std::string_view(turn.text).substr(0, turn.opening))) return "";
  for (const char* part : {"reasoning_content", "content"}) {
    if (text.find(StrippedPart(turn.message, part), turn.opening) == std::string_view::npos) return "";
  }
  // The conversation as the template writes it where this turn is the last, up to the end of the turn.
  const absl::StatusOr<std::string> whole = tokenizer_->ApplyChatTemplate(messages, false, kwargs);
  if (!whole.ok() || !whole->starts_with(turn.text)) return "";
  size_t end_at = 0;
  std::string_view end;
  for (const auto& [id, its_text] : ends_) {
    const size_t found = whole->rfind(its_text);
    if (found == std::string::npos || found < std::max(end_at, turn.text.size())) continue;
    end_at = found;
    end = its_text;
  }
  if (end.empty() || !Stripped(whole->substr(end_at + end.size())).empty()) return "";
  const std::string_view closed = std::string_view(*whole).substr(0, end_at + end.size());

  // What was cut is what the template has, which may trim it, and not one that closes a thought.
  if (!Ended(turn)) {
    const std::string cut = tokenizer_->DecodeUncleaned(turn.drawn.ids, /*skip_special_tokens=*/false);
    const std::string_view has = closed.substr(turn.text.size(), end_at - turn.text.size());
    if (cut != has && Stripped(cut) != has) return "";
  }

  size_t size = closed.size();  // of `text`, up to the end of the turn
  if (!text.starts_with(closed)) {
    // Templates write some text, such as an empty thought, in the last turn alone: where `text` is without it, and it
    // is there whatever the answer, the turn is the same.
    messages.back() = MakeChatMessage("assistant", "-");
    const absl::StatusOr<std::string> other = tokenizer_->ApplyChatTemplate(messages, false, kwargs);
    size = other.ok() ? SizeWithoutLastTurnsOwn(text, closed, end, turn.opening, *other) : 0;
    if (size == 0) return "";
  }
  // Templates leave thoughts out, or what is said beside calls.
  const std::string_view written = text.substr(turn.opening, size - turn.opening);
  for (const char* part : {"reasoning_content", "content"}) {
    if (written.find(StrippedPart(turn.message, part)) == std::string_view::npos) return "";
  }
  return text.substr(size - end.size());
}

absl::StatusOr<std::optional<std::vector<int32_t>>> Episode::IdsBehindTurn(const Turn& turn,
                                                                           std::string_view behind) const {
  QUARTET_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer_->Encode(behind, /*add_special_tokens=*/false));
  if (ids.empty() || !ends_.contains(ids[0])) return std::nullopt;
  if (!Ended(turn)) return ids;
  if (ids[0] != turn.drawn.ids.back()) return std::nullopt;
  ids.erase(ids.begin());
  return ids;
}

bool Episode::Ended(const Turn& turn) const { return !turn.drawn.ids.empty() && ends_.contains(turn.drawn.ids.back()); }

std::vector<int64_t> Episode::PathTo(int64_t turn) const {
  std::vector<int64_t> path;
  for (; turn >= 0; turn = turns_[turn].parent) path.push_back(turn);
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<int32_t> Episode::PromptOf(int64_t turn) const {
  std::vector<int32_t> ids;
  for (const int64_t on_path : PathTo(turn)) {
    Append(turns_[on_path].fed, &ids);
    if (on_path != turn) Append(turns_[on_path].drawn.ids, &ids);
  }
  return ids;
}

std::vector<EpisodeSequence> Episode::Sequences() const {
  const auto has_actions = [this](size_t turn) {
    return turns_[turn].answered && turns_[turn].delivered && !turns_[turn].drawn.ids.empty();
  };
  std::vector<bool> leads_on(turns_.size());  // to a later turn that has actions
  for (size_t turn = turns_.size(); turn-- > 0;) {
    if (turns_[turn].parent >= 0 && (has_actions(turn) || leads_on[turn])) leads_on[turns_[turn].parent] = true;
  }
  std::vector<EpisodeSequence> sequences;
  for (size_t turn = 0; turn < turns_.size(); ++turn) {
    if (!has_actions(turn) || leads_on[turn]) continue;
    sequences.push_back({.last_turn = static_cast<int64_t>(turn), .ids = PromptOf(turn)});
    Append(turns_[turn].drawn.ids, &sequences.back().ids);
  }
  std::ranges::stable_sort(sequences, {}, &EpisodeSequence::ids);

  std::vector<bool> trained;
  for (const Turn& turn : turns_) trained.push_back(!turn.delivered);
  for (EpisodeSequence& sequence : sequences) {
    for (const int64_t on_path : PathTo(sequence.last_turn)) {
      const DrawnAnswer& drawn = turns_[on_path].drawn;
      sequence.is_action.resize(sequence.is_action.size() + turns_[on_path].fed.size(), false);
      sequence.is_action.resize(sequence.is_action.size() + drawn.ids.size(), !trained[on_path]);
      if (trained[on_path]) continue;
      trained[on_path] = true;
      Append(drawn.log_probs, &sequence.log_probs);
      Append(drawn.sampled_log_probs, &sequence.sampled_log_probs);
      Append(drawn.policy_versions, &sequence.policy_versions);
    }
  }
  return sequences;
}

}  // namespace quartet
