#include "core/openai/message_reader.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/openai/openai_request.h"
#include "core/tokenizer/chat_message.h"

namespace quartet {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kThought = "<think>", kThoughtEnd = "</think>";
constexpr std::string_view kSpace = " \t\r\n";
// Of a message; each is put through the template with those before it.
constexpr size_t kMostCalls = 128;
// Of a text, that are held at a time: what stands behind a mark is moved.
constexpr size_t kPieceBytes = 4096;

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// How many bytes at the text's end may be the beginning of `mark`.
size_t MaybeBegun(std::string_view text, std::string_view mark) {
  size_t bytes = mark.empty() ? 0 : std::min(text.size(), mark.size() - 1);
  while (bytes > 0 && !text.ends_with(mark.substr(0, bytes))) --bytes;
  return bytes;
}

}  // namespace

bool MessageForm::WritesThoughts(std::string_view chat_template) {
  return Has(chat_template, kThought) && Has(chat_template, kThoughtEnd) && Has(chat_template, "reasoning_content");
}

bool MessageForm::BeginsThought(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kSpace);
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(kThought);
}

std::map<int32_t, std::string> MessageForm::SpecialMarks(const Tokenizer& tokenizer) const {
  std::vector<std::string_view> marks;
  if (calls != nullptr) marks.insert(marks.end(), {calls->begin, calls->end});
  if (thoughts) marks.insert(marks.end(), {kThought, kThoughtEnd});
  std::map<int32_t, std::string> special;
  for (const std::string_view mark : marks) {
    const std::optional<int32_t> id = mark.empty() ? std::nullopt : tokenizer.TokenToId(mark);
    if (id.has_value() && tokenizer.DecodeUncleaned({*id}, /*skip_special_tokens=*/true).empty()) {
      special.emplace(*id, mark);
    }
  }
  return special;
}

int64_t MessagePart::bytes() const {
  size_t bytes = content.size() + reasoning.size();
  for (const ordered_json& call : calls) bytes += call.dump().size();
  return static_cast<int64_t>(bytes);
}

void MessagePart::Add(MessagePart more) {
  content += more.content;
  reasoning += more.reasoning;
  calls.insert(calls.end(), std::make_move_iterator(more.calls.begin()), std::make_move_iterator(more.calls.end()));
}

MessageReader::MessageReader(const MessageForm& form, const Tokenizer& tokenizer, std::string id)
    : form_(form), tokenizer_(&tokenizer), id_(std::move(id)) {
  if (!form_.in_thought) return;
  place_ = Place::kThought;
  leaves_space_out_ = thought_ = true;
}

MessagePart MessageReader::Read(std::string_view text) {
  MessagePart part;
  if (plain()) {
    part.content = text;
    return part;
  }
  for (; !text.empty(); text.remove_prefix(std::min(text.size(), kPieceBytes))) {
    held_ += text.substr(0, kPieceBytes);
    while (Step(&part)) {
    }
  }
  return part;
}

MessagePart MessageReader::Finish(bool ended) {
  MessagePart part;
  if (place_ == Place::kCall && ended && TellCalls(std::string_view(held_).substr(body_), &part)) return part;
  std::string* text = place_ == Place::kThought ? &part.reasoning : &part.content;
  Tell(held_.size(), text);
  *text += std::exchange(space_, "");
  return part;
}

bool MessageReader::Step(MessagePart* part) {
  switch (place_) {
    case Place::kBegin:
      return Begin();
    case Place::kThought: {
      const size_t end = held_.find(kThoughtEnd);
      if (end == std::string::npos) {
        Tell(held_.size() - MaybeBegun(held_, kThoughtEnd), &part->reasoning);
        return false;
      }
      Tell(end, &part->reasoning);
      held_.erase(0, kThoughtEnd.size());
      space_.clear();
      leaves_space_out_ = true;
      place_ = Place::kBegin;
      return true;
    }
    case Place::kText: {
      const std::string_view begin = form_.calls == nullptr ? "" : form_.calls->begin;
      const size_t call = begin.empty() ? std::string::npos : held_.find(begin);
      Tell(std::min(call, held_.size() - MaybeBegun(held_, begin)), &part->content);
      if (call == std::string::npos) return false;
      place_ = Place::kCall;
      body_ = searched_ = begin.size();
      return true;
    }
    case Place::kCall: {
      const std::string_view mark = form_.calls->end;
      if (mark.empty()) return false;
      const size_t end = held_.find(mark, searched_);
      if (end == std::string::npos) {
        searched_ = std::max(body_, held_.size() - MaybeBegun(held_, mark));
        return false;
      }
      if (TellCalls(std::string_view(held_).substr(body_, end - body_), part)) {
        held_.erase(0, end + mark.size());
      } else {
        Tell(end + mark.size(), &part->content);
      }
      place_ = Place::kText;
      return true;
    }
  }
  return false;
}

// What comes before anything is said: a thought, if there was none, or a call without a mark.
bool MessageReader::Begin() {
  std::string nothing;  // of white space
  Tell(std::min(held_.find_first_not_of(kSpace), held_.size()), &nothing);
  if (held_.empty()) return false;
  if (form_.thoughts && !thought_) {
    if (held_.size() < kThought.size() && kThought.starts_with(held_)) return false;
    if (held_.starts_with(kThought)) {
      held_.erase(0, kThought.size());
      space_.clear();
      leaves_space_out_ = thought_ = true;
      place_ = Place::kThought;
      return true;
    }
  }
  const bool bare = form_.calls != nullptr && form_.calls->bare && held_.starts_with('{');
  place_ = bare ? Place::kCall : Place::kText;
  body_ = searched_ = 0;
  return true;
}

void MessageReader::Tell(size_t bytes, std::string* text) {
  std::string told = held_.substr(0, bytes);
  held_.erase(0, bytes);
  if (leaves_space_out_) told.erase(0, std::min(told.find_first_not_of(kSpace), told.size()));
  const size_t end = told.find_last_not_of(kSpace) + 1;  // 0: it is white space alone
  if (end > 0) {
    leaves_space_out_ = false;
    has_content_ = has_content_ || place_ != Place::kThought;
    *text += std::exchange(joint_, "") + std::exchange(space_, "");
    text->append(told, 0, end);
  }
  space_.append(told, end);
}

bool MessageReader::TellCalls(std::string_view written, MessagePart* part) {
  const std::optional<std::vector<WrittenCall>> found = ReadCalls(*form_.calls, written);
  if (!found.has_value() || calls_.size() + found->size() > kMostCalls) return false;
  std::vector<ordered_json> calls;
  std::set<std::string> ids;
  for (const WrittenCall& call : *found) {
    std::string id = call.id;
    for (size_t n = calls_.size() + calls.size(); !IsCallId(id) || ids_.contains(id) || ids.contains(id); ++n) {
      id = MakeCallId(absl::StrCat(id_, "/", n));
    }
    ids.insert(id);
    calls.push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments.dump()}}}});
  }
  if (!CanComeBack(calls)) return false;
  for (ordered_json call : calls) {
    call["function"]["arguments"] = "{}";
    calls_.push_back(std::move(call));
  }
  part->calls.insert(part->calls.end(), std::make_move_iterator(calls.begin()), std::make_move_iterator(calls.end()));
  ids_.merge(ids);
  if (has_content_ && joint_.empty()) joint_ = space_.empty() ? "\n" : space_;
  space_.clear();
  leaves_space_out_ = true;
  return true;
}

// A short chat stands for the one that has been: what templates refuse of calls is their number, ids and names.
bool MessageReader::CanComeBack(const std::vector<ordered_json>& calls) const {
  ordered_json all = calls_;
  for (const ordered_json& call : calls) all.push_back(call);
  ordered_json message = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", std::move(all)}};
  if (has_content_) message["content"] = "text";
  const absl::StatusOr<ChatMessage> read = ReadOpenAiMessage(message, "message");
  return read.ok() &&
         tokenizer_->ApplyChatTemplate({MakeChatMessage("user", "text"), *read}, /*add_generation_prompt=*/false).ok();
}

}  // namespace quartet
