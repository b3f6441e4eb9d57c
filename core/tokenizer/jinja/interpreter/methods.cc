#include "core/tokenizer/jinja/interpreter/methods.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tokenizer/jinja/interpreter/bound.h"
#include "core/tokenizer/jinja/values/text.h"
#include "core/tokenizer/unicode/unicode.h"

namespace quartet::jinja {
namespace {

constexpr std::string_view kTextMethods[] = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};
constexpr std::string_view kDictMethods[] = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                             "pop",   "popitem", "setdefault", "update", "values"};
constexpr std::string_view kListMethods[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                             "insert", "pop",   "remove", "reverse", "sort"};

class TextMethod {
 public:
  TextMethod(Interpreter& interpreter, const Node& at, const Value& method, const Arguments& arguments)
      : interpreter_(interpreter), at_(at), self_(*method.self), name_(method.text), arguments_(arguments) {}

  Value Call() {
    const std::string& text = self_.text;
    if (name_ == "strip" || name_ == "lstrip" || name_ == "rstrip") {
      const auto which = Bind({"chars"}).Text(0);
      return Like(Strip(text, which, name_ != "rstrip", name_ != "lstrip"));
    }
    if (name_ == "lower") return Like(Lowercase(text));
    if (name_ == "upper" || name_ == "capitalize" || name_ == "title") {
      if (!IsAscii(text)) return Unsupported("text beyond ASCII");
      return Like(name_ == "upper" ? Uppercase(text) : name_ == "title" ? Title(text) : Capitalize(text));
    }
    if (name_ == "startswith" || name_ == "endswith") return Value::Bool(BeginsOrEnds());
    if (name_ == "split" || name_ == "rsplit") return Cut();
    if (name_ == "splitlines") {
      List lines;
      for (std::string& line : SplitLines(text, Bind({"keepends"}).Flag(0, false)))
        lines.push_back(Like(std::move(line)));
      return Value::Of(std::move(lines));
    }
    if (name_ == "replace") return Replace();
    if (name_ == "join") return Join();
    if (name_ == "find" || name_ == "rfind" || name_ == "index" || name_ == "count") return Find();
    if (name_ == "removeprefix" || name_ == "removesuffix") {
      const std::string part = Bind({"affix"}).Text(0).value_or("");
      if (name_ == "removeprefix") return Like(text.starts_with(part) ? text.substr(part.size()) : text);
      return Like(text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text);
    }
    if (name_.starts_with("is")) return Is();
    if (name_ == "format") return Format();
    return Unsupported("this");
  }

 private:
  Bound Bind(std::initializer_list<const char*> parameters) const {
    return Bound(interpreter_, at_, name_, arguments_, parameters);
  }
  Value Unsupported(const std::string& what) const {
    return interpreter_.Fail(at_, absl::StrCat("the method \"", name_, "\" is not supported for ", what));
  }
  Value Like(std::string text) const { return Value::Text(std::move(text), self_.safe); }
  // An argument that becomes part of the text: escaped where the text is safe and it is not.
  std::string Part(const Value& value) const { return self_.safe && !value.safe ? EscapeHtml(value.text) : value.text; }

  bool BeginsOrEnds() const {
    const Bound bound = Bind({"affix"});
    const Value affix = bound.Get(0);
    const List several = affix.is_list() ? *affix.list : List{affix};
    return std::any_of(several.begin(), several.end(), [&](const Value& one) {
      if (!one.is_text()) bound.Fail("the text to look for is not text");
      return name_ == "startswith" ? self_.text.starts_with(one.text) : self_.text.ends_with(one.text);
    });
  }

  Value Cut() const {
    const Bound bound = Bind({"sep", "maxsplit"});
    const std::optional<std::string> separator = bound.Text(0);
    if (separator && separator->empty()) return bound.Fail("an empty separator");
    List parts;
    for (std::string& part : Split(self_.text, separator, bound.Int(1, -1), name_ == "rsplit")) {
      parts.push_back(Like(std::move(part)));
    }
    return Value::Of(std::move(parts));
  }

  Value Replace() const {
    const Bound bound = Bind({"old", "new", "count"});
    const std::optional<std::string> from = bound.Text(0);
    if (!from || from->empty() || !bound.Text(1)) return bound.Fail("what is replaced, and by what, must be text");
    return Like(ReplaceText(self_.text, *from, Part(bound.Get(1)), bound.Int(2, -1)));
  }

  Value Join() const {
    const Bound bound = Bind({"iterable"});
    std::string joined;
    bool begun = false;
    for (const Value& item : interpreter_.Items(at_, bound.Get(0))) {
      if (!item.is_text()) return bound.Fail(absl::StrCat(TypeName(item), " is not text"));
      joined += (begun ? self_.text : "") + Part(item);
      begun = true;
    }
    return Like(joined);
  }

  Value Find() const {
    const Bound bound = Bind({"sub"});
    const std::optional<std::string> part = bound.Text(0);
    if (!part || part->empty()) return bound.Fail("what is looked for must be text, and not empty");
    if (name_ == "count") {
      return Value::Int(static_cast<int64_t>(Split(self_.text, part, -1, false).size()) - 1);
    }
    const size_t found = name_ == "rfind" ? self_.text.rfind(*part) : self_.text.find(*part);
    if (found != std::string::npos) {
      return Value::Int(static_cast<int64_t>(Characters(std::string_view(self_.text).substr(0, found)).size()));
    }
    return name_ == "index" ? bound.Fail("not found") : Value::Int(-1);
  }

  Value Is() const {
    const std::string& text = self_.text;
    Bind({});
    const auto all = [&](int (*is)(int)) {
      return Value::Bool(!text.empty() && std::all_of(text.begin(), text.end(),
                                                      [&](char c) { return is(static_cast<unsigned char>(c)) != 0; }));
    };
    if (name_ == "isascii") return Value::Bool(IsAscii(text));
    if (name_ == "isspace") {
      for (size_t at = 0; at < text.size(); at += CharBytes(text, at)) {
        if (!IsSpace(CharAt(text, at))) return Value::Bool(false);
      }
      return Value::Bool(!text.empty());
    }
    if (!IsAscii(text)) return Unsupported("text beyond ASCII");
    if (name_ == "isdigit" || name_ == "isnumeric" || name_ == "isdecimal") return all(std::isdigit);
    if (name_ == "isalpha") return all(std::isalpha);
    if (name_ == "isalnum") return all(std::isalnum);
    if (name_ == "isupper" || name_ == "islower") {
      const bool has_letter = Uppercase(text) != Lowercase(text);
      return Value::Bool(has_letter && text == (name_ == "isupper" ? Uppercase(text) : Lowercase(text)));
    }
    return Unsupported("this");
  }

  // Fields without a format of their own: {}, {0}, {name}.
  Value Format() const {
    const std::string& text = self_.text;
    std::string out;
    size_t next = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '{' && text[at] != '}') {
        out += text[at];
        continue;
      }
      if (at + 1 < text.size() && text[at + 1] == text[at]) {
        out += text[at++];
        continue;
      }
      const size_t end = text.find('}', at);
      if (text[at] == '}' || end == std::string::npos) return Unsupported("a \"}\" alone");
      const std::string field = text.substr(at + 1, end - at - 1);
      const bool by_number =
          !field.empty() && field.size() < 4 && field.find_first_not_of("0123456789") == std::string::npos;
      const size_t index = by_number ? std::stoul(field) : next++;
      const auto named = arguments_.named.find(field);
      Value value;
      if (!field.empty() && !by_number && named != arguments_.named.end()) {
        value = named->second;
      } else if ((field.empty() || by_number) && index < arguments_.positional.size()) {
        value = arguments_.positional[index];
      } else {
        return Unsupported(absl::StrCat("the field {", field, "}"));
      }
      Value written = Value::Text(interpreter_.Text(at_, value), value.safe);
      out += Part(written);
      at = end;
    }
    return Like(out);
  }

  Interpreter& interpreter_;
  const Node& at_;
  const Value& self_;
  const std::string& name_;
  const Arguments& arguments_;
};

Value CallDictMethod(Interpreter& interpreter, const Node& at, const Value& method, const Arguments& arguments) {
  const Dict& dict = *method.self->dict;
  if (method.text == "get") {
    const Bound bound(interpreter, at, method.text, arguments, {"key", "default"});
    const Value* found = dict.Find(bound.Get(0));
    if (found != nullptr) return *found;
    return bound.given(1) ? bound.Get(1) : Value::None();
  }
  if (method.text == "copy") return *method.self;
  if (method.text != "keys" && method.text != "values" && method.text != "items") {
    return interpreter.Fail(at, absl::StrCat("\"", method.text, "\": a dict cannot be changed here"));
  }
  const Bound none(interpreter, at, method.text, arguments, {});
  List list;
  for (const auto& [key, value] : dict.items()) {
    if (method.text == "keys") list.push_back(key);
    if (method.text == "values") list.push_back(value);
    if (method.text == "items") list.push_back(Value::Of(List{key, value}, ListKind::kTuple));
  }
  if (method.text == "keys") return Value::Of(std::move(list), ListKind::kKeys);
  if (method.text == "values") return Value::Of(std::move(list), ListKind::kValues);
  return Value::Of(std::move(list), ListKind::kItems);
}

Value CallListMethod(Interpreter& interpreter, const Node& at, const Value& method, const Arguments& arguments) {
  const List& list = *method.self->list;
  if (method.text == "copy") return *method.self;
  const Bound bound(interpreter, at, method.text, arguments, {"value"});
  const auto is_it = [&](const Value& item) { return Equal(item, bound.Get(0)); };
  if (method.text == "count") return Value::Int(std::count_if(list.begin(), list.end(), is_it));
  if (method.text == "index") {
    const auto found = std::find_if(list.begin(), list.end(), is_it);
    return found == list.end() ? bound.Fail("not found") : Value::Int(found - list.begin());
  }
  return bound.Fail("a list cannot be changed here");
}

}  // namespace

bool HasMethod(const Value& object, const std::string& name) {
  const auto has = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  if (object.is_text()) return has(kTextMethods);
  if (object.is_dict()) return has(kDictMethods);
  if (!object.is_list()) return false;
  return object.list_kind == ListKind::kList ? has(kListMethods) : name == "count" || name == "index";
}

Value CallMethod(Interpreter& interpreter, const Node& at, const Value& method, const Arguments& arguments) {
  const Value& self = *method.self;
  if (self.is_text()) return TextMethod(interpreter, at, method, arguments).Call();
  if (self.is_dict()) return CallDictMethod(interpreter, at, method, arguments);
  if (self.is_list()) return CallListMethod(interpreter, at, method, arguments);
  // loop.cycle: `self` is the loop's index.
  if (arguments.positional.empty()) return interpreter.Fail(at, "\"cycle\": there is nothing to choose from");
  return arguments.positional[self.number % static_cast<int64_t>(arguments.positional.size())];
}

}  // namespace quartet::jinja
