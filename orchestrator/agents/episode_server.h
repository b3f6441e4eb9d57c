// Serves open episodes: OpenAI's chats over HTTP, on this host alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "core/http/http_server.h"
#include "orchestrator/agents/call_gate.h"
#include "orchestrator/agents/episode_record.h"
#include "orchestrator/agents/served_episode.h"

namespace quartet {

struct EpisodeServerOptions {
  EpisodeOptions episode;  // but for on_set_aside
  // Requests of all episodes that are generated at the same time, and further ones that wait. Those beyond are answered
  // with 429.
  int max_calls = 256;
  int max_waiting = 1024;
  // Told, once of each parameter, what of requests has no effect. May be empty.
  std::function<void(const std::string&)> notice;
};

// POST of BASE_URL/chat/completions with the API key is the answer of that episode's policy; GET of BASE_URL/models
// names it. What chats may ask for is what docs/http.md says, but for what the run decides (run_sampling.h). 401:
// another API key; 404: no such episode, which may be closed; 503: the policy has failed, and with it the episode.
class EpisodeServer final : public EpisodeHost {
 public:
  // On a free port of 127.0.0.1. Errors as HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<EpisodeServer>> Start(EpisodeServerOptions options);
  // Gives up the calls of what is still open.
  ~EpisodeServer() override;

  // How answers of episodes that are opened from now on are drawn: by policy_version, and as `sampling` says, with
  // max_new_tokens of one answer; seed and n_samples have no effect. Before anything is opened.
  void SetGeneration(const GenerateHeader& header);

  OpenEpisode Open(uint64_t seed) override;
  // Of an open episode.
  EpisodeRecord Close(const std::string& key) override;

 private:
  class Handler;
  struct Entry {
    std::string api_key;
    std::shared_ptr<ServedEpisode> episode;
  };

  explicit EpisodeServer(EpisodeServerOptions options);
  // Nothing: it is not open.
  std::optional<Entry> Find(const std::string& key);

  EpisodeServerOptions options_;
  CallGate reading_;
  CallGate gate_;
  std::mutex mutex_;
  GenerateHeader generation_;          // guarded by mutex_
  std::map<std::string, Entry> open_;  // by key; guarded by mutex_
  std::set<std::string> told_;         // of which `notice` was; guarded by mutex_
  std::unique_ptr<Handler> handler_;
  std::unique_ptr<HttpServer> server_;  // ends before all else
};

}  // namespace quartet
