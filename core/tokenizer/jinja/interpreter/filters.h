// Jinja's filters and tests, and transformers' tojson.
#pragma once

#include <string>

#include "core/tokenizer/jinja/interpreter/interpreter.h"

namespace quartet::jinja {

// A filter or test that is not known, or not with these arguments, is an error that names it.
Value ApplyFilter(Interpreter& interpreter, const Node& at, const std::string& name, const Value& value,
                  const Arguments& arguments);
bool ApplyTest(Interpreter& interpreter, const Node& at, const std::string& name, const Value& value,
               const Arguments& arguments);

}  // namespace quartet::jinja
