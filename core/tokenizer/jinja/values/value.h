// What an expression of a template can be: Python's values, as far as templates meet them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet::jinja {

struct Node;
class Dict;
struct Value;
using List = std::vector<Value>;
using Fields = std::map<std::string, Value>;

// How a list came about, where Python's object is not a list.
enum class ListKind { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };

// Lists and dicts are shared and never change; a namespace's fields do.
struct Value {
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,
    kDict,
    kNamespace,
    kMacro,
    kMethod,
    kFunction
  };
  Kind kind = Kind::kUndefined;
  bool boolean = false;
  bool safe = false;   // text that `safe` or `escape` made: what is added to it is escaped
  int64_t number = 0;  // kInt
  double real = 0;     // kFloat
  ListKind list_kind = ListKind::kList;
  std::string text;  // kText; the name of an undefined, a method or a function
  std::shared_ptr<const List> list;
  std::shared_ptr<const Dict> dict;
  std::shared_ptr<Fields> fields;     // kNamespace
  std::shared_ptr<const Value> self;  // kMethod: whose
  const Node* macro = nullptr;
  std::shared_ptr<const std::vector<Fields>> scopes;  // kMacro: what stands around it, beside the template's own names

  static Value Undefined(std::string name);
  static Value None();
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value Text(std::string text, bool safe = false);
  static Value Of(List list, ListKind kind = ListKind::kList);
  static Value Of(Dict dict);
  static Value Namespace(Fields fields);
  static Value Function(std::string name);
  static Value Method(Value self, std::string name);

  bool defined() const { return kind != Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_text() const { return kind == Kind::kText; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_dict() const { return kind == Kind::kDict; }
  bool is_int() const { return kind == Kind::kInt || kind == Kind::kBool; }  // as in Python
  bool is_number() const { return is_int() || kind == Kind::kFloat; }
  int64_t as_int() const { return kind == Kind::kBool ? boolean : number; }
  double as_real() const { return kind == Kind::kFloat ? real : static_cast<double>(as_int()); }
};

// In the order of insertion. Keys are as in Python: numbers, texts, none and tuples of these; 1, 1.0 and true are one.
class Dict {
 public:
  // False for what cannot be a key.
  bool Set(const Value& key, Value value);
  // Null where there is none.
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }

 private:
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, size_t> places_;  // by what makes a key one
};

// INVALID_ARGUMENT for numbers that fit no 64 bits with a sign.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json);

bool IsTrue(const Value& value);
bool Equal(const Value& a, const Value& b);
// a < b; nothing where Python does not compare the two.
std::optional<bool> Less(const Value& a, const Value& b);

// As Python's str and repr write it. Of what has no text of its own in a template, a generator for example, nothing.
std::optional<std::string> Repr(const Value& value);
std::optional<std::string> ToText(const Value& value);
std::string FloatText(double number);

// Of the type, for messages.
std::string TypeName(const Value& value);

}  // namespace quartet::jinja
