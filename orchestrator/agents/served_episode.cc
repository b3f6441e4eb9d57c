#include "orchestrator/agents/served_episode.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/base/time/pause.h"
#include "core/errors/shown.h"
#include "core/openai/api_error.h"
#include "core/openai/openai_response.h"
#include "orchestrator/agents/run_sampling.h"

namespace quartet {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::Status Failed(const absl::Status& policy) {
  return absl::UnavailableError(absl::StrCat("the episode has failed, since the policy has: ", policy.message()));
}

uint64_t SeedOf(uint64_t episode, const EpisodeRequest& request) {
  const uint64_t prompt = HashBytes(
      {reinterpret_cast<const char*>(request.prompt.data()), request.prompt.size() * sizeof(request.prompt[0])});
  return Random::Of({episode, prompt, static_cast<uint64_t>(request.repeats)}).Next();
}

// Between calls that the policy has no room for: ever longer ones.
class Pauses {
 public:
  // Ends early once `give_up` is requested to stop.
  void Wait(const std::stop_token& give_up) {
    PauseFor(give_up, pause_);
    pause_ = std::min(2 * pause_, absl::Seconds(1));
  }

 private:
  absl::Duration pause_ = absl::Milliseconds(10);
};

// All that was drawn, as a stream has it before its end.
GenerateReply TokensOf(const GeneratedSequence& drawn) {
  GenerateReply reply;
  GeneratedTokens& tokens = *reply.mutable_tokens();
  const auto& ids = drawn.tokens().ids();
  tokens.mutable_ids()->Assign(ids.end() - drawn.log_probs_size(), ids.end());
  *tokens.mutable_log_probs() = drawn.log_probs();
  *tokens.mutable_alternatives() = drawn.alternatives();
  return reply;
}

DrawnAnswer DrawnOf(const GeneratedSequence& drawn) {
  const auto& ids = drawn.tokens().ids();
  return {.ids = {ids.end() - drawn.log_probs_size(), ids.end()},
          .log_probs = {drawn.log_probs().begin(), drawn.log_probs().end()},
          .sampled_log_probs = {drawn.sampled_log_probs().begin(), drawn.sampled_log_probs().end()}};
}

// The JSON text of it as OpenAI's interface has it.
std::string ToOpenAi(OrderedJson message) {
  if (message.contains("tool_calls")) {
    for (OrderedJson& call : message["tool_calls"]) {
      OrderedJson& arguments = call["function"]["arguments"];
      arguments = OneLineJson(arguments);
    }
  }
  return OneLineJson(message);
}

}  // namespace

absl::Status EpisodeIsClosed() {
  return absl::UnimplementedError("there is no such episode here: it is closed, or never was");
}

class ServedEpisode::Call {
 public:
  // Null where the episode is closed.
  static std::shared_ptr<Call> Begin(std::shared_ptr<ServedEpisode> episode) {
    const std::lock_guard lock(episode->mutex_);
    if (episode->closing_.stop_requested()) return nullptr;
    if (episode->calls_++ == 0) episode->busy_ = Stopwatch();
    return std::make_shared<Call>(std::move(episode));
  }
  explicit Call(std::shared_ptr<ServedEpisode> episode) : episode_(std::move(episode)) {}
  ~Call() {
    const std::lock_guard lock(episode_->mutex_);
    if (--episode_->calls_ == 0) {
      episode_->record_.policy_seconds += episode_->busy_.Seconds();
    }
    episode_->call_ended_.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  const std::shared_ptr<ServedEpisode> episode_;
};

ServedEpisode::ServedEpisode(const EpisodeOptions* options, CallGate* reading, CallGate* gate, uint64_t seed,
                             GenerateHeader generation)
    : options_(*options),
      model_({.name = options->model,
              .tokenizer = options->tokenizer,
              .vocab_size = options->vocab_size,
              .max_model_len = options->max_len,
              .max_sequences = std::numeric_limits<int32_t>::max()}),  // HoldRunSampling bounds them
      reading_(*reading),
      gate_(*gate),
      seed_(seed),
      generation_(std::move(generation)),
      episode_(options->tokenizer, options->end_token_ids) {}

HttpReply ServedEpisode::Complete(HttpRequest& request, const std::stop_token& gone) {
  const std::shared_ptr<Call> call = Call::Begin(shared_from_this());
  if (call == nullptr) return ErrorReply(EpisodeIsClosed());
  std::stop_source give_up;
  const auto stop = [&give_up] { give_up.request_stop(); };
  const std::stop_callback on_gone(gone, stop);
  const std::stop_callback on_close(closing_.get_token(), stop);
  const auto ended = [&] {
    return closing_.stop_requested() ? EpisodeIsClosed() : absl::CancelledError("the client has gone");
  };
  absl::StatusOr<Asked> asked = Read(request, give_up.get_token());
  if (give_up.stop_requested()) {
    if (asked.ok()) Unanswered(asked->turn);
    return ErrorReply(ended());
  }
  if (!asked.ok()) return Refuse(ErrorReply(asked.status()));
  absl::StatusOr<GeneratedSequence> drawn = Generate(*asked, give_up.get_token());
  if (give_up.stop_requested() || !drawn.ok()) {
    Unanswered(asked->turn);
    return ErrorReply(give_up.stop_requested() ? ended() : drawn.status());
  }
  return Answer(*std::move(asked), *std::move(drawn), call);
}

absl::StatusOr<ServedEpisode::Asked> ServedEpisode::Read(HttpRequest& request, const std::stop_token& give_up) {
  const CallGate::Place place(&reading_, give_up);
  if (give_up.stop_requested()) return absl::CancelledError();
  QUARTET_ASSIGN_OR_RETURN(OpenAiChat chat, ReadOpenAiChat(request.body, model_, /*seed=*/0));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> set_aside, HoldRunSampling(generation_.sampling(), &chat));
  if (!set_aside.empty()) options_.on_set_aside(set_aside);
  absl::StatusOr<Asked> asked = Ask(std::move(chat));
  request.DropBody();
  return asked;
}

const std::string* ServedEpisode::Keep(const ChatMessage& message) {
  return &*messages_.insert(ToOpenAi(message)).first;
}

absl::StatusOr<ServedEpisode::Asked> ServedEpisode::Ask(OpenAiChat chat) {
  const std::lock_guard lock(mutex_);
  if (!record_.policy.ok()) return Failed(record_.policy);
  if (asked_ >= options_.max_turns) {
    return absl::InvalidArgumentError(
        absl::StrCat("the episode has, or waits for, ", asked_,
                     " answers; allowed: at most agent.max_turns = ", options_.max_turns));
  }
  const absl::StatusOr<EpisodeRequest> begun = episode_.Begin(chat.messages, chat.kwargs);
  if (!begun.ok()) return ChatError(chat, *model_.tokenizer, begun.status());
  const auto prompt_len = static_cast<int64_t>(begun->prompt.size());
  if (prompt_len >= options_.max_len) {
    episode_.Unanswered(begun->turn);
    return ContextLengthError("messages", absl::StrCat("has ", prompt_len,
                                                       " tokens, which leave no room for an answer: "
                                                       "this model's maximum context length is ",
                                                       options_.max_len, " tokens"));
  }
  SamplingParams& sampling = *chat.request.header.mutable_sampling();
  const int64_t most = std::min<int64_t>(generation_.sampling().max_new_tokens(), options_.max_len - prompt_len);
  Asked asked{.turn = begun->turn, .shortened = *chat.max_tokens < most};
  chat.max_tokens = static_cast<int32_t>(std::min<int64_t>(*chat.max_tokens, most));
  sampling.set_min_tokens(std::clamp(sampling.min_tokens(), 0, std::max(*chat.max_tokens, 0)));
  sampling.set_seed(SeedOf(seed_, *begun));
  const std::vector<ChatMessage> messages = std::move(chat.messages);
  absl::StatusOr<OpenAiRequest> request = WithPrompt(std::move(chat), begun->text, begun->prompt, model_);
  if (!request.ok()) {
    episode_.Unanswered(begun->turn);
    return request.status();
  }
  asked.request = *std::move(request);
  asked.request.header.set_policy_version(generation_.policy_version());
  asked.request.header.set_stream_tokens(false);
  asked.request.header.set_affinity(std::max<uint64_t>(seed_, 1));
  for (const ChatMessage& message : messages) turns_[asked.turn].messages.push_back(Keep(message));
  ++asked_;
  return asked;
}

absl::StatusOr<GeneratedSequence> ServedEpisode::Generate(const Asked& asked, const std::stop_token& give_up) {
  const CallGate::Place place(&gate_, give_up);
  absl::StatusOr<GeneratedSequence> drawn = absl::CancelledError();
  for (Pauses pauses; !give_up.stop_requested(); pauses.Wait(give_up)) {
    drawn = options_.generate(asked.request.header, asked.request.prompts[0], give_up);
    if (!absl::IsResourceExhausted(drawn.status())) break;
  }
  if (drawn.ok()) return drawn;
  const std::lock_guard lock(mutex_);
  if (give_up.stop_requested()) {
    if (absl::IsResourceExhausted(drawn.status())) record_.no_room = std::string(drawn.status().message());
    return drawn;
  }
  if (record_.policy.ok()) record_.policy = drawn.status();
  return Failed(record_.policy);
}

HttpReply ServedEpisode::Answer(Asked asked, GeneratedSequence drawn, const std::shared_ptr<Call>& call) {
  const bool stream = asked.request.stream;
  // Ids of calls follow from it, and later prompts may have these in them.
  const std::string id = absl::StrFormat("%016x", asked.request.header.sampling().seed());
  OpenAiAnswer answer(std::move(asked.request), model_,
                      {.id = id,
                       .created = absl::ToUnixSeconds(absl::Now()),
                       .policy_version = generation_.policy_version(),
                       .end_token_ids = {options_.end_token_ids.begin(), options_.end_token_ids.end()},
                       .keeps_messages = true});
  GenerateReply whole;
  *whole.mutable_sequence() = std::move(drawn);
  HttpReply reply;
  if (stream) {
    reply.content_type = "text/event-stream; charset=utf-8";
    reply.headers["Cache-Control"] = "no-cache";
    reply.body = answer.Begin() + answer.Take(TokensOf(whole.sequence()));
  }
  reply.body += answer.Take(whole);
  reply.body += stream ? answer.End() : answer.Whole();

  const absl::StatusOr<ChatMessage> message = ReadOpenAiMessage(answer.Message(0), "message");
  QUARTET_CHECK(message.ok()) << message.status().message();
  DrawnAnswer of_turn = DrawnOf(whole.sequence());
  const std::lock_guard lock(mutex_);
  if (closing_.stop_requested()) return ErrorReply(EpisodeIsClosed());
  // Before it is sent: the next request may come, on another connection, before the sending is known to have ended.
  Turn& turn = turns_[asked.turn];
  turn.text = options_.tokenizer->Decode(of_turn.ids, /*skip_special_tokens=*/true);
  turn.truncated = whole.sequence().finish_reason() == GeneratedSequence::LENGTH;
  turn.overlong = turn.truncated && !asked.shortened;
  turn.messages.push_back(Keep(*message));
  turn.delivered = true;  // as far as is known
  episode_.Answered(asked.turn, std::move(of_turn), *message);
  reply.when_sent = [this, name = asked.turn, call](bool delivered) {
    if (!delivered) Undelivered(name);
  };
  return reply;
}

void ServedEpisode::Unanswered(int64_t turn) {
  const std::lock_guard lock(mutex_);
  episode_.Unanswered(turn);
  turns_.erase(turn);
  --asked_;
}

void ServedEpisode::Undelivered(int64_t turn) {
  const std::lock_guard lock(mutex_);
  episode_.Undelivered(turn);
  turns_[turn].delivered = false;
  --asked_;
}

HttpReply ServedEpisode::Refuse(HttpReply reply) {
  if (reply.status / 100 != 4) return reply;
  const std::lock_guard lock(mutex_);
  if (record_.refused++ == 0) {
    record_.refusal = nlohmann::json::parse(reply.body)["error"]["message"].get<std::string>();
  }
  return reply;
}

EpisodeRecord ServedEpisode::Close() {
  GiveUp();
  std::unique_lock lock(mutex_);
  call_ended_.wait(lock, [this] { return calls_ == 0; });
  record_.sequences = episode_.Sequences();
  record_.calls = std::ranges::count_if(turns_ | std::views::values, &Turn::delivered);
  if (!record_.sequences.empty()) {
    Turn& last = turns_.at(record_.sequences.back().last_turn);
    record_.conversation = OrderedJson::array();
    for (const std::string* message : last.messages) record_.conversation.push_back(OrderedJson::parse(*message));
    record_.response = std::move(last.text);
    record_.truncated = last.truncated;
    record_.overlong = last.overlong;
  }
  return std::move(record_);
}

}  // namespace quartet
