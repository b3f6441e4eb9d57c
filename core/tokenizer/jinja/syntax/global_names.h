// Which of the names that a template is given it reads.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "core/tokenizer/jinja/syntax/node.h"

namespace quartet::jinja {

using Names = std::set<std::string, std::less<>>;

// The names that the template reads where none of its own statements has given them a value: not those of loops,
// macros, `with`, and behind a `set`. One that is set in a branch alone is read behind it.
Names GlobalNames(const Node& root);

}  // namespace quartet::jinja
