// The arguments of a filter, test, method or function, by the names of its parameters.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "core/tokenizer/jinja/interpreter/interpreter.h"

namespace quartet::jinja {

// What is read from it fails the interpreter where it is of another type, and then gives the fallback.
class Bound {
 public:
  // Fails for arguments that `parameters` do not name and for more than these.
  Bound(Interpreter& interpreter, const Node& at, const std::string& what, const Arguments& arguments,
        std::initializer_list<const char*> parameters);

  Value Fail(const std::string& problem) const { return interpreter_.Fail(at_, "\"" + what_ + "\": " + problem); }
  bool given(size_t i) const { return values_[i] != nullptr; }
  // Undefined where not given.
  Value Get(size_t i) const { return given(i) ? *values_[i] : Value(); }
  // Absent and none are nothing.
  std::optional<std::string> Text(size_t i) const;
  int64_t Int(size_t i, int64_t fallback) const;
  bool Flag(size_t i, bool fallback) const { return given(i) ? IsTrue(*values_[i]) : fallback; }

 private:
  Interpreter& interpreter_;
  const Node& at_;
  const std::string what_;
  std::vector<const Value*> values_;
  std::vector<std::string> names_;
};

}  // namespace quartet::jinja
