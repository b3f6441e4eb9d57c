#include "core/tokenizer/jinja/interpreter/functions.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tokenizer/jinja/interpreter/bound.h"

namespace quartet::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox
// lipsum, cycler and joiner are there, and cannot be called.
constexpr std::string_view kFunctions[] = {"range",  "dict",   "namespace",    "raise_exception",
                                           "lipsum", "cycler", "strftime_now", "joiner"};

Value Range(Interpreter& interpreter, const Node& at, const Arguments& arguments) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  for (size_t i = 0; i < count && i < 3; ++i) {
    const Value& value = arguments.positional[i];
    if (!value.is_int()) return interpreter.Fail(at, "range() takes whole numbers");
    bounds[count == 1 ? 1 : i] = value.as_int();
  }
  if (count < 1 || count > 3 || bounds[2] == 0) {
    return interpreter.Fail(at, "range() takes one to three numbers, the last not 0");
  }
  List list;
  for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
    list.push_back(Value::Int(i));
    if (list.size() > kMaxRange) {
      return interpreter.Fail(at, absl::StrCat("range() of more than ", kMaxRange, " numbers"));
    }
    if (__builtin_add_overflow(i, bounds[2], &i)) break;
  }
  return Value::Of(std::move(list), ListKind::kRange);
}

// dict(a, b=c) and namespace(a, b=c): of a dict, and of what is named.
Value Fielded(Interpreter& interpreter, const Node& at, const std::string& name, const Arguments& arguments) {
  Dict dict;
  for (const Value& value : arguments.positional) {
    if (!value.is_dict()) return interpreter.Fail(at, absl::StrCat(name, "() takes dicts and named values"));
    for (const auto& [key, item] : value.dict->items()) dict.Set(key, item);
  }
  for (const auto& [key, item] : arguments.named) dict.Set(Value::Text(key), item);
  if (name == "dict") return Value::Of(std::move(dict));
  Fields fields;
  for (const auto& [key, item] : dict.items()) fields[key.text] = item;
  return Value::Namespace(std::move(fields));
}

}  // namespace

bool IsFunction(std::string_view name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

Value CallFunction(Interpreter& interpreter, const Node& at, const std::string& name, const Arguments& arguments) {
  if (name == "range") return Range(interpreter, at, arguments);
  if (name == "dict" || name == "namespace") return Fielded(interpreter, at, name, arguments);
  if (name == "raise_exception") {
    const Bound bound(interpreter, at, name, arguments, {"message"});
    return interpreter.Fail(at, "the template says: " + interpreter.Text(at, bound.Get(0)));
  }
  if (name == "strftime_now") {
    const std::optional<std::string> format = Bound(interpreter, at, name, arguments, {"format"}).Text(0);
    if (!format) return interpreter.Fail(at, "strftime_now() takes a format");
    const std::tm now = interpreter.Now();
    char text[256];
    return Value::Text(std::string(text, std::strftime(text, sizeof(text), format->c_str(), &now)));
  }
  return interpreter.Fail(at, absl::StrCat("the function \"", name, "\" is not supported"));
}

}  // namespace quartet::jinja
