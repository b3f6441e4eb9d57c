// Runs the tree of a template.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "core/tokenizer/jinja/syntax/node.h"
#include "core/tokenizer/jinja/values/value.h"

namespace quartet::jinja {

inline constexpr size_t kMaxOutputBytes = size_t{64} << 20;

struct Arguments {
  std::vector<Value> positional;
  std::map<std::string, Value> named;
};

// After an error every evaluation is undefined and every statement does nothing: the first error is the result.
class Interpreter {
 public:
  // `date` as of JinjaTemplate::Render.
  Interpreter(Fields variables, std::optional<absl::CivilDay> date);
  absl::StatusOr<std::string> Run(const Node& root);

  // ---- For filters, tests, methods and functions ----

  Value Fail(const Node& at, const std::string& what);
  bool ok() const { return status_.ok(); }
  // What strftime_now writes.
  std::tm Now() const;
  // The items of a list, the keys of a dict, the characters of a text.
  List Items(const Node& at, const Value& value);
  // As Python's str writes it.
  std::string Text(const Node& at, const Value& value);
  // object.name where `methods`, else object["name"].
  Value Attribute(const Node& at, const Value& object, const std::string& name, bool methods);
  // What "a.b.0" names, as the filters' `attribute` has it; `fallback`, where it is defined, for a part that is not.
  Value AtPath(const Node& at, const Value& object, const Value& path, const Value& fallback = {});
  bool Holds(const Node& at, const Value& left, std::string_view op, const Value& right);
  Value Filter(const Node& at, const std::string& name, const Value& value, const Arguments& arguments);
  bool Test(const Node& at, const std::string& name, const Value& value, const Arguments& arguments);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  bool Step();
  void Write(const std::string& text, std::string* out);
  std::string Captured(const Node& block);

  Flow Execute(const Node& node, std::string* out);
  void Assign(const Node& target, Value value);
  void For(const Node& node, std::string* out);
  void With(const Node& node, std::string* out);

  Value Lookup(const std::string& name) const;
  Value Evaluate(const Node& node);
  Value EvaluateDict(const Node& node);
  // The value of an expression that has to be defined.
  Value Defined(const Node& node);
  Arguments EvaluateArguments(const Node& node);
  Value Index(const Node& at, const Value& object, const Value& index);
  Value Slice(const Node& node);
  Value Unary(const Node& node);
  Value Binary(const Node& node);
  Value Arithmetic(const Node& node, const std::string& op, const Value& left, const Value& right);
  Value Repeat(const Node& node, const Value& what, int64_t times);
  bool Contains(const Node& node, const Value& container, const Value& item);
  Value Compare(const Node& node);
  Value Call(const Node& node, const Arguments& arguments);
  Value CallMacro(const Node& node, const Value& macro, const Arguments& arguments);
  Value MakeMacro(const Node& node) const;

  std::vector<Fields> scopes_;           // the template's own, then one a loop
  std::optional<std::string> filtered_;  // what the chain of a filter block begins with
  std::optional<absl::CivilDay> date_;
  int64_t steps_ = 0;
  int calls_ = 0;
  absl::Status status_;
};

}  // namespace quartet::jinja
