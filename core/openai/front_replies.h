// What whoever serves OpenAI's interface answers before anything is asked of a policy. Thread safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/byte_budget.h"
#include "core/http/http_server.h"

namespace quartet {

inline constexpr char kModelsPath[] = "/v1/models";

// 405 where the method is another; 415 where a POST has a body that is not plain JSON. Nothing: all is well.
std::optional<HttpReply> RefuseHead(const HttpRequest& head, const std::string& method);

// 413.
HttpReply TooLongReply(const std::string& message);
// 503: the bodies of all requests take the `limit` bytes of the option `field`.
HttpReply BodiesFullReply(absl::string_view field, int64_t limit);

// Has `reading`, a share of request.bodies, hold what the body takes while it is read. A reply, of 413 or 503: there is
// no room for it. `field`: the option that says how much there is.
std::optional<HttpReply> HoldWhileRead(const HttpRequest& request, absl::string_view field, ByteBudget::Share* reading);

// The answer to GET of `path`, kModelsPath or below it: the model, which was `created` (seconds since 1970); or 404.
HttpReply ModelsReply(const std::string& path, const std::string& model, int64_t created, int64_t max_model_len);

}  // namespace quartet
