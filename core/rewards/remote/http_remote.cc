#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/rewards/remote/in_parts.h"
#include "core/rewards/remote/remote.h"
#include "core/rewards/reply_json.h"
#include "core/rewards/token_rewards.h"

namespace quartet {
namespace {

using nlohmann::json;

constexpr long kConnectMilliseconds = 10'000;
constexpr long kLookMilliseconds = 2'000;

struct FreeHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using Handle = std::unique_ptr<CURL, FreeHandle>;
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// What the library calls while a request is under way.
struct Transfer {
  std::string reply;
  bool too_long = false;
  std::stop_token stop;

  static size_t Take(char* bytes, size_t size, size_t count, void* transfer) {
    auto& self = *static_cast<Transfer*>(transfer);
    self.too_long = self.reply.size() + size * count > size_t{kMostReplyBytes};
    if (self.too_long) return 0;
    self.reply.append(bytes, size * count);
    return size * count;
  }
  static int Continue(void* transfer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(transfer)->stop.stop_requested() ? 1 : 0;
  }
};

// Whether asking again may help.
bool Passes(long http_status) {
  return http_status >= 500 ? http_status != 501 : http_status == 408 || http_status == 429;
}

// Whether a request with fewer answers may be taken.
Asked::Smaller SmallerAfter(long http_status) {
  if (http_status < 400 || http_status >= 500 || Passes(http_status)) return Asked::Smaller::kNone;
  return http_status == 413 ? Asked::Smaller::kHalves : Asked::Smaller::kOnes;
}

class HttpRemote final : public RewardFunction {
 public:
  explicit HttpRemote(RemoteOptions options) : options_(std::move(options)) {
    static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
    (void)once;
    headers_.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    // Servers are not asked whether they would take the body.
    curl_slist_append(headers_.get(), "Expect:");
    if (!options_.api_key.empty()) {
      curl_slist_append(headers_.get(), absl::StrCat("Authorization: Bearer ", options_.api_key).c_str());
    }
  }

  std::vector<absl::StatusOr<Reward>> Score(std::span<const Answer* const> answers, std::stop_token stop) override {
    const std::string& url = options_.urls[next_++ % options_.urls.size()];
    return AskInParts(answers, [&](std::span<const Answer* const> part) { return AskAt(url, part, stop); });
  }

  // Any server will do: others are asked in its place.
  absl::Status Check() override {
    if (reached_) return absl::OkStatus();
    absl::Status status;
    for (const std::string& url : options_.urls) {
      const absl::Status one = Prefixed(url, Connect(url));
      if (one.ok()) reached_ = true;
      if (one.ok()) return one;
      status.Update(one);
    }
    return status;
  }

 private:
  static absl::Status Connect(const std::string& url) {
    const Handle handle(curl_easy_init());
    if (handle == nullptr) return absl::ResourceExhaustedError("cannot make a connection");
    char error[CURL_ERROR_SIZE] = "";
    CURL* const h = handle.get();
    curl_easy_setopt(h, CURLOPT_URL, url.c_str());
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_PROXY, "");
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, kLookMilliseconds);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, error);
    const CURLcode code = curl_easy_perform(h);
    if (code == CURLE_OK) return absl::OkStatus();
    return absl::UnavailableError(*error != '\0' ? error : curl_easy_strerror(code));
  }

  Asked AskAt(const std::string& url, std::span<const Answer* const> answers, const std::stop_token& stop) {
    json request = {
        {"query", json::array()}, {"prompts", json::array()}, {"labels", json::array()}, {"rows", json::array()}};
    const bool of_agents = std::ranges::any_of(answers, [](const Answer* answer) { return !answer->messages.empty(); });
    for (const Answer* answer : answers) {
      request["query"].push_back(answer->query);
      request["prompts"].push_back(answer->prompt);
      request["labels"].push_back(answer->label);
      request["rows"].push_back(RowOf(*answer));
      if (of_agents) request["messages"].push_back(MessagesOf(*answer));
      if (!options_.token_rewards) continue;
      request["token_ids"].push_back(answer->token_ids);
      request["token_texts"].push_back(answer->token_texts);
    }
    Asked::Smaller smaller = Asked::Smaller::kNone;
    const absl::StatusOr<std::string> reply = Post(url, PrintExactJson(request), answers.size(), stop, &smaller);
    absl::StatusOr<std::vector<absl::StatusOr<Reward>>> rewards =
        reply.ok() ? ReadReply(*reply, answers) : reply.status();
    if (!rewards.ok()) return {Prefixed(url, rewards.status()), smaller};
    for (absl::StatusOr<Reward>& reward : *rewards) reward = Prefixed(url, std::move(reward));
    return {std::move(rewards)};
  }

  absl::StatusOr<std::string> Post(const std::string& url, const std::string& body, size_t answers,
                                   std::stop_token stop, Asked::Smaller* smaller) {
    Handle handle = TakeHandle();
    if (handle == nullptr) return absl::ResourceExhaustedError("cannot make a connection");
    Transfer transfer = {.stop = std::move(stop)};
    char error[CURL_ERROR_SIZE] = "";
    CURL* const h = handle.get();
    curl_easy_setopt(h, CURLOPT_URL, url.c_str());
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_PROXY, "");
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(h, CURLOPT_POST, 1L);
    curl_easy_setopt(h, CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(options_.timeout)));
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, kConnectMilliseconds);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, &Transfer::Take);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, &transfer);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, &Transfer::Continue);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, &transfer);
    const CURLcode code = curl_easy_perform(h);
    long status = 0;
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
    SayIfSlow(h, url, answers);
    curl_easy_reset(h);  // connections stay
    KeepHandle(std::move(handle));
    if (code != CURLE_OK) {
      if (transfer.stop.stop_requested()) return absl::CancelledError("the call has ended");
      if (transfer.too_long) {
        return absl::ResourceExhaustedError(absl::StrCat("the reply is longer than ", kMostReplyBytes, " bytes"));
      }
      if (code == CURLE_OPERATION_TIMEDOUT) {
        return absl::DeadlineExceededError(
            absl::StrCat("no answer after ", absl::FormatDuration(options_.timeout), " (timeout_seconds): ", error));
      }
      return absl::UnavailableError(*error != '\0' ? error : curl_easy_strerror(code));
    }
    if (status == 200) return std::move(transfer.reply);
    *smaller = SmallerAfter(status);
    const std::string message = absl::StrCat("HTTP status ", status, ": ", Quoted(transfer.reply));
    return Passes(status) ? absl::UnavailableError(message) : absl::FailedPreconditionError(message);
  }

  void SayIfSlow(CURL* h, const std::string& url, size_t answers) {
    // A server that accepts fewer connections than come at once lets the others try again, after seconds.
    constexpr double kSlowToConnect = 0.9;
    constexpr absl::Duration kBetween = absl::Minutes(1);
    double connecting = 0, total = 0;
    curl_easy_getinfo(h, CURLINFO_CONNECT_TIME, &connecting);
    curl_easy_getinfo(h, CURLINFO_TOTAL_TIME, &total);
    if (connecting < kSlowToConnect && absl::Seconds(total) < options_.slow) return;
    const std::lock_guard lock(mutex_);
    if (!say_again_.passed()) return;
    say_again_ = Deadline::In(kBetween);
    if (connecting >= kSlowToConnect) {
      QUARTET_LOG(kWarning) << "connecting to " << url << " has taken " << absl::StrFormat("%.1f", connecting)
                            << " s: more connections come at once than it accepts? Fewer workers, or a larger "
                               "max_batch_size, make fewer";
    } else {
      QUARTET_LOG(kWarning) << "a request to " << url << " for " << answers << " answers has taken "
                            << absl::StrFormat("%.1f", total)
                            << " s: it takes so long to score them, or takes one request after the other? More workers "
                               "help a server that works on several at once, further ones in remote_url any";
    }
  }

  // Element `i` of what a reply has under `key` for `count` answers.
  static absl::StatusOr<json> Element(const json& values, const std::string& key, size_t i, size_t count) {
    if (!values.is_array()) {
      if (count == 1) return values;
      return absl::InternalError(absl::StrCat("\"", key, "\" is no list of ", count, " numbers"));
    }
    if (values.size() != count) {
      return absl::InternalError(
          absl::StrCat("\"", key, "\" has ", values.size(), " elements for ", count, " answers"));
    }
    return values[i];
  }

  absl::StatusOr<std::vector<absl::StatusOr<Reward>>> ReadReply(const std::string& text,
                                                                std::span<const Answer* const> answers) const {
    const size_t count = answers.size();
    QUARTET_ASSIGN_OR_RETURN(const json reply, ParseReply(text, json::value_t::object, "with \"rewards\""));
    const auto is_null = [](const json& value) { return value.is_null(); };
    const bool has_tokens =
        reply.contains("token_rewards") && !is_null(reply["token_rewards"]) &&
        !(reply["token_rewards"].is_array() && std::ranges::all_of(reply["token_rewards"], is_null));
    if (has_tokens && !options_.token_rewards) return UnexpectedTokenRewards();
    if (!reply.contains("rewards") && !has_tokens) {
      return absl::InternalError(absl::StrCat("the reply ", Quoted(text), " has no \"rewards\""));
    }
    // A list of another length is the whole reply's error, a number that is none its answer's own.
    const auto element = [&](const char* key, size_t i) -> absl::StatusOr<json> {
      const bool may_be_null = has_tokens || std::string_view(key) != "rewards";
      if (!reply.contains(key) || (reply[key].is_null() && may_be_null)) return json();
      return Element(reply[key], key, i, count);
    };
    if (has_tokens && !reply["token_rewards"].is_array()) return absl::InternalError("\"token_rewards\" is no list");
    const bool has_logs = reply.contains("extra_logs") && !reply["extra_logs"].is_null();
    if (has_logs && !reply["extra_logs"].is_object()) return absl::InternalError("\"extra_logs\" is no object");
    std::vector<absl::StatusOr<Reward>> rewards;
    for (size_t i = 0; i < count; ++i) {
      QUARTET_ASSIGN_OR_RETURN(const json value, element("rewards", i));
      QUARTET_ASSIGN_OR_RETURN(const json of_tokens, element("token_rewards", i));
      QUARTET_ASSIGN_OR_RETURN(const json score, element("scores", i));
      std::map<std::string, json> logs;
      if (has_logs) {
        for (const auto& [name, values] : reply["extra_logs"].items()) {
          QUARTET_ASSIGN_OR_RETURN(logs[name], Element(values, name, i, count));
        }
      }
      rewards.push_back(ReadOne(*answers[i], value, of_tokens, score, logs));
    }
    return rewards;
  }

  static absl::StatusOr<Reward> ReadOne(const Answer& answer, const json& value, const json& of_tokens,
                                        const json& score, const std::map<std::string, json>& logs) {
    if (value.is_null() && of_tokens.is_null()) return absl::InternalError("its reward is null");
    Reward reward;
    std::optional<float> said;
    if (!value.is_null()) {
      QUARTET_ASSIGN_OR_RETURN(said, ReadFinite(value, "\"rewards\""));
      reward.value = *said;
    }
    if (!of_tokens.is_null()) {
      QUARTET_ASSIGN_OR_RETURN(std::vector<float> values, ReadFiniteList(of_tokens, "\"token_rewards\""));
      QUARTET_RETURN_IF_ERROR(SetTokenRewards(answer, std::move(values), said, &reward));
    }
    if (!score.is_null()) {
      QUARTET_ASSIGN_OR_RETURN(reward.score, ReadFinite(score, "\"scores\""));
    }
    for (const auto& [name, log] : logs) {
      if (log.is_null()) continue;
      QUARTET_ASSIGN_OR_RETURN(reward.extra_logs[name], ReadFinite(log, absl::StrCat("\"", name, "\"")));
    }
    return reward;
  }

  Handle TakeHandle() {
    const std::lock_guard lock(mutex_);
    if (handles_.empty()) return Handle(curl_easy_init());
    Handle handle = std::move(handles_.back());
    handles_.pop_back();
    return handle;
  }
  void KeepHandle(Handle handle) {
    const std::lock_guard lock(mutex_);
    handles_.push_back(std::move(handle));
  }

  const RemoteOptions options_;
  std::unique_ptr<curl_slist, FreeList> headers_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> reached_ = false;
  std::mutex mutex_;
  std::vector<Handle> handles_;  // with their connections, that no request uses
  Deadline say_again_ = Deadline::In(absl::ZeroDuration());
};

}  // namespace

std::unique_ptr<RewardFunction> NewHttpRemote(RemoteOptions options) {
  return std::make_unique<HttpRemote>(std::move(options));
}

}  // namespace quartet
