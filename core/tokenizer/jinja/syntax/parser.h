// Tokens to the tree of a template.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/jinja/syntax/lexer.h"
#include "core/tokenizer/jinja/syntax/node.h"

namespace quartet::jinja {

inline constexpr int kMaxDepth = 100;  // of nested statements and expressions, and of macros that call macros

// Statements that are not known are refused by name. INVALID_ARGUMENT names the line.
absl::StatusOr<NodePtr> Parse(std::vector<Token> tokens);

}  // namespace quartet::jinja
