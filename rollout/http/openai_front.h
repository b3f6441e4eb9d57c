// OpenAI's HTTP interface to the rollout: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "core/http/http_access.h"
#include "core/http/http_server.h"
#include "proto/run_config.pb.h"
#include "rollout/calls/rollout_backend.h"

namespace quartet {

struct OpenAiFrontOptions {
  std::string served_model_name;
  // Of every request but /health.
  HttpAccess access;
};

class OpenAiFront final : public HttpHandler {
 public:
  // `backend` outlives the front.
  OpenAiFront(OpenAiFrontOptions options, RolloutBackend* backend);

  std::optional<HttpReply> Refuse(const HttpRequest& head) override;
  bool IsControl(const HttpRequest& head) override;
  HttpReply Answer(HttpRequest& request, const std::stop_token& gone) override;

 private:
  HttpReply Complete(bool chat, HttpRequest& request, const std::stop_token& gone);

  const OpenAiFrontOptions options_;
  RolloutBackend* const backend_;
  const int64_t created_;  // seconds since 1970
};

// The HTTP server that rollout.http, which is set, asks for, in front of `backend`. Without an API key it answers
// programs of its own user and of root, or with `any_user` all of this host's. FAILED_PRECONDITION where a
// key's file may be read by others than its owner; else as HttpServer::Start.
class HttpFront {
 public:
  static absl::StatusOr<std::unique_ptr<HttpFront>> Start(const HttpConfig& config, RolloutBackend* backend,
                                                          bool any_user = false);
  // host:port, with the port that was found.
  std::string address() const { return server_->address().ToString(); }
  // What OpenAI's clients call base_url.
  std::string url() const { return scheme_ + address() + "/v1"; }

 private:
  std::string scheme_;
  std::unique_ptr<OpenAiFront> front_;
  std::unique_ptr<HttpServer> server_;  // ends before the front
};

}  // namespace quartet
