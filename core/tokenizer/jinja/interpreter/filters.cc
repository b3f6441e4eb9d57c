#include "core/tokenizer/jinja/interpreter/filters.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/tokenizer/jinja/interpreter/bound.h"
#include "core/tokenizer/jinja/values/json_text.h"
#include "core/tokenizer/jinja/values/text.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet::jinja {
namespace {

// One use of a filter.
class Use {
 public:
  Use(Interpreter& interpreter, const Node& at, const std::string& name, const Value& value, const Arguments& arguments)
      : interpreter_(interpreter), at_(at), name_(name), value_(value), arguments_(arguments) {}

  // ---- Texts ----

  Value Trim() { return Like(Strip(Text(), Bind({"chars"}).Text(0), true, true)); }
  Value Lower() { return Like(Lowercase(Text())); }
  Value OfAscii() {
    const std::string text = Text();
    if (!IsAscii(text)) return Fail("is supported for ASCII text only");
    return Like(name_ == "upper" ? Uppercase(text) : name_ == "title" ? TitleOfWords(text) : Capitalize(text));
  }
  Value String() { return Value::Text(Text(), value_.safe); }
  Value Safe() { return Value::Text(Text(), true); }
  Value Escape() { return value_.safe && name_ != "forceescape" ? value_ : Value::Text(EscapeHtml(Text()), true); }
  Value Replace() {
    const Bound bound = Bind({"old", "new", "count"});
    const std::string from = interpreter_.Text(at_, bound.Get(0)), to = interpreter_.Text(at_, bound.Get(1));
    if (from.empty()) return Fail("replaces an empty text");
    return Value::Text(ReplaceText(Text(), from, to, bound.Get(2).is_none() ? -1 : bound.Int(2, -1)));
  }
  Value Join() {
    const Bound bound = Bind({"d", "attribute"});
    const std::string between = bound.given(0) ? interpreter_.Text(at_, bound.Get(0)) : "";
    std::string joined;
    bool begun = false;
    for (const Value& item : interpreter_.Items(at_, value_)) {
      joined += (begun ? between : "") + interpreter_.Text(at_, Part(item, bound.Get(1)));
      begun = true;
    }
    return Value::Text(joined);
  }
  Value Indent() {
    const Bound bound = Bind({"width", "first", "blank"});
    const Value width = bound.Get(0);
    const std::string indent =
        width.is_text() ? width.text : std::string(std::clamp<int64_t>(bound.Int(0, 4), 0, 1000), ' ');
    std::string text;
    bool begun = false;
    for (const std::string& line : SplitLines(Text() + "\n", false)) {
      text += begun ? "\n" : "";
      if ((begun && (!line.empty() || bound.Flag(2, false))) || (!begun && bound.Flag(1, false))) text += indent;
      text += line;
      begun = true;
    }
    return Like(text);
  }
  Value ToJson() {
    const Bound bound = Bind({"ensure_ascii", "indent", "separators", "sort_keys"});
    JsonStyle style;
    style.ensure_ascii = bound.Flag(0, false);
    style.sort_keys = bound.Flag(3, false);
    const Value indent = bound.Get(1), separators = bound.Get(2);
    if (indent.is_text()) {
      style.indent = indent.text;
    } else if (indent.defined() && !indent.is_none()) {
      style.indent = std::string(std::clamp<int64_t>(bound.Int(1, 0), 0, 1000), ' ');
    }
    if (style.indent) style.between_items = ",";
    if (separators.defined() && !separators.is_none()) {
      if (!separators.is_list() || separators.list->size() != 2 || !separators.list->front().is_text() ||
          !separators.list->back().is_text()) {
        return Fail("takes two texts as separators");
      }
      style.between_items = separators.list->front().text;
      style.after_key = separators.list->back().text;
    }
    absl::StatusOr<std::string> text = JsonText(value_, style);
    return text.ok() ? Value::Text(*std::move(text)) : Fail(std::string(text.status().message()));
  }

  // ---- Numbers ----

  Value Int() {
    const Bound bound = Bind({"default", "base"});
    Value fallback = bound.given(0) ? bound.Get(0) : Value::Int(0);
    if (bound.Int(1, 10) != 10) return Fail("is supported for base 10 only");
    if (value_.is_int()) return Value::Int(value_.as_int());
    int64_t number;
    if (value_.is_text() && absl::SimpleAtoi(value_.text, &number)) return Value::Int(number);
    const std::optional<double> real = Real();
    if (!real || !std::isfinite(*real)) return fallback;
    return std::abs(*real) < 9e18 ? Value::Int(static_cast<int64_t>(*real)) : Fail("the number is too large");
  }
  Value Float() {
    const Bound bound = Bind({"default"});
    const std::optional<double> real = Real();
    return real ? Value::Float(*real) : bound.given(0) ? bound.Get(0) : Value::Float(0);
  }
  Value Abs() {
    if (!value_.is_number()) return Fail("takes a number");
    return value_.is_int() ? Value::Int(std::abs(value_.as_int())) : Value::Float(std::abs(value_.real));
  }
  Value Round() {
    const Bound bound = Bind({"precision", "method"});
    const int64_t precision = bound.Int(0, 0);
    const std::string method = bound.Text(1).value_or("common");
    if (!value_.is_number() || precision < 0 || precision > 300)
      return Fail("takes a number and a precision from 0 on");
    if (method == "common") {
      if (value_.is_int()) return value_;
      char text[700];
      std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), value_.real);
      return Value::Float(std::strtod(text, nullptr));
    }
    const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = value_.as_real() * scale;
    if (method == "ceil") return Value::Float(std::ceil(scaled) / scale);
    if (method == "floor") return Value::Float(std::floor(scaled) / scale);
    return Fail("takes \"common\", \"ceil\" or \"floor\"");
  }

  // ---- Lists ----

  Value Length() {
    if (value_.is_none() || value_.is_number()) return Fail(absl::StrCat(TypeName(value_), " has no length"));
    return Value::Int(static_cast<int64_t>(interpreter_.Items(at_, value_).size()));
  }
  Value List_() { return Value::Of(interpreter_.Items(at_, value_)); }
  Value Ends() {
    const List items = interpreter_.Items(at_, value_);
    if (items.empty()) return Value::Undefined(name_);
    return name_ == "first" ? items.front() : items.back();
  }
  Value Reverse() {
    List items = interpreter_.Items(at_, value_);
    std::reverse(items.begin(), items.end());
    if (!value_.is_text()) return Value::Of(std::move(items), ListKind::kGenerator);
    std::string text;
    for (const Value& item : items) text += item.text;
    return Like(text);
  }
  Value Items() {
    List list;
    if (value_.is_dict()) {
      for (const auto& [key, item] : value_.dict->items()) list.push_back(Value::Of(List{key, item}, ListKind::kTuple));
    } else if (value_.defined()) {
      return Fail("takes a dict");
    }
    return Value::Of(std::move(list), ListKind::kGenerator);
  }
  Value Sum() {
    const Bound bound = Bind({"attribute", "start"});
    Value sum = bound.given(1) ? bound.Get(1) : Value::Int(0);
    for (const Value& item : interpreter_.Items(at_, value_)) {
      const Value part = Part(item, bound.Get(0));
      int64_t whole;
      if (!part.is_number() || !sum.is_number()) return Fail("takes numbers");
      if (!part.is_int() || !sum.is_int()) {
        sum = Value::Float(sum.as_real() + part.as_real());
      } else if (__builtin_add_overflow(sum.as_int(), part.as_int(), &whole)) {
        return Fail("the sum is too large");
      } else {
        sum = Value::Int(whole);
      }
    }
    return sum;
  }
  Value MinMax() {
    const Bound bound = Bind({"case_sensitive", "attribute"});
    const List items = interpreter_.Items(at_, value_);
    if (items.empty()) return Value::Undefined(name_);
    const List keys = Keys(items, bound.Get(1), bound.Flag(0, false));
    size_t best = 0;
    for (size_t i = 1; i < items.size(); ++i) {
      if (name_ == "min" ? IsLess(keys[i], keys[best]) : IsLess(keys[best], keys[i])) best = i;
    }
    return items[best];
  }
  Value Sort() {
    const Bound bound = Bind({"reverse", "case_sensitive", "attribute"});
    const List items = interpreter_.Items(at_, value_);
    return Value::Of(Sorted(items, Keys(items, bound.Get(2), bound.Flag(1, false)), bound.Flag(0, false)));
  }
  Value DictSort() {
    const Bound bound = Bind({"case_sensitive", "by", "reverse"});
    const std::string by = bound.Text(1).value_or("key");
    if (!value_.is_dict() || (by != "key" && by != "value")) return Fail("takes a dict, by \"key\" or \"value\"");
    List items;
    for (const auto& [key, item] : value_.dict->items()) items.push_back(Value::Of(List{key, item}, ListKind::kTuple));
    const List keys = Keys(items, Value::Int(by == "key" ? 0 : 1), bound.Flag(0, false));
    return Value::Of(Sorted(items, keys, bound.Flag(2, false)));
  }
  Value Unique() {
    const Bound bound = Bind({"case_sensitive", "attribute"});
    const List items = interpreter_.Items(at_, value_);
    const List keys = Keys(items, bound.Get(1), bound.Flag(0, false));
    Dict seen;
    List unique;
    for (size_t i = 0; i < items.size(); ++i) {
      if (seen.Find(keys[i]) != nullptr) continue;
      if (!seen.Set(keys[i], Value::None())) return Fail("takes what can be a key");
      unique.push_back(items[i]);
    }
    return Value::Of(std::move(unique), ListKind::kGenerator);
  }
  // map("upper"), map(attribute="name", default="x")
  Value Map() {
    List mapped;
    if (arguments_.positional.empty()) {
      const Bound bound = Bind({"attribute", "default"});
      for (const Value& item : ItemsIfAny()) {
        mapped.push_back(interpreter_.AtPath(at_, item, bound.Get(0), bound.Get(1)));
      }
    } else {
      Arguments rest = arguments_;
      const Value filter = rest.positional.front();
      rest.positional.erase(rest.positional.begin());
      if (!filter.is_text()) return Fail("takes the name of a filter");
      for (const Value& item : ItemsIfAny()) {
        mapped.push_back(interpreter_.Filter(at_, filter.text, item, rest));
      }
    }
    return Value::Of(std::move(mapped), ListKind::kGenerator);
  }
  // select("test", ...), selectattr("name", "test", ...)
  Value Select() {
    const bool by_attribute = name_.ends_with("attr"), wanted = name_.starts_with("select");
    Arguments rest = arguments_;
    const auto take = [&]() -> std::optional<Value> {
      if (rest.positional.empty()) return std::nullopt;
      Value first = rest.positional.front();
      rest.positional.erase(rest.positional.begin());
      return first;
    };
    const std::optional<Value> attribute = by_attribute ? take() : std::nullopt;
    const std::optional<Value> test = take();
    if (by_attribute && !attribute) return Fail("takes an attribute");
    List kept;
    for (const Value& item : ItemsIfAny()) {
      const Value part = Part(item, attribute.value_or(Value()));
      const bool holds = test ? interpreter_.Test(at_, test->text, part, rest) : IsTrue(part);
      if (holds == wanted) kept.push_back(item);
      if (!interpreter_.ok()) return {};
    }
    return Value::Of(std::move(kept), ListKind::kGenerator);
  }

  Value Default() {
    const Bound bound = Bind({"default_value", "boolean"});
    if (value_.defined() && (!bound.Flag(1, false) || IsTrue(value_))) return value_;
    return bound.given(0) ? bound.Get(0) : Value::Text("");
  }
  Value Attr() { return interpreter_.Attribute(at_, value_, Bind({"name"}).Text(0).value_or(""), /*methods=*/true); }

 private:
  Bound Bind(std::initializer_list<const char*> parameters) const {
    return Bound(interpreter_, at_, name_, arguments_, parameters);
  }
  Value Fail(const std::string& what) const {
    return interpreter_.Fail(at_, absl::StrCat("the filter \"", name_, "\" ", what));
  }
  std::string Text() const { return interpreter_.Text(at_, value_); }
  Value Like(std::string text) const { return Value::Text(std::move(text), value_.safe); }

  std::optional<double> Real() const {
    if (value_.is_number()) return value_.as_real();
    double real;
    if (value_.is_text() && absl::SimpleAtod(value_.text, &real)) return real;
    return std::nullopt;
  }
  // map, select and the like take what is false for empty.
  List ItemsIfAny() const { return IsTrue(value_) ? interpreter_.Items(at_, value_) : List(); }
  // What the filters' `attribute` names of an item; the item itself where it is not given.
  Value Part(const Value& item, const Value& attribute) const {
    return attribute.defined() && !attribute.is_none() ? interpreter_.AtPath(at_, item, attribute) : item;
  }
  List Keys(const List& items, const Value& attribute, bool case_sensitive) const {
    List keys;
    for (const Value& item : items) {
      Value key = Part(item, attribute);
      keys.push_back(key.is_text() && !case_sensitive ? Value::Text(Lowercase(key.text)) : std::move(key));
    }
    return keys;
  }
  bool IsLess(const Value& a, const Value& b) const {
    const std::optional<bool> less = Less(a, b);
    if (!less) Fail(absl::StrCat("cannot order ", TypeName(a), " and ", TypeName(b)));
    return less.value_or(false);
  }
  List Sorted(const List& items, const List& keys, bool reverse) const {
    std::vector<size_t> order(items.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return interpreter_.ok() && (reverse ? IsLess(keys[b], keys[a]) : IsLess(keys[a], keys[b]));
    });
    List sorted;
    for (const size_t i : order) sorted.push_back(items[i]);
    return sorted;
  }

  Interpreter& interpreter_;
  const Node& at_;
  const std::string& name_;
  const Value& value_;
  const Arguments& arguments_;
};

using Method = Value (Use::*)();
const std::unordered_map<std::string, Method>& Filters() {
  static const auto* filters = new std::unordered_map<std::string, Method>{
      {"abs", &Use::Abs},           {"attr", &Use::Attr},       {"capitalize", &Use::OfAscii},
      {"count", &Use::Length},      {"d", &Use::Default},       {"default", &Use::Default},
      {"dictsort", &Use::DictSort}, {"e", &Use::Escape},        {"escape", &Use::Escape},
      {"first", &Use::Ends},        {"float", &Use::Float},     {"forceescape", &Use::Escape},
      {"indent", &Use::Indent},     {"int", &Use::Int},         {"items", &Use::Items},
      {"join", &Use::Join},         {"last", &Use::Ends},       {"length", &Use::Length},
      {"list", &Use::List_},        {"lower", &Use::Lower},     {"map", &Use::Map},
      {"max", &Use::MinMax},        {"min", &Use::MinMax},      {"reject", &Use::Select},
      {"rejectattr", &Use::Select}, {"replace", &Use::Replace}, {"reverse", &Use::Reverse},
      {"round", &Use::Round},       {"safe", &Use::Safe},       {"select", &Use::Select},
      {"selectattr", &Use::Select}, {"sort", &Use::Sort},       {"string", &Use::String},
      {"sum", &Use::Sum},           {"title", &Use::OfAscii},   {"tojson", &Use::ToJson},
      {"trim", &Use::Trim},         {"unique", &Use::Unique},   {"upper", &Use::OfAscii},
  };
  return *filters;
}

// The name that several names of a test have in common.
std::string TestName(const std::string& name) {
  static const auto* names = new std::unordered_map<std::string, std::string>{
      {"eq", "=="},      {"equalto", "=="}, {"sameas", "=="}, {"ne", "!="},         {"lt", "<"},
      {"lessthan", "<"}, {"le", "<="},      {"gt", ">"},      {"greaterthan", ">"}, {"ge", ">="},
  };
  const auto found = names->find(name);
  return found == names->end() ? name : found->second;
}

}  // namespace

Value ApplyFilter(Interpreter& interpreter, const Node& at, const std::string& name, const Value& value,
                  const Arguments& arguments) {
  const auto found = Filters().find(name);
  if (found == Filters().end()) {
    return interpreter.Fail(at, absl::StrCat("the filter \"", name, "\" is not supported"));
  }
  Use use(interpreter, at, name, value, arguments);
  return (use.*found->second)();
}

bool ApplyTest(Interpreter& interpreter, const Node& at, const std::string& name, const Value& value,
               const Arguments& arguments) {
  if (name == "defined") return value.defined();
  if (name == "undefined") return !value.defined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_text();
  if (name == "mapping") return value.is_dict();
  if (name == "number") return value.is_number();
  if (name == "integer") return value.kind == Value::Kind::kInt;
  if (name == "float") return value.kind == Value::Kind::kFloat;
  if (name == "boolean") return value.kind == Value::Kind::kBool;
  if (name == "true" || name == "false") {
    return value.kind == Value::Kind::kBool && value.boolean == (name == "true");
  }
  // Jinja's undefined value is both.
  if (name == "iterable") return !value.defined() || value.is_list() || value.is_dict() || value.is_text();
  if (name == "sequence") {
    return !value.defined() || value.is_dict() || value.is_text() ||
           (value.is_list() && (value.list_kind <= ListKind::kRange));
  }
  if (name == "callable") return value.kind >= Value::Kind::kMacro || !value.defined();
  if (name == "escaped") return value.is_text() && value.safe;
  if (name == "filter") return value.is_text() && Filters().contains(value.text);
  if ((name == "lower" || name == "upper") && value.is_text() && IsAscii(value.text)) {
    const std::string lower = Lowercase(value.text), upper = Uppercase(value.text);
    return lower != upper && value.text == (name == "lower" ? lower : upper);
  }
  if ((name == "odd" || name == "even") && value.is_int()) return (value.as_int() % 2 != 0) == (name == "odd");
  const std::string op = TestName(name);
  if (arguments.positional.size() == 1) {
    const Value& other = arguments.positional[0];
    if (op == "divisibleby" && value.is_int() && other.is_int() && other.as_int() != 0) {
      return other.as_int() == -1 || value.as_int() % other.as_int() == 0;
    }
    for (const char* known : {"==", "!=", "<", "<=", ">", ">=", "in"}) {
      if (op == known) return interpreter.Holds(at, value, op, other);
    }
  }
  interpreter.Fail(at, absl::StrCat("the test \"", name, "\" is not supported here"));
  return false;
}

}  // namespace quartet::jinja
