// Errors as OpenAI's interface tells them.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/http/http_server.h"

namespace quartet {

// INVALID_ARGUMENT about the parameter `name` of a request: "NAME WHAT".
absl::Status ParameterError(absl::string_view name, absl::string_view what);

// The same where a prompt, which `name` has, is longer than the model takes: clients know it by a code of its own.
absl::Status ContextLengthError(absl::string_view name, absl::string_view what);

// An error of CheckSamplingParams with the names that requests have for the fields: `names` has those that differ.
absl::Status InRequestWords(const absl::Status& status, const std::map<absl::string_view, absl::string_view>& names);

// The HTTP status that `status` is answered with.
int HttpStatusOf(const absl::Status& status);

// {"error": {"message", "type", "param", "code"}}
std::string ErrorBody(const absl::Status& status);

// With Retry-After where it may be tried again.
HttpReply ErrorReply(const absl::Status& status);

}  // namespace quartet
