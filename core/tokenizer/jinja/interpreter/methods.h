// The methods of texts, dicts and lists that a template may call: those of Python that change nothing.
#pragma once

#include <string>

#include "core/tokenizer/jinja/interpreter/interpreter.h"

namespace quartet::jinja {

// Of Python's object; some of them cannot be called here.
bool HasMethod(const Value& object, const std::string& name);
Value CallMethod(Interpreter& interpreter, const Node& at, const Value& method, const Arguments& arguments);

}  // namespace quartet::jinja
