#include "orchestrator/agents/episode_server.h"

#include <cstdint>
#include <limits>
#include <random>
#include <ranges>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/http/http_access.h"
#include "core/openai/api_error.h"
#include "core/openai/front_replies.h"

namespace quartet {
namespace {

// Requests that become prompts at the same time: a body takes many times its size then.
constexpr int kReadAtOnce = 8;
constexpr char kHost[] = "127.0.0.1";
constexpr char kEpisodes[] = "/episodes/";
constexpr char kChats[] = "/v1/chat/completions";

// 128 bits that nobody can guess, as hexadecimal digits.
std::string RandomKey() {
  std::random_device device;
  std::string key;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&key, "%08x", device());
  return key;
}

// /episodes/KEY/v1/...; empty where it is another path.
struct Target {
  std::string key;
  std::string path;  // from /v1 on
};
Target TargetOf(const std::string& path) {
  if (!path.starts_with(kEpisodes)) return {};
  constexpr size_t kBegin = sizeof(kEpisodes) - 1;
  const size_t end = path.find('/', kBegin);
  if (end == std::string::npos) return {};
  return {path.substr(kBegin, end - kBegin), path.substr(end)};
}

// What the path, from /v1 on, may be asked with; "": there is no such path.
std::string EpisodeMethodOf(const std::string& path) {
  if (path == kChats) return "POST";
  return path == kModelsPath || path.starts_with(absl::StrCat(kModelsPath, "/")) ? "GET" : "";
}

}  // namespace

class EpisodeServer::Handler final : public HttpHandler {
 public:
  explicit Handler(EpisodeServer* server) : server_(*server), created_(absl::ToUnixSeconds(absl::Now())) {}

  std::optional<HttpReply> Refuse(const HttpRequest& head) override {
    const auto [key, path] = TargetOf(head.path);
    const std::optional<Entry> found = server_.Find(key);
    if (!found) return ErrorReply(EpisodeIsClosed());
    if (const absl::Status allowed = CheckKey(head, found->api_key); !allowed.ok()) {
      HttpReply reply = found->episode->Refuse(ErrorReply(allowed));
      reply.headers["WWW-Authenticate"] = "Bearer";
      return reply;
    }
    const std::string method = EpisodeMethodOf(path);
    std::optional<HttpReply> refusal =
        method.empty() ? ErrorReply(absl::UnimplementedError(
                             absl::StrCat("there is no ", path, " in an episode, only ", kChats, " and ", kModelsPath)))
                       : RefuseHead(head, method);
    if (refusal) refusal = found->episode->Refuse(*std::move(refusal));
    return refusal;
  }
  HttpReply Refused(const HttpRequest& head, HttpReply refusal) override {
    const std::optional<Entry> found = server_.Find(TargetOf(head.path).key);
    return found ? found->episode->Refuse(std::move(refusal)) : refusal;
  }
  bool IsControl(const HttpRequest& head) override { return TargetOf(head.path).path != kChats; }
  HttpReply Answer(HttpRequest& request, const std::stop_token& gone) override {
    const auto [key, path] = TargetOf(request.path);
    if (path != kChats) {
      const EpisodeOptions& episode = server_.options_.episode;
      return ModelsReply(path, episode.model, created_, episode.max_len);
    }
    const std::optional<Entry> found = server_.Find(key);
    return found ? found->episode->Complete(request, gone) : ErrorReply(EpisodeIsClosed());
  }

 private:
  EpisodeServer& server_;
  const int64_t created_;  // seconds since 1970
};

EpisodeServer::EpisodeServer(EpisodeServerOptions options)
    : options_(std::move(options)),
      reading_(kReadAtOnce),
      gate_(options_.max_calls),
      handler_(std::make_unique<Handler>(this)) {
  options_.episode.on_set_aside = [this](const std::vector<std::string>& names) {
    const std::lock_guard lock(mutex_);
    for (const std::string& name : names) {
      if (!told_.insert(name).second || !options_.notice) continue;
      options_.notice(absl::StrCat("an agent asks for a ", name,
                                   " of its own, which has no effect: answers are drawn as the run says"));
    }
  };
}

absl::StatusOr<std::unique_ptr<EpisodeServer>> EpisodeServer::Start(EpisodeServerOptions options) {
  std::unique_ptr<EpisodeServer> server(new EpisodeServer(std::move(options)));
  HttpServerOptions http{.listen = {kHost, 0}};
  http.malformed = ErrorReply(absl::InvalidArgumentError(kMalformedHeaders));
  http.too_long = TooLongReply(absl::StrCat("the body is longer than ", http.max_body_bytes, " bytes"));
  // As many as there are connections, since a request that is refused fails an episode for others' sake.
  http.max_bodies_bytes = std::numeric_limits<int64_t>::max();
  http.max_requests = server->options_.max_calls + server->options_.max_waiting;
  http.too_many = ErrorReply(absl::ResourceExhaustedError(
      absl::StrCat(http.max_requests, " requests run or wait, as many as may; try again later")));
  QUARTET_ASSIGN_OR_RETURN(server->server_, HttpServer::Start(http, server->handler_.get()));
  return server;
}

EpisodeServer::~EpisodeServer() {
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : open_ | std::views::values) entry.episode->GiveUp();
  }
  server_.reset();
}

void EpisodeServer::SetGeneration(const GenerateHeader& header) {
  const std::lock_guard lock(mutex_);
  generation_ = header;
}

OpenEpisode EpisodeServer::Open(uint64_t seed) {
  OpenEpisode opened{.key = RandomKey(), .base_url = "", .api_key = RandomKey()};
  opened.base_url = absl::StrCat("http://", server_->address().ToString(), kEpisodes, opened.key, "/v1");
  const std::lock_guard lock(mutex_);
  auto episode = std::make_shared<ServedEpisode>(&options_.episode, &reading_, &gate_, seed, generation_);
  open_[opened.key] = {.api_key = opened.api_key, .episode = std::move(episode)};
  return opened;
}

EpisodeRecord EpisodeServer::Close(const std::string& key) {
  std::shared_ptr<ServedEpisode> episode;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(key);
    QUARTET_CHECK(found != open_.end());
    episode = std::move(found->second.episode);
    open_.erase(found);
  }
  return episode->Close();
}

std::optional<EpisodeServer::Entry> EpisodeServer::Find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(key);
  return found == open_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace quartet
