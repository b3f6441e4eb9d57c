#include "rollout/http/openai_front.h"

#include <deque>
#include <memory>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/openai/api_error.h"
#include "core/openai/front_replies.h"
#include "core/openai/openai_request.h"
#include "core/openai/openai_response.h"

namespace quartet {
namespace {

constexpr absl::Duration kStateTimeout = absl::Seconds(10);
constexpr char kMaxBodies[] = "rollout.http.max_bodies_bytes";

uint64_t Random64() {
  thread_local std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// What `path` may be asked with; "": there is no such path.
std::string MethodOf(const std::string& path) {
  if (path == "/v1/completions" || path == "/v1/chat/completions") return "POST";
  if (path == "/health" || path == "/metrics" || path == kModelsPath ||
      path.starts_with(absl::StrCat(kModelsPath, "/"))) {
    return "GET";
  }
  return "";
}

ServedModel Describe(const std::string& name, const RolloutBackend& backend) {
  return {.name = name,
          .tokenizer = backend.tokenizer(),
          .vocab_size = backend.vocab_size(),
          .max_model_len = backend.max_model_len(),
          .max_sequences = backend.max_guest_sequences()};
}

// One request that the rollout works on.
struct Work {
  ServedModel model;
  std::unique_ptr<OpenAiAnswer> answer;
  std::unique_ptr<BlockingCall> call;
  bool begun = false;
};

// The events of a stream that `reply` makes. They count, with the JSON that they are made from, among what clients have
// yet to fetch.
absl::StatusOr<std::string> TakeAndHold(Work& work, const GenerateReply& reply) {
  const int64_t before = work.answer->json_bytes();
  std::string events = work.answer->Take(reply);
  const int64_t json = work.answer->json_bytes() - before;
  QUARTET_RETURN_IF_ERROR(work.call->Hold(static_cast<int64_t>(events.size()) + json));
  return events;
}

// The next events of a stream; nothing after the last.
std::optional<std::string> NextEvents(Work& work) {
  if (!work.begun) {
    work.begun = true;
    return work.answer->Begin();
  }
  if (work.call == nullptr) return std::nullopt;
  const absl::StatusOr<std::deque<GenerateReply>> replies = work.call->Next();
  if (!replies.ok() || replies->empty()) {
    work.call.reset();
    return replies.ok() ? work.answer->End() : OpenAiAnswer::Failure(replies.status());
  }
  std::string events;
  for (const GenerateReply& reply : *replies) {
    const absl::StatusOr<std::string> further = TakeAndHold(work, reply);
    if (!further.ok()) {
      work.call.reset();
      return OpenAiAnswer::Failure(further.status());
    }
    events += *further;
  }
  return events;
}

HttpReply WholeAnswer(Work& work) {
  for (;;) {
    const absl::StatusOr<std::deque<GenerateReply>> replies = work.call->Next();
    if (!replies.ok()) return ErrorReply(replies.status());
    if (replies->empty()) break;
    for (const GenerateReply& reply : *replies) {
      if (const absl::Status held = TakeAndHold(work, reply).status(); !held.ok()) return ErrorReply(held);
    }
  }
  HttpReply reply;
  reply.body = work.answer->Whole();
  return reply;
}

}  // namespace

OpenAiFront::OpenAiFront(OpenAiFrontOptions options, RolloutBackend* backend)
    : options_(std::move(options)), backend_(backend), created_(absl::ToUnixSeconds(absl::Now())) {}

std::optional<HttpReply> OpenAiFront::Refuse(const HttpRequest& head) {
  if (head.path == "/health" && head.method == "GET") return std::nullopt;
  if (const absl::Status allowed = options_.access.Check(head); !allowed.ok()) {
    HttpReply reply = ErrorReply(allowed);
    if (absl::IsUnauthenticated(allowed)) reply.headers["WWW-Authenticate"] = "Bearer";
    return reply;
  }
  const std::string method = MethodOf(head.path);
  if (method.empty()) return ErrorReply(absl::UnimplementedError(absl::StrCat("there is no ", head.path)));
  return RefuseHead(head, method);
}

bool OpenAiFront::IsControl(const HttpRequest& head) { return MethodOf(head.path) != "POST"; }

HttpReply OpenAiFront::Answer(HttpRequest& request, const std::stop_token& gone) {
  if (const absl::Status serving = backend_->CheckServing(); !serving.ok()) return ErrorReply(serving);
  absl::Status weights = backend_->CheckWeights();
  if (!weights.ok()) weights = absl::UnavailableError(weights.message());
  HttpReply reply;
  reply.content_type = "text/plain; charset=utf-8";
  if (request.path == "/health") {
    const absl::Status health = backend_->CheckHealth();
    return health.ok() ? reply : ErrorReply(health);
  }
  if (request.path == "/metrics") {
    const absl::StatusOr<GenerationState> state = backend_->State(Deadline::In(kStateTimeout));
    if (!state.ok()) return ErrorReply(state.status());
    MetricFamilies families;
    AddRolloutFigures(*state, options_.served_model_name, &families);
    return MetricsReply(families);
  }
  if (request.path.starts_with(kModelsPath)) {
    return ModelsReply(request.path, options_.served_model_name, created_, backend_->max_model_len());
  }
  if (!weights.ok()) return ErrorReply(weights);
  return Complete(request.path == "/v1/chat/completions", request, gone);
}

HttpReply OpenAiFront::Complete(bool chat, HttpRequest& request, const std::stop_token& gone) {
  auto work = std::make_shared<Work>();
  work->model = Describe(options_.served_model_name, *backend_);
  absl::StatusOr<OpenAiRequest> asked;
  {
    ByteBudget::Share reading(request.bodies);
    if (std::optional<HttpReply> refusal = HoldWhileRead(request, kMaxBodies, &reading)) return *std::move(refusal);
    asked = ReadOpenAiRequest(chat, request.body, work->model, Random64());
  }
  if (!asked.ok()) return ErrorReply(asked.status());
  if (const absl::Status fits = backend_->Check(asked->header.sampling(), asked->prompts); !fits.ok()) {
    return ErrorReply(fits);
  }
  OpenAiAnswerOptions options;
  options.id = absl::StrFormat("%016x", Random64());
  options.created = absl::ToUnixSeconds(absl::Now());
  options.end_token_ids = backend_->stop_token_ids();
  if (!asked->header.sampling().ignore_eos()) options.end_token_ids.merge(backend_->eos_token_ids());
  absl::StatusOr<std::unique_ptr<BlockingCall>> call =
      backend_->Begin(asked->header, asked->prompts, gone, &options.policy_version);
  if (!call.ok()) return ErrorReply(call.status());
  request.DropBody();  // its prompts do not wait here any more
  work->call = *std::move(call);
  const bool stream = asked->stream;
  work->answer = std::make_unique<OpenAiAnswer>(*std::move(asked), work->model, options);
  HttpReply reply;
  if (!stream) {
    reply = WholeAnswer(*work);
    work->answer.reset();
    reply.until_sent = std::move(work);  // its sequences count until then
    return reply;
  }
  reply.content_type = "text/event-stream; charset=utf-8";
  reply.headers["Cache-Control"] = "no-cache";
  reply.next_piece = [work = std::move(work)] { return NextEvents(*work); };
  return reply;
}

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(const HttpConfig& config, RolloutBackend* backend,
                                                            bool any_user) {
  QUARTET_ASSIGN_OR_RETURN(const HttpAccess access, HttpAccess::Read({.section = "rollout.http",
                                                                      .listen = config.listen(),
                                                                      .api_key_file = config.api_key_file(),
                                                                      .cert_file = config.cert_file(),
                                                                      .key_file = config.key_file(),
                                                                      .any_user = any_user}));
  HttpServerOptions server;
  server.not_yours = ErrorReply(access.not_yours());
  server.malformed = ErrorReply(absl::InvalidArgumentError(kMalformedHeaders));
  server.too_long = TooLongReply(absl::StrCat("the body is longer than ", server.max_body_bytes, " bytes"));
  server.max_bodies_bytes = config.max_bodies_bytes();
  server.bodies_full = BodiesFullReply(kMaxBodies, server.max_bodies_bytes);
  server.max_requests = static_cast<int>(backend->max_guest_calls());
  server.too_many = ErrorReply(absl::UnavailableError(
      absl::StrCat(server.max_requests, " requests wait or run; rollout.max_calls has no place for more of them")));
  auto front = std::make_unique<HttpFront>();
  front->scheme_ = access.scheme();
  front->front_ = std::make_unique<OpenAiFront>(OpenAiFrontOptions{config.served_model_name(), access}, backend);
  QUARTET_ASSIGN_OR_RETURN(front->server_, access.Start(server, front->front_.get()));
  return front;
}

}  // namespace quartet
