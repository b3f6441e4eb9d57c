#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/rewards/math/grammar/grammar.h"
#include "core/rewards/math/grammar/words.h"

namespace quartet::math {

using Kind = Expression::Kind;
using Deeper = TokenCursor::Deeper;

namespace {

// x of \vec{x}, x_1 and x'.
std::string LetterOf(const std::string& name) {
  std::string letter = name;
  for (const std::string_view mark : {"vec ", "hat ", "bar ", "tilde ", "mathbb "}) {
    if (letter.starts_with(mark)) letter.erase(0, mark.size());
  }
  return letter.substr(0, letter.find_first_of("_'^"));
}

// What is mostly a function. Letters of numbers and sets are not.
bool IsUsualFunction(const std::string& name) {
  static const auto* letters = new std::set<std::string_view>{"f", "g",   "h",   "F",   "G",   "H",     "P",
                                                              "E", "phi", "psi", "Phi", "Psi", "Gamma", "zeta"};
  if (name.find('\'') != std::string::npos) return true;
  return letters->contains(LetterOf(name)) &&
         (!name.starts_with("mathbb ") || name == "mathbb E" || name == "mathbb P");
}

// f \circ g, f + g, f/g: what functions are made of.
bool IsMadeOfFunctions(const Expression& of) {
  if (of.kind == Kind::kSymbol) return IsUsualFunction(of.name);
  const bool made = of.kind == Kind::kAdd || of.kind == Kind::kMultiply || of.kind == Kind::kDivide ||
                    (of.kind == Kind::kApply && of.name == "circ");
  return made && std::all_of(of.arguments.begin(), of.arguments.end(), [](const auto& part) {
           return IsMadeOfFunctions(*part) || (part->kind == Kind::kNumber && part->number == -1);
         });
}

}  // namespace

bool Grammar::IsAlone(const std::string& letter, size_t length) const {
  const Token& first = tokens_.Peek(tokens_.Sign("-", 1) ? 2 : 1);
  if (tokens_.Sign("-", 1)) return length == 4 && first.kind == Token::Kind::kNumber;
  const bool named = first.kind == Token::Kind::kLetter ? first.text != letter
                                                        : first.kind == Token::Kind::kNumber || IsSymbol(first.text);
  return named && (length == 3 || (length == 5 && tokens_.Sign("_", 2)));
}

void Grammar::FindFunctions() {
  const size_t begin = tokens_.at();
  for (; !tokens_.AtEnd(); tokens_.Skip()) {
    const bool letter = tokens_.Peek().kind == Token::Kind::kLetter && tokens_.Peek(2).kind == Token::Kind::kLetter;
    const bool applied = tokens_.Sign("(", 1) && tokens_.Sign(")", 3) && tokens_.Peek().text != tokens_.Peek(2).text;
    if (letter && applied) functions_.insert(tokens_.Peek().text);
  }
  tokens_.Return(begin);
}

bool Grammar::IsApplied(const Expression& head, size_t begin) const {
  const Token& open = tokens_.Peek();
  // f{(x)}
  const bool braces = tokens_.Sign("{") && tokens_.Sign("(", 1) && head.kind == Kind::kSymbol;
  if (braces && !IsUsualFunction(head.name)) return false;
  if (open.gap_before || !(tokens_.Sign("(") || tokens_.Sign("[") || braces) || tokens_.at() == begin) return false;
  const bool power = head.kind == Kind::kPower;
  const Expression& symbol = power ? *head.arguments[0] : head;
  if (tokens_.StoodAt("(", begin) || tokens_.StoodAt("[", begin)) {
    return head.kind != Kind::kSymbol && IsMadeOfFunctions(head);
  }
  if (symbol.kind != Kind::kSymbol) return false;
  const std::string& name = symbol.name;
  const bool usual = IsUsualFunction(name) || functions_.contains(name);
  if (!usual && (name.starts_with("mathbb ") || tokens_.Sign("["))) return false;

  const size_t length = tokens_.BracketedAhead();
  bool comma = false, set = false, sign = false, number = false, relation = false;
  for (size_t i = 1; i + 1 < length; ++i) {
    comma |= tokens_.Sign(",", i);
    set |= tokens_.Command("cup", i) || tokens_.Command("cap", i);
    sign |= tokens_.Sign("+", i) || tokens_.Sign("-", i);
    number |= tokens_.Peek(i).kind == Token::Kind::kNumber;
    relation |= RelationOf(tokens_.Peek(i)).has_value();
  }
  const bool alone = IsAlone(LetterOf(name), length);
  if (power) {
    const bool inverse = head.arguments[1]->kind == Kind::kNumber && head.arguments[1]->number == -1;
    const bool function = name == "f" || name == "g" || name == "F" || name == "G";
    return inverse ? usual || alone : usual && (alone || function);
  }
  // A height and a sum of money: h(a + b), P(1 + r).
  if (name == "h" && sign && !number && !comma && !relation && !alone) return false;
  if (name == "P" && sign && number && !comma && !relation && !alone) return false;
  return usual || alone || comma || set;
}

ExpressionPtr Grammar::Applied(std::string name) {
  const Deeper deeper(&tokens_);
  // P(A | B)
  int bars = 0;
  for (size_t i = tokens_.BracketedAhead(); i-- > 0;) bars += tokens_.Sign("|", i) || tokens_.Command("|", i);
  const int outer = std::exchange(bars_, bars % 2);
  const std::string_view close = tokens_.Sign("[") ? "]" : tokens_.Sign("(") ? ")" : "}";
  tokens_.Skip();
  std::vector<ExpressionPtr> arguments;
  while (!failed()) {
    arguments.push_back(Relations());
    if (tokens_.Sign(close) || tokens_.Command(close)) break;
    const bool bar = tokens_.Sign("|") || tokens_.Command("|");
    if (!bar && !tokens_.IsSeparator()) tokens_.Fail();
    absl::StrAppend(&name, " ", tokens_.TakeText());
  }
  bars_ = outer;
  tokens_.Skip();
  return failed() ? Fail() : Make(Kind::kApply, std::move(name), std::move(arguments));
}

ExpressionPtr Grammar::Operator(const std::string& name) {
  const Deeper deeper(&tokens_);
  tokens_.Skip();
  const bool of_many = name == "max" || name == "min" || name == "gcd" || name == "lcm";
  if (tokens_.Sign("(") || tokens_.Sign("[") || (of_many && tokens_.Command("{"))) {
    ExpressionPtr applied = Applied(name);
    if (failed() || !of_many) return applied;
    return Make(Kind::kFunction, name, applied->arguments);
  }
  if (of_many) return Fail();
  std::vector<ExpressionPtr> factors = {Factor()};
  while (!failed() && BeginsFactor() && !tokens_.Sign("(")) factors.push_back(Factor());
  return Make(Kind::kApply, name, std::move(factors));
}

bool Grammar::IsDifferential(size_t ahead) const {
  const Token& token = tokens_.Peek(ahead);
  return (token.kind == Token::Kind::kLetter && token.text == "d") || tokens_.Command("partial", ahead) ||
         tokens_.Command("Delta", ahead) || tokens_.Command("delta", ahead);
}

bool Grammar::TakeDerivative(std::vector<ExpressionPtr>* factors) {
  const Token& name = tokens_.Peek(2);
  if (!IsDifferential(1) || name.space_before || (name.kind != Token::Kind::kLetter && !IsSymbol(name.text))) {
    return false;
  }
  const auto is_d = [](const Expression& of) {
    return of.kind == Kind::kSymbol &&
           (of.name == "d" || of.name == "partial" || of.name == "Delta" || of.name == "delta");
  };
  for (size_t i = factors->size(); i-- > 0;) {
    const Expression& factor = *(*factors)[i];
    if (!is_d(factor) && !(factor.kind == Kind::kPower && is_d(*factor.arguments[0]))) continue;
    tokens_.Skip();
    tokens_.CountLink();
    std::vector<ExpressionPtr> above(factors->begin() + i, factors->end());
    std::vector<ExpressionPtr> below = {Factor()};
    below.push_back(Factor());
    const auto product = [](std::vector<ExpressionPtr> of) {
      return of.size() == 1 ? of[0] : Make(Kind::kMultiply, "", std::move(of));
    };
    factors->resize(i);
    factors->push_back(Make(Kind::kApply, "derivative", {product(std::move(above)), product(std::move(below))}));
    return true;
  }
  return false;
}

}  // namespace quartet::math
