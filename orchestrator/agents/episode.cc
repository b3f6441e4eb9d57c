#include "orchestrator/agents/episode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"

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

// A hash of what has to be the same of an answer and of a message that comes again; beside it, what may be left out.
uint64_t Told(const ChatMessage& message) {
  nlohmann::json told = {message.value("role", ""), message.value("name", ""), StrippedPart(message, "content")};
  for (const OrderedJson& call : CallsOf(message)) told.push_back(Value(call["function"]));
  return HashBytes(OneLineJson(told));
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

std::string WithoutSpace(std::string_view text) {
  std::string rest(text);
  std::erase_if(rest, [](char byte) { return absl::ascii_isspace(byte); });
  return rest;
}

// Whether `drawn`, which ended by itself, has what a template writes of `message` behind its last part, such as the end
// of a thought or of a call, and the ids of its calls.
bool IsDrawnToItsEnd(std::string_view drawn, std::string_view written, const ChatMessage& message) {
  const OrderedJson calls = CallsOf(message);
  for (const OrderedJson& call : calls) {
    const std::string id = call.value("id", "");
    if (written.find(id) != std::string_view::npos && drawn.find(id) == std::string_view::npos) return false;
  }
  size_t end = written.size();
  if (!calls.empty()) {
    if (const size_t brace = written.rfind('}'); brace != std::string_view::npos) end = brace + 1;
  } else {
    const std::string content = StrippedPart(message, "content");
    const std::string last = content.empty() ? StrippedPart(message, "reasoning_content") : content;
    if (const size_t at = written.rfind(last); at != std::string_view::npos) end = at + last.size();
  }
  return WithoutSpace(drawn).ends_with(WithoutSpace(written.substr(end)));
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

// Earlier answers that a request is held against by writing the conversation again, which takes as long as it is.
constexpr int kMostTries = 16;

uint64_t HashOf(const std::vector<int32_t>& ids) {
  return HashBytes({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
}

template <typename T>
void Append(const std::vector<T>& more, std::vector<T>* to) {
  to->insert(to->end(), more.begin(), more.end());
}

}  // namespace

Episode::KnownText::KnownText(std::string_view text) : size(text.size()), hash(HashBytes(text)) {}

bool Episode::KnownText::Begins(std::string_view text) const {
  return text.size() >= size && HashBytes(text.substr(0, size)) == hash;
}

Episode::Episode(const Tokenizer* tokenizer, const std::vector<int32_t>& ends) : tokenizer_(tokenizer) {
  for (const int32_t end : ends) {
    std::string text = tokenizer->DecodeUncleaned({end}, /*skip_special_tokens=*/false);
    if (!text.empty()) ends_[end] = std::move(text);
  }
}

absl::StatusOr<EpisodeRequest> Episode::Begin(std::vector<ChatMessage> messages, const OrderedJson& kwargs) {
  Turn turn;
  const uint64_t kwargs_hash = HashBytes(OneLineJson(kwargs));
  const std::vector<int64_t> answers = PutBack(&messages, kwargs_hash);
  QUARTET_ASSIGN_OR_RETURN(std::string text,
                           tokenizer_->ApplyChatTemplate(messages, /*add_generation_prompt=*/true, kwargs));
  const absl::StatusOr<std::string> unopened = tokenizer_->ApplyChatTemplate(messages, false, kwargs);
  turn.text = KnownText(text);
  turn.before_opening = KnownText(unopened.ok() && text.starts_with(*unopened) ? *unopened : text);
  const std::vector<int64_t> lines = LinesOf(messages, answers, kwargs_hash);
  turn.asked = lines.back();
  turn.answers_before = answers_;

  int tries = 0;
  for (size_t count = messages.size(); count > 0 && turn.parent < 0 && tries < kMostTries; --count) {
    const int64_t answer = answers[count - 1];
    if (answer < 0 || !MayStandIn(turns_[answer], text)) continue;
    ++tries;
    // The same words may have been answered to something else.
    if (lines[count - 1] != turns_[answer].asked) {
      const absl::StatusOr<std::string> asked =
          tokenizer_->ApplyChatTemplate({messages.begin(), messages.begin() + count - 1}, true, kwargs);
      const KnownText& known = turns_[answer].text;
      if (!asked.ok() || asked->size() != known.size || !known.Begins(*asked)) continue;
    }
    const std::string_view behind =
        BehindTurn(turns_[answer], {messages.begin(), messages.begin() + count}, kwargs, text);
    if (behind.empty()) continue;
    QUARTET_ASSIGN_OR_RETURN(std::optional<std::vector<int32_t>> ids, IdsBehindTurn(turns_[answer], behind));
    if (!ids) continue;
    turn.parent = answer;
    turn.fed = *std::move(ids);
  }
  if (turn.parent < 0) {
    QUARTET_ASSIGN_OR_RETURN(turn.fed, tokenizer_->Encode(text, /*add_special_tokens=*/false));
  }
  turns_.push_back(std::move(turn));
  EpisodeRequest request{.turn = static_cast<int64_t>(turns_.size()) - 1};
  request.text = std::move(text);
  request.prompt = PromptOf(request.turn);
  request.repeats = asked_[HashOf(request.prompt)]++;
  return request;
}

void Episode::Answered(int64_t turn, DrawnAnswer drawn, ChatMessage message) {
  QUARTET_CHECK(turn >= 0 && turn < static_cast<int64_t>(turns_.size()) && !turns_[turn].answered);
  QUARTET_CHECK(drawn.log_probs.size() == drawn.ids.size());
  std::vector<int64_t>& same = told_[Told(message)];
  same.insert(std::upper_bound(same.begin(), same.end(), turn), turn);
  turns_[turn].drawn = std::move(drawn);
  turns_[turn].message = std::move(message);
  turns_[turn].answered = true;
  ++answers_;
}

void Episode::Unanswered(int64_t turn) {
  QUARTET_CHECK(!turns_.at(turn).answered);
  turns_[turn] = Turn();
}

void Episode::Undelivered(int64_t turn) {
  QUARTET_CHECK(turns_.at(turn).answered);
  std::erase(told_[Told(turns_[turn].message)], turn);
  turns_[turn].delivered = false;
}

// From the last message on: of several answers that tell the same, the one whose conversation is told for longest, and
// with it the answers of that conversation; of several again, the last.
std::vector<int64_t> Episode::PutBack(std::vector<ChatMessage>* messages, uint64_t kwargs) const {
  std::vector<uint64_t> told;
  for (const ChatMessage& message : *messages) told.push_back(Told(message));
  std::vector<int64_t> answers(messages->size(), -1);
  for (size_t count = messages->size(); count > 0; --count) {
    const auto same = told_.find(told[count - 1]);
    if (same == told_.end()) continue;
    int64_t best = -1;
    std::pair<std::vector<int64_t>, bool> best_before;
    for (auto turn = same->second.rbegin(); turn != same->second.rend() && !best_before.second; ++turn) {
      if (!AgreeInWhatMayBeLeftOut((*messages)[count - 1], turns_[*turn].message)) continue;
      auto before = TurnsBefore(*turn, std::span(*messages).first(count - 1), std::span(told).first(count - 1), kwargs);
      if (best >= 0 && !before.second && before.first.size() <= best_before.first.size()) continue;
      best = *turn;
      best_before = std::move(before);
    }
    if (best < 0) continue;
    answers[count - 1] = best;
    for (const int64_t turn : best_before.first) answers[--count - 1] = turn;
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] >= 0) (*messages)[i] = turns_[answers[i]].message;
  }
  return answers;
}

std::pair<std::vector<int64_t>, bool> Episode::TurnsBefore(int64_t turn, std::span<const ChatMessage> messages,
                                                           std::span<const uint64_t> told, uint64_t kwargs) const {
  std::vector<int64_t> turns;
  const Line* line = &lines_[turns_[turn].asked];
  for (; line->before >= 0 && turns.size() < messages.size(); line = &lines_[line->before]) {
    const size_t at = messages.size() - 1 - turns.size();
    if (line->told != told[at]) break;
    if (line->turn >= 0) {
      const Turn& answer = turns_[line->turn];
      if (!answer.delivered || !AgreeInWhatMayBeLeftOut(messages[at], answer.message)) break;
    }
    turns.push_back(line->turn);
  }
  return {turns, turns.size() == messages.size() && line->before < 0 && line->told == kwargs};
}

std::vector<int64_t> Episode::LinesOf(const std::vector<ChatMessage>& messages, const std::vector<int64_t>& answers,
                                      uint64_t kwargs) {
  std::vector<int64_t> lines;
  const auto add = [&](const Line& line, uint64_t hash) {
    const auto [place, is_new] = line_of_.try_emplace({line.before, hash}, lines_.size());
    if (is_new) lines_.push_back(line);
    lines.push_back(place->second);
  };
  add({.told = kwargs}, kwargs);
  for (size_t i = 0; i < messages.size(); ++i) {
    add({.before = lines.back(), .told = Told(messages[i]), .turn = answers[i]},
        HashBytes(OneLineJson(messages[i]), static_cast<uint64_t>(answers[i])));
  }
  return lines;
}

bool Episode::MayStandIn(const Turn& turn, std::string_view text) {
  return turn.before_opening.Begins(text) &&
         std::ranges::all_of(std::array{"reasoning_content", "content"}, [&](const char* part) {
           return text.find(StrippedPart(turn.message, part), turn.before_opening.size) != std::string_view::npos;
         });
}

std::string_view Episode::BehindTurn(const Turn& turn, std::vector<ChatMessage> messages, const OrderedJson& kwargs,
                                     std::string_view text) const {
  const size_t opening = turn.before_opening.size;
  // The conversation as the template writes it where this turn is the last, up to the end of the turn.
  const absl::StatusOr<std::string> whole = tokenizer_->ApplyChatTemplate(messages, false, kwargs);
  if (!whole.ok() || !turn.text.Begins(*whole)) return "";
  size_t end_at = 0;
  std::string_view end;
  for (const auto& [id, its_text] : ends_) {
    const size_t found = whole->rfind(its_text);
    if (found == std::string::npos || found < std::max(end_at, turn.text.size)) continue;
    end_at = found;
    end = its_text;
  }
  if (end.empty() || !Stripped(whole->substr(end_at + end.size())).empty()) return "";
  const std::string_view closed = std::string_view(*whole).substr(0, end_at + end.size());

  const std::string_view written_alone = closed.substr(turn.text.size, end_at - turn.text.size);
  std::vector<int32_t> ids = turn.drawn.ids;
  if (Ended(turn)) ids.pop_back();
  const std::string drawn = tokenizer_->DecodeUncleaned(ids, /*skip_special_tokens=*/false);
  // What was cut is what the template has, which may trim it, and not one that closes a thought.
  const bool as_drawn = Ended(turn) ? IsDrawnToItsEnd(drawn, written_alone, turn.message)
                                    : drawn == written_alone || Stripped(drawn) == written_alone;
  if (!as_drawn) return "";

  size_t size = closed.size();  // of `text`, up to the end of the turn
  if (!text.starts_with(closed)) {
    // Templates write some text, such as an empty thought, in the last turn alone: where `text` is without it, and it
    // is there whatever the answer, the turn is the same.
    messages.back() = MakeChatMessage("assistant", "-");
    const absl::StatusOr<std::string> other = tokenizer_->ApplyChatTemplate(messages, false, kwargs);
    size = other.ok() ? SizeWithoutLastTurnsOwn(text, closed, end, opening, *other) : 0;
    if (size == 0) return "";
  }
  // Templates leave thoughts out, or what is said beside calls.
  const std::string_view written = text.substr(opening, size - opening);
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
    sequences.push_back({.last_turn = static_cast<int64_t>(turn),
                         .turns = std::ssize(PathTo(static_cast<int64_t>(turn))),
                         .ids = PromptOf(turn)});
    Append(turns_[turn].drawn.ids, &sequences.back().ids);
  }
  std::ranges::stable_sort(sequences, {}, &EpisodeSequence::ids);
  const auto last = std::ranges::max_element(sequences, {}, [this](const EpisodeSequence& sequence) {
    const int64_t turn = sequence.last_turn;
    return std::tuple(turns_[turn].answers_before, PromptOf(turn), turn);
  });
  if (last != sequences.end()) std::rotate(last, last + 1, sequences.end());

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
    }
  }
  return sequences;
}

}  // namespace quartet
