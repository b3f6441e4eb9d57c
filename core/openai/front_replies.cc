#include "core/openai/front_replies.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/http/http_access.h"
#include "core/openai/api_error.h"
#include "core/openai/openai_request.h"

namespace quartet {
namespace {

HttpReply InvalidReply(int status, const std::string& message) {
  HttpReply reply = ErrorReply(absl::InvalidArgumentError(message));
  reply.status = status;
  return reply;
}

}  // namespace

std::optional<HttpReply> RefuseHead(const HttpRequest& head, const std::string& method) {
  if (head.method != method) {
    HttpReply reply = InvalidReply(405, absl::StrCat(head.method, " is not allowed here, only ", method));
    reply.headers["Allow"] = method;
    return reply;
  }
  if (method != "POST") return std::nullopt;
  const std::string type = absl::AsciiStrToLower(HeaderOf(head, "content-type"));
  if (type.substr(0, type.find_first_of("; ")) != "application/json") {
    return InvalidReply(415, absl::StrCat("the header Content-Type is \"", type, "\"; allowed: application/json"));
  }
  const std::string coding = absl::AsciiStrToLower(HeaderOf(head, "content-encoding"));
  if (!coding.empty() && coding != "identity") {
    HttpReply reply = InvalidReply(415, absl::StrCat("the header Content-Encoding is \"", coding,
                                                     "\"; allowed: none, or identity: bodies come as they are"));
    reply.headers["Accept-Encoding"] = "identity";
    return reply;
  }
  return std::nullopt;
}

HttpReply TooLongReply(const std::string& message) { return InvalidReply(413, message); }

HttpReply BodiesFullReply(absl::string_view field, int64_t limit) {
  return ErrorReply(absl::UnavailableError(
      absl::StrCat("the bodies of all requests take ", field, " = ", limit, " bytes; try again later")));
}

std::optional<HttpReply> HoldWhileRead(const HttpRequest& request, absl::string_view field,
                                       ByteBudget::Share* reading) {
  const int64_t bytes = JsonBytes(request.body), limit = request.bodies->limit();
  if (const int64_t whole = bytes + request.share.bytes(); whole > limit) {
    return TooLongReply(absl::StrCat("the body would take ", whole,
                                     " bytes of memory while it is read; allowed: at most ", field, " = ", limit,
                                     ": ask for fewer prompts at a time"));
  }
  if (!reading->Grow(bytes)) return BodiesFullReply(field, limit);
  return std::nullopt;
}

HttpReply ModelsReply(const std::string& path, const std::string& model, int64_t created, int64_t max_model_len) {
  const nlohmann::ordered_json card = {{"id", model},
                                       {"object", "model"},
                                       {"created", created},
                                       {"owned_by", "quartet"},
                                       {"max_model_len", max_model_len}};
  HttpReply reply;
  if (path == kModelsPath) {
    reply.body = nlohmann::ordered_json{{"object", "list"}, {"data", nlohmann::ordered_json::array({card})}}.dump();
    return reply;
  }
  const std::string asked = path.substr(sizeof(kModelsPath));  // and the slash behind it
  if (asked != model) {
    return ErrorReply(absl::NotFoundError(absl::StrCat("model is \"", asked, "\"; here is only \"", model, "\"")));
  }
  reply.body = card.dump();
  return reply;
}

}  // namespace quartet
