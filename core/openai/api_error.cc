#include "core/openai/api_error.h"

#include <nlohmann/json.hpp>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

// The status payload that names the parameter.
constexpr char kParameter[] = "quartet/parameter";
// That of the error's code, where it is not that of its kind.
constexpr char kCode[] = "quartet/code";
// When clients may try again what was refused for the moment.
constexpr char kRetrySeconds[] = "1";

struct Kind {
  int http_status;
  const char* type;
  const char* code;  // or null
};

Kind KindOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error", nullptr};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", nullptr};
    case absl::StatusCode::kNotFound:
      return {404, "not_found_error", "model_not_found"};
    case absl::StatusCode::kUnimplemented:
      return {404, "not_found_error", nullptr};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", "rate_limit_exceeded"};
    case absl::StatusCode::kCancelled:
      return {499, "client_closed_request", nullptr};
    case absl::StatusCode::kUnavailable:
      return {503, "service_unavailable_error", nullptr};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "timeout_error", nullptr};
    default:
      return {500, "server_error", nullptr};
  }
}

}  // namespace

absl::Status ParameterError(absl::string_view name, absl::string_view what) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(name, " ", what));
  status.SetPayload(kParameter, absl::Cord(name));
  return status;
}

absl::Status ContextLengthError(absl::string_view name, absl::string_view what) {
  absl::Status status = ParameterError(name, what);
  status.SetPayload(kCode, absl::Cord("context_length_exceeded"));
  return status;
}

absl::Status InRequestWords(const absl::Status& status, const std::map<absl::string_view, absl::string_view>& names) {
  absl::string_view message = status.message();
  if (!absl::ConsumePrefix(&message, "sampling.")) return status;
  const absl::string_view field = message.substr(0, message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"));
  const auto found = names.find(field);
  const absl::string_view name = found == names.end() ? field : found->second;
  absl::Status renamed(status.code(), absl::StrCat(name, absl::StrReplaceAll(message.substr(field.size()), names)));
  renamed.SetPayload(kParameter, absl::Cord(name));
  return renamed;
}

int HttpStatusOf(const absl::Status& status) { return KindOf(status).http_status; }

std::string ErrorBody(const absl::Status& status) {
  const Kind kind = KindOf(status);
  nlohmann::ordered_json error = {
      {"message", std::string(status.message())}, {"type", kind.type}, {"param", nullptr}, {"code", nullptr}};
  if (const absl::optional<absl::Cord> parameter = status.GetPayload(kParameter)) {
    error["param"] = std::string(*parameter);
  }
  if (kind.code != nullptr) error["code"] = kind.code;
  if (const absl::optional<absl::Cord> code = status.GetPayload(kCode)) error["code"] = std::string(*code);
  return OneLineJson(nlohmann::ordered_json{{"error", std::move(error)}});
}

HttpReply ErrorReply(const absl::Status& status) {
  HttpReply reply;
  reply.status = HttpStatusOf(status);
  if (reply.status == 429 || reply.status == 503) reply.headers["Retry-After"] = kRetrySeconds;
  reply.body = ErrorBody(status);
  return reply;
}

}  // namespace quartet
