#include "core/tokenizer/jinja/interpreter/interpreter.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/tokenizer/jinja/interpreter/functions.h"
#include "core/tokenizer/jinja/interpreter/methods.h"
#include "core/tokenizer/jinja/syntax/parser.h"
#include "core/tokenizer/jinja/values/text.h"

namespace quartet::jinja {
namespace {

constexpr int64_t kMaxSteps = 2'000'000;

}  // namespace

Interpreter::Interpreter(Fields variables, std::optional<absl::CivilDay> date) : date_(date) {
  scopes_.push_back(std::move(variables));
}

absl::StatusOr<std::string> Interpreter::Run(const Node& root) {
  std::string out;
  Execute(root, &out);
  if (!status_.ok()) return status_;
  return out;
}

std::tm Interpreter::Now() const {
  if (!date_.has_value()) return absl::ToTM(absl::Now(), absl::LocalTimeZone());
  return absl::ToTM(absl::FromCivil(*date_, absl::UTCTimeZone()), absl::UTCTimeZone());
}

Value Interpreter::Fail(const Node& at, const std::string& what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("line ", at.line, ": ", what));
  return {};
}

bool Interpreter::Step() {
  if (status_.ok() && ++steps_ > kMaxSteps) {
    status_ = absl::ResourceExhaustedError(absl::StrCat("the template takes more than ", kMaxSteps, " steps"));
  }
  return status_.ok();
}

void Interpreter::Write(const std::string& text, std::string* out) {
  if (status_.ok() && out->size() + text.size() > kMaxOutputBytes) {
    status_ = absl::ResourceExhaustedError(absl::StrCat("the template makes more than ", kMaxOutputBytes, " bytes"));
  }
  if (status_.ok()) *out += text;
}

std::string Interpreter::Captured(const Node& block) {
  std::string text;
  Execute(block, &text);
  return text;
}

std::string Interpreter::Text(const Node& at, const Value& value) {
  std::optional<std::string> text = ToText(value);
  if (text) return *std::move(text);
  Fail(at, absl::StrCat("a ", value.is_list() ? "generator" : TypeName(value), " is printed"));
  return "";
}

// ---- Statements ----

Interpreter::Flow Interpreter::Execute(const Node& node, std::string* out) {
  if (!Step()) return Flow::kBreak;
  switch (node.kind) {
    case NodeKind::kBlock:
      for (const NodePtr& kid : node.kids) {
        const Flow flow = Execute(*kid, out);
        if (flow != Flow::kNext) return flow;
      }
      return Flow::kNext;
    case NodeKind::kText:
      Write(node.text, out);
      return Flow::kNext;
    case NodeKind::kPrint:
      Write(Text(node, Evaluate(*node.kids[0])), out);
      return Flow::kNext;
    case NodeKind::kIf:
      for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
        if (IsTrue(Evaluate(*node.kids[i]))) return Execute(*node.kids[i + 1], out);
      }
      return node.kids.size() % 2 == 1 ? Execute(*node.kids.back(), out) : Flow::kNext;
    case NodeKind::kFor:
      For(node, out);
      return Flow::kNext;
    case NodeKind::kSet:
      Assign(*node.kids[0], Evaluate(*node.kids[1]));
      return Flow::kNext;
    case NodeKind::kSetBlock: {
      Value value = Value::Text(Captured(*node.kids[1]));
      if (node.kids[2] != nullptr) {
        filtered_ = std::move(value.text);
        value = Evaluate(*node.kids[2]);
      }
      Assign(*node.kids[0], std::move(value));
      return Flow::kNext;
    }
    case NodeKind::kFilterBlock:
      filtered_ = Captured(*node.kids[1]);
      Write(Text(node, Evaluate(*node.kids[0])), out);
      return Flow::kNext;
    case NodeKind::kWith:
      With(node, out);
      return Flow::kNext;
    case NodeKind::kMacro:
      scopes_.back()[node.text] = MakeMacro(node);
      return Flow::kNext;
    case NodeKind::kCallBlock: {
      Arguments arguments = EvaluateArguments(*node.kids[0]);
      arguments.named["caller"] = MakeMacro(*node.kids[1]);
      Write(Text(node, Call(*node.kids[0], arguments)), out);
      return Flow::kNext;
    }
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      Fail(node, "not a statement");
      return Flow::kBreak;
  }
}

void Interpreter::Assign(const Node& target, Value value) {
  if (!status_.ok()) return;
  if (target.kind == NodeKind::kName) {
    scopes_.back()[target.text] = std::move(value);
  } else if (target.kind == NodeKind::kAttribute) {
    const Value space = Lookup(target.kids[0]->text);
    if (space.kind != Value::Kind::kNamespace) {
      Fail(target, absl::StrCat("\"", target.kids[0]->text, "\" is not a namespace"));
    } else {
      (*space.fields)[target.text] = std::move(value);
    }
  } else {
    const List items = Items(target, value);
    if (items.size() != target.kids.size()) {
      Fail(target,
           absl::StrCat("an item has ", items.size(), " parts, not the ", target.kids.size(), " that are named"));
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(*target.kids[i], items[i]);
  }
}

void Interpreter::For(const Node& node, std::string* out) {
  const Node& target = *node.kids[0];
  List items = Items(node, Evaluate(*node.kids[1]));
  if (node.kids[2] != nullptr) {
    List kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      Assign(target, item);
      if (IsTrue(Evaluate(*node.kids[2]))) kept.push_back(std::move(item));
      scopes_.pop_back();
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    scopes_.emplace_back();
    if (node.kids[4] != nullptr) Execute(*node.kids[4], out);
    scopes_.pop_back();
    return;
  }
  const auto count = static_cast<int64_t>(items.size());
  for (int64_t i = 0; i < count && status_.ok(); ++i) {
    scopes_.emplace_back();
    Assign(target, items[i]);
    Fields fields = {
        {"index", Value::Int(i + 1)},        {"index0", Value::Int(i)},
        {"revindex", Value::Int(count - i)}, {"revindex0", Value::Int(count - i - 1)},
        {"first", Value::Bool(i == 0)},      {"last", Value::Bool(i + 1 == count)},
        {"length", Value::Int(count)},       {"depth", Value::Int(1)},
        {"depth0", Value::Int(0)},           {"cycle", Value::Method(Value::Int(i), "cycle")},
    };
    if (i > 0) fields["previtem"] = items[i - 1];
    if (i + 1 < count) fields["nextitem"] = items[i + 1];
    scopes_.back()["loop"] = Value::Namespace(std::move(fields));
    const Flow flow = Execute(*node.kids[3], out);
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
  }
}

void Interpreter::With(const Node& node, std::string* out) {
  Fields scope;  // the values see what is outside
  for (size_t i = 0; i + 1 < node.kids.size(); i += 2) scope[node.kids[i]->text] = Evaluate(*node.kids[i + 1]);
  scopes_.push_back(std::move(scope));
  Execute(*node.kids.back(), out);
  scopes_.pop_back();
}

// ---- Calls ----

Value Interpreter::MakeMacro(const Node& node) const {
  Value macro;
  macro.kind = Value::Kind::kMacro;
  macro.macro = &node;
  if (scopes_.size() > 1) {
    macro.scopes = std::make_shared<const std::vector<Fields>>(scopes_.begin() + 1, scopes_.end());
  }
  return macro;
}

Value Interpreter::Call(const Node& node, const Arguments& arguments) {
  const Value callee = Evaluate(*node.kids[0]);
  if (!status_.ok()) return {};
  switch (callee.kind) {
    case Value::Kind::kMacro:
      return CallMacro(node, callee, arguments);
    case Value::Kind::kMethod:
      return CallMethod(*this, node, callee, arguments);
    case Value::Kind::kFunction:
      return CallFunction(*this, node, callee.text, arguments);
    case Value::Kind::kUndefined:
      return Fail(node, absl::StrCat("\"", callee.text, "\" is undefined, and cannot be called"));
    default:
      return Fail(node, absl::StrCat(TypeName(callee), " cannot be called"));
  }
}

Value Interpreter::CallMacro(const Node& node, const Value& macro, const Arguments& arguments) {
  const Node& definition = *macro.macro;
  if (++calls_ > kMaxDepth) return Fail(node, absl::StrCat("macros call each other more than ", kMaxDepth, " deep"));
  if (arguments.positional.size() > definition.names.size()) {
    return Fail(node,
                absl::StrCat("the macro \"", definition.text, "\" takes ", definition.names.size(), " arguments"));
  }
  // A macro sees the template's own names and what stood around it, not the names of who calls it.
  std::vector<Fields> scopes = {std::move(scopes_[0])};
  if (macro.scopes != nullptr) scopes.insert(scopes.end(), macro.scopes->begin(), macro.scopes->end());
  scopes.emplace_back();
  std::swap(scopes, scopes_);
  for (const auto& [name, value] : arguments.named) {
    const auto& names = definition.names;
    if (name != "caller" && std::find(names.begin(), names.end(), name) == names.end()) {
      Fail(node, absl::StrCat("the macro has no parameter \"", name, "\""));
    }
    scopes_.back()[name] = value;
  }
  for (size_t i = 0; i < definition.names.size(); ++i) {
    const std::string& name = definition.names[i];
    if (i < arguments.positional.size()) {
      scopes_.back()[name] = arguments.positional[i];
    } else if (!scopes_.back().contains(name)) {
      const NodePtr& fallback = definition.kids[i + 1];
      scopes_.back()[name] = fallback != nullptr ? Evaluate(*fallback) : Value::Undefined(name);
    }
  }
  const std::string text = Captured(*definition.kids[0]);
  std::swap(scopes, scopes_);
  scopes_[0] = std::move(scopes[0]);
  --calls_;
  return Value::Text(text);
}

}  // namespace quartet::jinja
