// The parameters of a request that its chat template is told.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "core/openai/openai_request.h"
#include "core/openai/parameters.h"

namespace quartet {

// Messages, tools and the template's own values, into `chat`; and how its answers are written, as far as that does not
// follow from the prompt.
absl::Status ReadChatParameters(std::string_view chat_template, Parameters* parameters, OpenAiChat* chat);

}  // namespace quartet
