#include "core/tokenizer/jinja/interpreter/bound.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quartet::jinja {

Bound::Bound(Interpreter& interpreter, const Node& at, const std::string& what, const Arguments& arguments,
             std::initializer_list<const char*> parameters)
    : interpreter_(interpreter),
      at_(at),
      what_(what),
      values_(parameters.size(), nullptr),
      names_(parameters.begin(), parameters.end()) {
  if (arguments.positional.size() > parameters.size()) {
    Fail(absl::StrCat("more than ", parameters.size(), " arguments are not supported"));
    return;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      Fail(absl::StrCat("the argument \"", name, "\" is not supported"));
      return;
    }
    values_[found - names_.begin()] = &value;
  }
}

std::optional<std::string> Bound::Text(size_t i) const {
  if (!given(i) || values_[i]->is_none()) return std::nullopt;
  if (!values_[i]->is_text()) {
    Fail(absl::StrCat("\"", names_[i], "\" is ", TypeName(*values_[i]), ", not text"));
    return std::nullopt;
  }
  return values_[i]->text;
}

int64_t Bound::Int(size_t i, int64_t fallback) const {
  if (!given(i)) return fallback;
  if (values_[i]->is_int()) return values_[i]->as_int();
  Fail(absl::StrCat("\"", names_[i], "\" is ", TypeName(*values_[i]), ", not a whole number"));
  return fallback;
}

}  // namespace quartet::jinja
