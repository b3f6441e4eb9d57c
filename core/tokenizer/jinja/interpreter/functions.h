// The global functions of templates: Jinja's, raise_exception and strftime_now.
#pragma once

#include <string>
#include <string_view>

#include "core/tokenizer/jinja/interpreter/interpreter.h"

namespace quartet::jinja {

bool IsFunction(std::string_view name);
Value CallFunction(Interpreter& interpreter, const Node& at, const std::string& name, const Arguments& arguments);

}  // namespace quartet::jinja
