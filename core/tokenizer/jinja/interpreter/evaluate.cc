// The expressions of Interpreter.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/tokenizer/jinja/interpreter/filters.h"
#include "core/tokenizer/jinja/interpreter/functions.h"
#include "core/tokenizer/jinja/interpreter/interpreter.h"
#include "core/tokenizer/jinja/interpreter/methods.h"
#include "core/tokenizer/jinja/values/text.h"

namespace quartet::jinja {
namespace {

// Text added to text; escaped where the other is safe.
Value Joined(const Value& left, const Value& right) {
  const bool safe = left.safe || right.safe;
  const auto part = [&](const Value& text) { return safe && !text.safe ? EscapeHtml(text.text) : text.text; };
  return Value::Text(part(left) + part(right), safe);
}

}  // namespace

Value Interpreter::Lookup(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->find(name);
    if (found != scope->end()) return found->second;
  }
  return IsFunction(name) ? Value::Function(name) : Value::Undefined(name);
}

Value Interpreter::Evaluate(const Node& node) {
  if (!Step()) return {};
  switch (node.kind) {
    case NodeKind::kLiteral:
      return node.literal;
    case NodeKind::kName:
      return Lookup(node.text);
    case NodeKind::kList:
    case NodeKind::kTuple: {
      List list;
      for (const NodePtr& kid : node.kids) list.push_back(Evaluate(*kid));
      return Value::Of(std::move(list), node.kind == NodeKind::kTuple ? ListKind::kTuple : ListKind::kList);
    }
    case NodeKind::kDict:
      return EvaluateDict(node);
    case NodeKind::kAttribute:
      return Attribute(node, Evaluate(*node.kids[0]), node.text, /*methods=*/true);
    case NodeKind::kIndex: {
      const Value object = Evaluate(*node.kids[0]);
      return Index(node, object, Evaluate(*node.kids[1]));
    }
    case NodeKind::kSlice:
      return Slice(node);
    case NodeKind::kCall:
      return Call(node, EvaluateArguments(node));
    case NodeKind::kFilter: {
      const Value value =
          node.kids[0] != nullptr ? Evaluate(*node.kids[0]) : Value::Text(*std::exchange(filtered_, std::nullopt));
      return Filter(node, node.text, value, EvaluateArguments(node));
    }
    case NodeKind::kTest: {
      const Value value = Evaluate(*node.kids[0]);
      return Value::Bool(Test(node, node.text, value, EvaluateArguments(node)) != node.negated);
    }
    case NodeKind::kUnary:
      return Unary(node);
    case NodeKind::kBinary:
      return Binary(node);
    case NodeKind::kCompare:
      return Compare(node);
    case NodeKind::kConditional:
      if (IsTrue(Evaluate(*node.kids[1]))) return Evaluate(*node.kids[0]);
      return node.kids[2] != nullptr ? Evaluate(*node.kids[2]) : Value();
    default:
      return Fail(node, "not an expression");
  }
}

Value Interpreter::EvaluateDict(const Node& node) {
  Dict dict;
  for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
    const Value key = Evaluate(*node.kids[i]);
    if (!dict.Set(key, Evaluate(*node.kids[i + 1]))) return Fail(node, absl::StrCat(TypeName(key), " cannot be a key"));
  }
  return Value::Of(std::move(dict));
}

Value Interpreter::Defined(const Node& node) {
  Value value = Evaluate(node);
  if (status_.ok() && !value.defined()) Fail(node, absl::StrCat("\"", value.text, "\" is undefined"));
  return value;
}

Arguments Interpreter::EvaluateArguments(const Node& node) {
  Arguments arguments;
  for (size_t i = 1; i < node.kids.size(); ++i) {
    Value value = Evaluate(*node.kids[i]);
    const std::string& keyword = node.names[i - 1];
    if (keyword == "*") {
      for (Value& item : Items(node, value)) arguments.positional.push_back(std::move(item));
    } else if (keyword == "**" && value.is_dict()) {
      for (const auto& [key, item] : value.dict->items()) arguments.named[key.text] = item;
    } else if (keyword == "**") {
      Fail(node, absl::StrCat("\"**\" takes a dict, not ", TypeName(value)));
    } else if (keyword.empty()) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named[keyword] = std::move(value);
    }
  }
  return arguments;
}

List Interpreter::Items(const Node& at, const Value& value) {
  List items;
  if (!value.defined()) return items;
  if (value.is_list()) {
    items = *value.list;
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.dict->items()) items.push_back(key);
  } else if (value.is_text()) {
    for (std::string& character : Characters(value.text)) items.push_back(Value::Text(std::move(character)));
  } else {
    Fail(at, absl::StrCat(TypeName(value), " cannot be iterated over"));
  }
  steps_ += static_cast<int64_t>(items.size());
  return items;
}

Value Interpreter::Attribute(const Node& at, const Value& object, const std::string& name, bool methods) {
  if (!status_.ok()) return {};
  if (!object.defined()) {
    return Fail(at, absl::StrCat("\"", object.text, "\" is undefined, and so has no \"", name, "\""));
  }
  if (object.kind == Value::Kind::kNamespace) {
    const auto found = object.fields->find(name);
    return found == object.fields->end() ? Value::Undefined(name) : found->second;
  }
  if (methods && HasMethod(object, name)) return Value::Method(object, name);
  if (object.is_dict()) {
    if (const Value* found = object.dict->Find(name); found != nullptr) return *found;
  }
  // Of x["items"] Jinja looks for an attribute where there is no such key.
  if (!methods && HasMethod(object, name)) return Value::Method(object, name);
  return Value::Undefined(name);
}

Value Interpreter::AtPath(const Node& at, const Value& object, const Value& path, const Value& fallback) {
  const auto part_of = [&](const Value& value, const Value& index) {
    Value part = Index(at, value, index);
    return !part.defined() && fallback.defined() ? fallback : part;
  };
  if (!path.is_text()) return part_of(object, path);
  Value value = object;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(path.text, '.'))) {
    int64_t number = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    value = part_of(value, digits && absl::SimpleAtoi(part, &number) ? Value::Int(number) : Value::Text(part));
  }
  return value;
}

Value Interpreter::Index(const Node& at, const Value& object, const Value& index) {
  if (!status_.ok()) return {};
  if (!object.defined()) return Fail(at, absl::StrCat("\"", object.text, "\" is undefined"));
  if (object.is_dict()) {
    if (const Value* found = object.dict->Find(index); found != nullptr) return *found;
  }
  if (index.is_text()) return Attribute(at, object, index.text, /*methods=*/false);
  const auto count = static_cast<int64_t>(object.is_list() ? object.list->size() : 0);
  Value missing = Value::Undefined(ToText(index).value_or("the index"));
  if (!index.is_int()) return missing;
  auto i = index.as_int();
  if (object.is_list()) {
    if (i < 0) i += count;
    return i < 0 || i >= count ? missing : (*object.list)[i];
  }
  if (!object.is_text()) return missing;
  const std::vector<std::string> characters = Characters(object.text);
  steps_ += static_cast<int64_t>(characters.size());
  const auto size = static_cast<int64_t>(characters.size());
  if (i < 0) i += size;
  return i < 0 || i >= size ? missing : Value::Text(characters[i], object.safe);
}

Value Interpreter::Slice(const Node& node) {
  const Value object = Defined(*node.kids[0]);
  std::optional<int64_t> parts[3];
  for (int i = 0; i < 3; ++i) {
    if (node.kids[i + 1] == nullptr) continue;
    const Value part = Defined(*node.kids[i + 1]);
    if (part.is_none()) continue;
    if (!part.is_int()) return Fail(node, "the parts of a slice must be whole numbers");
    parts[i] = part.as_int();
  }
  if (!status_.ok()) return {};
  if (!object.is_list() && !object.is_text()) return Fail(node, "only text and lists have slices");
  const List list = Items(node, object);
  const auto count = static_cast<int64_t>(list.size());
  const int64_t step = std::clamp(parts[2].value_or(1), -count - 1, count + 1);
  if (step == 0) return Fail(node, "the step of a slice is 0");
  const auto bound = [&](std::optional<int64_t> part, int64_t fallback) {
    if (!part) return fallback;
    const int64_t at = *part < 0 ? std::max(*part, -count - 1) + count : *part;
    return std::clamp(at, step > 0 ? int64_t{0} : int64_t{-1}, step > 0 ? count : count - 1);
  };
  const int64_t begin = bound(parts[0], step > 0 ? 0 : count - 1);
  const int64_t end = bound(parts[1], step > 0 ? count : -1);
  List slice;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) slice.push_back(list[i]);
  if (object.is_list()) return Value::Of(std::move(slice), object.list_kind);
  std::string text;
  for (const Value& character : slice) text += character.text;
  return Value::Text(std::move(text), object.safe);
}

Value Interpreter::Unary(const Node& node) {
  const Value value = Evaluate(*node.kids[0]);
  if (node.text == "not") return Value::Bool(!IsTrue(value));
  if (!status_.ok()) return {};
  if (!value.is_number()) return Fail(node, "a sign before what is not a number");
  if (!value.is_int()) return Value::Float(node.text == "-" ? -value.real : value.real);
  int64_t negative;
  if (__builtin_sub_overflow(int64_t{0}, value.as_int(), &negative)) return Fail(node, "a number is too large");
  return Value::Int(node.text == "-" ? negative : value.as_int());
}

Value Interpreter::Binary(const Node& node) {
  const std::string& op = node.text;
  if (op == "and" || op == "or") {
    Value left = Evaluate(*node.kids[0]);
    return IsTrue(left) == (op == "or") ? left : Evaluate(*node.kids[1]);
  }
  if (op == "~") {  // never escaped, as there is no autoescape
    const std::string left = Text(node, Evaluate(*node.kids[0]));
    return Value::Text(left + Text(node, Evaluate(*node.kids[1])));
  }
  const Value left = Defined(*node.kids[0]);
  const Value right = Defined(*node.kids[1]);
  if (!status_.ok()) return {};
  if (op == "+" && left.is_text() && right.is_text()) {
    if (left.text.size() + right.text.size() > kMaxOutputBytes) return Fail(node, "too much text");
    return Joined(left, right);
  }
  if (op == "+" && left.is_list() && right.is_list() && left.list_kind == right.list_kind) {
    List sum = *left.list;
    sum.insert(sum.end(), right.list->begin(), right.list->end());
    steps_ += static_cast<int64_t>(sum.size());
    return Value::Of(std::move(sum), left.list_kind);
  }
  if (op == "*" && right.is_int() && (left.is_text() || left.is_list())) return Repeat(node, left, right.as_int());
  if (op == "*" && left.is_int() && (right.is_text() || right.is_list())) return Repeat(node, right, left.as_int());
  if (left.is_number() && right.is_number()) return Arithmetic(node, op, left, right);
  return Fail(node, absl::StrCat("the operator \"", op, "\" is not supported between ", TypeName(left), " and ",
                                 TypeName(right)));
}

Value Interpreter::Repeat(const Node& node, const Value& what, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const size_t size = what.is_text() ? what.text.size() : what.list->size() * 64;
  if (size > 0 && static_cast<size_t>(times) > kMaxOutputBytes / size) return Fail(node, "too much text");
  std::string text;
  List list;
  for (int64_t i = 0; i < times && size > 0; ++i) {
    text += what.text;
    if (what.is_list()) list.insert(list.end(), what.list->begin(), what.list->end());
  }
  steps_ += static_cast<int64_t>(list.size());
  return what.is_text() ? Value::Text(std::move(text), what.safe) : Value::Of(std::move(list), what.list_kind);
}

Value Interpreter::Arithmetic(const Node& node, const std::string& op, const Value& left, const Value& right) {
  const bool power_below_one = op == "**" && right.is_int() && right.as_int() < 0;
  if (!left.is_int() || !right.is_int() || op == "/" || power_below_one) {
    const double a = left.as_real(), b = right.as_real();
    if (op == "+") return Value::Float(a + b);
    if (op == "-") return Value::Float(a - b);
    if (op == "*") return Value::Float(a * b);
    if (op == "**") return Value::Float(std::pow(a, b));
    if (b == 0) return Fail(node, "division by zero");
    if (op == "/") return Value::Float(a / b);
    double rest = std::fmod(a, b);  // Python's has the sign of the divisor
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    return Value::Float(op == "%" ? rest : std::floor((a - rest) / b + 0.5));
  }
  const int64_t a = left.as_int(), b = right.as_int();
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    result = 1;
    // Beyond 64 doublings only 0, 1 and -1 stay small.
    const int64_t times = std::abs(a) > 1 ? std::min<int64_t>(b, 64) : b > 1 ? 2 - b % 2 : b;
    for (int64_t i = 0; i < times && !overflow; ++i) overflow = __builtin_mul_overflow(result, a, &result);
  } else if (b == 0) {
    return Fail(node, "division by zero");
  } else if (b == -1) {
    overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
  } else {
    int64_t remainder = a % b;
    if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
    result = op == "%" ? remainder : (a - remainder) / b;
  }
  if (overflow) return Fail(node, "a number is too large");
  return Value::Int(result);
}

bool Interpreter::Contains(const Node& node, const Value& container, const Value& item) {
  if (!container.defined()) return false;
  if (container.is_text() && item.is_text()) return container.text.find(item.text) != std::string::npos;
  if (container.is_list()) {
    steps_ += static_cast<int64_t>(container.list->size());
    return std::any_of(container.list->begin(), container.list->end(),
                       [&](const Value& one) { return Equal(one, item); });
  }
  if (container.is_dict()) return container.dict->Find(item) != nullptr;
  Fail(node, absl::StrCat("\"in\" is not supported for ", TypeName(item), " in ", TypeName(container)));
  return false;
}

bool Interpreter::Holds(const Node& node, const Value& left, std::string_view op, const Value& right) {
  if (!status_.ok()) return false;
  if (op == "==" || op == "!=") return Equal(left, right) == (op == "==");
  if (op == "in" || op == "not in") return Contains(node, right, left) == (op == "in");
  const bool swapped = op == ">" || op == "<=";
  std::optional<bool> less;
  if (left.defined() && right.defined()) less = swapped ? Less(right, left) : Less(left, right);
  if (!less) {
    Fail(node,
         absl::StrCat("\"", std::string(op), "\" is not supported between ", TypeName(left), " and ", TypeName(right)));
    return false;
  }
  return *less == (op == "<" || op == ">");
}

Value Interpreter::Compare(const Node& node) {
  Value left = Evaluate(*node.kids[0]);
  for (size_t i = 0; i < node.names.size(); ++i) {
    Value right = Evaluate(*node.kids[i + 1]);
    if (!Holds(node, left, node.names[i], right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::Filter(const Node& at, const std::string& name, const Value& value, const Arguments& arguments) {
  return status_.ok() ? ApplyFilter(*this, at, name, value, arguments) : Value();
}

bool Interpreter::Test(const Node& at, const std::string& name, const Value& value, const Arguments& arguments) {
  return status_.ok() && ApplyTest(*this, at, name, value, arguments);
}

}  // namespace quartet::jinja
