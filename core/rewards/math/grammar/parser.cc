#include "core/rewards/math/grammar/parser.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/rewards/math/grammar/grammar.h"
#include "core/rewards/math/grammar/products.h"
#include "core/rewards/math/grammar/words.h"
#include "core/rewards/math/values/evaluate.h"
#include "core/rewards/math/values/scalars.h"
#include "core/rewards/math/vocabulary/units.h"

namespace quartet::math {

using Kind = Expression::Kind;
using Deeper = TokenCursor::Deeper;

namespace {

// Words before a value that say nothing, or that the value comes: "about", "The answer is", "Total:", "(A)".
bool IsFiller(const std::string& text) {
  const std::string words = absl::AsciiStrToLower(text);
  for (const char* word : {"about", "approximately", "exactly", "roughly", "around", "answer"}) {
    if (words == word) return true;
  }
  if (words.find("not") != std::string::npos || words.find("n't") != std::string::npos) return false;
  const bool letter = words.size() == 3 && words[0] == '(' && words[2] == ')';
  return letter || words.ends_with(" is") || words.ends_with(':');
}

ExpressionPtr Negate(ExpressionPtr of) {
  if (of->kind == Kind::kNumber) return MakeNumber(-of->number, of->decimal);
  if (of->kind == Kind::kQuantity) return Make(Kind::kQuantity, of->name, {Negate(of->arguments[0])});
  return Make(Kind::kMultiply, "", {MakeNumber(-1), std::move(of)});
}

// Whether a number behind it, without a sign between, is a factor: of (n - 2) 2^n, not of "5 6" or "x2".
bool MayPrecedeNumber(const Expression& of, bool power) {
  if (of.kind == Kind::kSymbol) return power;
  return of.kind != Kind::kConstant && of.kind != Kind::kQuantity && !Exact(of, {}).has_value();
}

// 1 and 2 of 3\frac12, which is no product.
bool IsProperFraction(const Expression& of) {
  if (of.kind != Kind::kDivide) return false;
  const Expression &above = *of.arguments[0], &below = *of.arguments[1];
  const auto whole = [](const Expression& e) {
    return e.kind == Kind::kNumber && !e.decimal && e.number.get_den() == 1 && e.number > 0;
  };
  return whole(above) && whole(below) && above.number < below.number;
}

}  // namespace

void Grammar::SkipSeparators() {
  // ", or" is "or".
  bool any = false, with_or = false, with_and = false;
  for (; tokens_.IsSeparator(); tokens_.Skip()) {
    any = true;
    with_or |= tokens_.Command("or") || tokens_.Command("lor");
    with_and |= tokens_.Command("and") || tokens_.Command("land");
    joins_conditions_ |= tokens_.Command("land") || tokens_.Command("lor");
  }
  if (any) (with_or ? has_or_ : with_and ? has_and_ : has_comma_) = true;
}

std::vector<Grammar::Element> Grammar::Elements() {
  std::vector<Element> elements;
  // "= 5" and "\approx 5" say 5.
  if (!tokens_.TakeSign("=")) tokens_.TakeCommand("approx");
  do {
    SkipSeparators();
    if (tokens_.AtEnd()) break;
    plus_minus_ = false;
    ExpressionPtr element = Relations();
    elements.push_back({std::move(element), plus_minus_});
    // "The value is 5." ends with a point.
    tokens_.TakeSign(".");
  } while (!failed() && tokens_.IsSeparator());
  if (!tokens_.AtEnd() || elements.empty()) tokens_.Fail();
  const bool conditions = std::all_of(elements.begin(), elements.end(), [](const Element& element) {
    const Expression& of = *element.expression;
    return of.kind == Kind::kRelation || (of.kind == Kind::kSequence && of.name == "chain");
  });
  if (joins_conditions_ && !conditions) tokens_.Fail();
  return elements;
}

ExpressionPtr Grammar::Relations() {
  const Deeper deeper(&tokens_);
  std::vector<ExpressionPtr> sides = {Ratio()};
  std::vector<std::string> names;
  while (!failed()) {
    const std::optional<std::string> name = RelationOf(tokens_.Peek());
    if (!name.has_value()) break;
    tokens_.Skip();
    // "x =" has nothing to compare with.
    names.push_back(*name);
    sides.push_back(Ratio());
  }
  // What a value is about is said beside it.
  if (tokens_.TakeCommand("approx")) {
    ExpressionPtr about = Ratio();
    if (names.empty()) return Make(Kind::kRelation, "about", {sides[0], std::move(about)});
  }
  if (names.empty()) return sides[0];
  // Of a chain of equations the last value counts.
  if (std::all_of(names.begin(), names.end(), [](const auto& name) { return name == "="; })) {
    return Make(Kind::kRelation, "=", {sides.front(), sides.back()});
  }
  std::vector<ExpressionPtr> relations;
  for (size_t i = 0; i < names.size(); ++i) {
    // "Greater" is "less" the other way round.
    const bool turn = names[i][0] == '>';
    const std::string name = turn ? "<" + names[i].substr(1) : names[i];
    relations.push_back(Make(Kind::kRelation, name, {sides[turn ? i + 1 : i], sides[turn ? i : i + 1]}));
  }
  if (relations.size() == 1) return relations[0];
  return Make(Kind::kSequence, "chain", std::move(relations));
}

ExpressionPtr Grammar::Ratio() {
  std::vector<ExpressionPtr> parts = {Sets()};
  while (!failed() && (tokens_.TakeSign(":") || tokens_.TakeCommand("colon"))) parts.push_back(Sets());
  return parts.size() == 1 ? parts[0] : Make(Kind::kSequence, "::", std::move(parts));
}

ExpressionPtr Grammar::Sets() {
  ExpressionPtr left = Sum();
  std::optional<Kind> last;
  while (!failed()) {
    Kind kind;
    if (tokens_.TakeCommand("cup") || tokens_.TakeCommand("bigcup")) {
      kind = Kind::kUnion;
    } else if (tokens_.TakeCommand("cap")) {
      kind = Kind::kIntersection;
    } else if (tokens_.TakeCommand("setminus")) {
      kind = Kind::kWithout;
    } else {
      break;
    }
    // Which comes first of A \cup B \cap C nobody knows.
    if (last.has_value() && *last != kind && (*last == Kind::kIntersection || kind == Kind::kIntersection)) {
      return Fail();
    }
    last = kind;
    const bool more = kind == left->kind && kind != Kind::kWithout;
    std::vector<ExpressionPtr> parts = more ? left->arguments : std::vector{left};
    parts.push_back(Sum());
    left = Make(kind, "", std::move(parts));
  }
  return left;
}

std::optional<bool> Grammar::PlusOrMinus() {
  if (tokens_.TakeSign("+")) return false;
  if (tokens_.TakeSign("-")) return true;
  if (tokens_.Command("pm") || tokens_.Command("mp")) {
    plus_minus_ = true;
    const bool minus = tokens_.Command("mp") != minus_;
    tokens_.Skip();
    return minus;
  }
  return std::nullopt;
}

ExpressionPtr Grammar::Sum() {
  const Deeper deeper(&tokens_);
  std::vector<ExpressionPtr> terms;
  std::optional<bool> sign = PlusOrMinus();
  do {
    bool minus = sign.value_or(false);
    while (const std::optional<bool> further = PlusOrMinus()) minus = minus != *further;
    ExpressionPtr term = Product();
    terms.push_back(minus ? Negate(std::move(term)) : std::move(term));
  } while (!failed() && (sign = PlusOrMinus()).has_value());
  if (terms.size() == 1) return Modulo(terms[0]);
  // \mathbb{R} - \{0\}
  const auto is_less = [](const ExpressionPtr& term) {
    return term->kind == Kind::kMultiply && term->arguments.size() == 2 && term->arguments[1]->kind == Kind::kSet;
  };
  if (terms[0]->kind == Kind::kSymbol && terms[0]->name == "mathbb R" &&
      std::all_of(terms.begin() + 1, terms.end(), is_less)) {
    for (auto term = terms.begin() + 1; term != terms.end(); ++term) {
      const Expression& factor = *(*term)->arguments[0];
      if (factor.kind != Kind::kNumber || factor.number != -1) return Fail();
      *term = (*term)->arguments[1];
    }
    return Make(Kind::kWithout, "", std::move(terms));
  }
  // A unit is that of all terms, at each of them or behind the last one.
  if (terms.back()->kind != Kind::kQuantity) return Modulo(Make(Kind::kAdd, "", std::move(terms)));
  const std::string unit = terms.back()->name;
  const size_t with = std::count_if(terms.begin(), terms.end(), [&](const ExpressionPtr& term) {
    return term->kind == Kind::kQuantity && term->name == unit;
  });
  if (with != 1 && with != terms.size()) return Fail();
  for (ExpressionPtr& term : terms) {
    if (term->kind == Kind::kQuantity) term = term->arguments[0];
  }
  return Make(Kind::kQuantity, unit, {Make(Kind::kAdd, "", std::move(terms))});
}

ExpressionPtr Grammar::Modulo(ExpressionPtr value) {
  const bool brackets = tokens_.Sign("(") && tokens_.Command("pmod", 1);
  if (brackets) tokens_.Skip();
  if (!tokens_.TakeCommand("pmod")) return value;
  const ExpressionPtr modulus = tokens_.Sign("{") ? Group() : Factor();
  if (brackets) tokens_.Expect(tokens_.Sign(")"));
  if (failed() || value->kind == Kind::kQuantity) return Fail();
  const std::optional<mpq_class> exact = Exact(*value, {}), of = Exact(*modulus, {});
  if (of.has_value() && (of->get_den() != 1 || *of <= 0)) return Fail();
  // Of an expression it is what is left of it; "x" alone is another answer than "x mod 2".
  if (IsScalar(*value) && !IsConstant(*value)) {
    return Make(Kind::kFunction, "mod", {std::move(value), modulus});
  }
  // Numbers are residues: 9 and -5 are 2 modulo 7.
  if (!of.has_value()) {
    return modulus->kind == Kind::kSymbol ? Make(Kind::kQuantity, "mod " + modulus->name, {std::move(value)}) : Fail();
  }
  if (exact.has_value() && exact->get_den() == 1) {
    mpz_class rest;
    mpz_fdiv_r(rest.get_mpz_t(), exact->get_num_mpz_t(), of->get_num_mpz_t());
    value = MakeNumber(rest);
  }
  return Make(Kind::kQuantity, "mod " + of->get_str(), {std::move(value)});
}

bool Grammar::BeginsFactor() const {
  const Token& token = tokens_.Peek();
  if (token.gap_before) return false;
  switch (token.kind) {
    case Token::Kind::kLetter:
      return true;
    case Token::Kind::kSign:
      return token.text == "(" || token.text == "[" || token.text == "{" || (token.text == "|" && bars_ == 0);
    case Token::Kind::kCommand:
      return token.text == "frac" || token.text == "sqrt" || token.text == "pi" || token.text == "infty" ||
             token.text == "binom" || token.text == "lfloor" || token.text == "lceil" || token.text == "begin" ||
             token.text == "mathbb" || token.text == "{" || (token.text == "|" && bars_ == 0) ||
             token.text == "partial" || IsFunction(token.text) || IsOperator(token.text) || IsSymbol(token.text) ||
             IsMark(token.text);
    // Numbers: see Product. Words are none of it.
    case Token::Kind::kNumber:
    case Token::Kind::kLetters:
    case Token::Kind::kText:
    case Token::Kind::kEnd:
      return false;
  }
  return false;
}

bool Grammar::BeginsUnit(const Expression& value) const {
  const bool is_quotient = tokens_.Command("frac") && tokens_.Sign("{", 1) &&
                           tokens_.Peek(2).kind == Token::Kind::kText && tokens_.Sign("}", 3) && tokens_.Sign("{", 4) &&
                           tokens_.Peek(5).kind == Token::Kind::kText && tokens_.Sign("}", 6);
  return is_quotient || (tokens_.Command("Omega") && value.kind == Kind::kNumber) ||
         (tokens_.Sign("(") && tokens_.Command("pmod", 1));
}

ExpressionPtr Grammar::Product() {
  if (tokens_.Peek().kind == Token::Kind::kText && IsFiller(tokens_.Peek().text)) {
    const Token& next = tokens_.Peek(1);
    if (next.kind != Token::Kind::kEnd && next.kind != Token::Kind::kSign) tokens_.Skip();
    if (next.kind == Token::Kind::kSign && (next.text == "(" || next.text == "|" || next.text == "[")) tokens_.Skip();
  }
  const std::string currency = Currency();
  std::vector<ExpressionPtr> factors = {Factor()};
  while (!failed()) {
    if (tokens_.Command("times") || tokens_.Sign("*")) {
      tokens_.Skip();
      factors.push_back(Signed());
    } else if (tokens_.TakeCommand("cross")) {
      ExpressionPtr right = Signed();
      if (IsConstant(*factors.back()) || IsConstant(*right)) {
        factors.push_back(std::move(right));
      } else {
        factors.back() = Make(Kind::kApply, "cross", {factors.back(), std::move(right)});
      }
    } else if (tokens_.TakeCommand("circ")) {
      factors.back() = Make(Kind::kApply, "circ", {factors.back(), Factor(/*may_apply=*/false)});
    } else if (tokens_.Sign("/") && TakeDerivative(&factors)) {
      continue;
    } else if (tokens_.Sign("/") || tokens_.Command("divide")) {
      tokens_.Skip();
      tokens_.CountLink();
      ExpressionPtr below = Signed();
      // 1/2x and 1/2 x: what follows multiplies, as programs read it.
      ExpressionPtr above = factors.size() == 1 ? factors[0] : Make(Kind::kMultiply, "", std::move(factors));
      factors = {Make(Kind::kDivide, "", {std::move(above), std::move(below)})};
    } else if (const bool ends = factors.back()->kind == Kind::kText || BeginsUnit(*factors.back());
               !ends && tokens_.Command("frac") && factors.size() == 1 && factors[0]->kind == Kind::kNumber &&
               !factors[0]->decimal) {
      ExpressionPtr fraction = Factor();
      if (IsProperFraction(*fraction)) {
        factors[0] = Make(Kind::kAdd, "", {factors[0], std::move(fraction)});
      } else if (fraction->kind == Kind::kDivide && fraction->arguments[0]->kind == Kind::kNumber &&
                 fraction->arguments[1]->kind == Kind::kNumber) {
        return Fail();  // 3\frac{5}{2}
      } else {
        factors.push_back(std::move(fraction));
      }
    } else if (!ends && (BeginsFactor() || (tokens_.Peek().kind == Token::Kind::kNumber && !tokens_.Peek().gap_before &&
                                            MayPrecedeNumber(*factors.back(), tokens_.Sign("^", 1))))) {
      factors.push_back(Factor());
    } else {
      break;
    }
  }
  ExpressionPtr product = ProductOf(std::move(factors));
  if (product->kind == Kind::kText) return currency.empty() ? product : Fail();
  const std::string words = absl::StrCat(UnitWords(), currency);
  return words.empty() ? product : WithUnit(std::move(product), words);
}

std::string Grammar::Currency() {
  for (const char* money : {"dollar", "euro", "pound", "yen", "rupee"}) {
    if (tokens_.TakeCommand(money)) return absl::StrCat(" ", money);
  }
  const Token& token = tokens_.Peek();
  if ((token.kind == Token::Kind::kText || token.kind == Token::Kind::kLetters) &&
      (token.text == "USD" || token.text == "EUR" || token.text == "Rs" || token.text == "Rs.") &&
      tokens_.Peek(1).kind == Token::Kind::kNumber) {
    return " " + tokens_.TakeText();
  }
  return "";
}

std::string Grammar::UnitWords() {
  std::string words;
  while (!failed()) {
    const auto text = [&](size_t ahead) { return tokens_.Peek(ahead).kind == Token::Kind::kText; };
    const bool power_below = tokens_.Sign("{", 1);
    if (text(0)) {
      absl::StrAppend(&words, " ", tokens_.TakeText());
    } else if (tokens_.TakeCommand("degree")) {
      words += " degree";
    } else if (tokens_.TakeSign("%")) {
      words += " %";
    } else if (tokens_.TakeCommand("Omega")) {
      words += " ohm";
    } else if (tokens_.Command("mu") && text(1)) {
      tokens_.Skip();
      absl::StrAppend(&words, " micro", tokens_.TakeText());
    } else if (const char* money = tokens_.Command("dollar") ? "dollar" : tokens_.Command("euro") ? "euro" : nullptr) {
      tokens_.Skip();
      absl::StrAppend(&words, " ", money);
    } else if (!words.empty() && tokens_.Sign("/") && text(1)) {
      tokens_.Skip();
      words += '/';
    } else if (!words.empty() && (tokens_.Command("times") || tokens_.Sign("-")) && text(1)) {
      tokens_.Skip();
    } else if (tokens_.Command("frac")) {
      if (!BeginsUnit(*MakeNumber(0))) break;
      absl::StrAppend(&words, " ", tokens_.Peek(2).text, "/", tokens_.Peek(5).text);
      tokens_.Skip(7);
    } else if (!words.empty() && tokens_.Sign("^")) {
      tokens_.Skip(power_below ? 2 : 1);
      words += '^';
      if (tokens_.TakeSign("-")) words += '-';
      if (tokens_.Peek().kind != Token::Kind::kNumber) tokens_.Fail();
      words += tokens_.TakeText();
      if (power_below) tokens_.Expect(tokens_.Sign("}"));
    } else {
      break;
    }
  }
  return words;
}

ExpressionPtr Grammar::WithUnit(ExpressionPtr value, const std::string& words) {
  const std::optional<Unit> unit = ReadUnit(words);
  if (!unit.has_value() || value->kind == Kind::kQuantity) return Fail();
  if (unit->factor != 1) value = Make(Kind::kMultiply, "", {std::move(value), MakeNumber(unit->factor)});
  return unit->name.empty() ? value : Make(Kind::kQuantity, unit->name, {std::move(value)});
}

ExpressionPtr Grammar::Signed(bool may_apply) {
  bool minus = false;
  while (const std::optional<bool> sign = PlusOrMinus()) minus = minus != *sign;
  ExpressionPtr factor = Factor(may_apply);
  return minus ? Negate(std::move(factor)) : factor;
}

std::optional<Formula> Parse(std::string_view latex, LetterE e) {
  std::optional<std::vector<Token>> tokens = Tokenize(latex, e);
  if (!tokens.has_value()) return std::nullopt;
  const std::vector<Token> words = JoinWords(*tokens);
  Grammar plus(words, /*minus=*/false), minus(words, /*minus=*/true);
  const auto upper = plus.Elements();
  if (plus.failed()) return std::nullopt;
  const bool twice =
      std::any_of(upper.begin(), upper.end(), [](const auto& element) { return element.has_plus_minus; });
  const auto lower = twice ? minus.Elements() : upper;
  Formula formula;
  for (size_t i = 0; i < upper.size(); ++i) {
    formula.elements.push_back(upper[i].expression);
    if (upper[i].has_plus_minus) formula.elements.push_back(lower[i].expression);
  }
  using Joint = Formula::Joint;
  const int joints = plus.has_or() + plus.has_and() + plus.has_comma();
  if (joints > 0) {
    formula.joint = joints > 1 || plus.has_comma() ? Joint::kComma : plus.has_or() ? Joint::kOr : Joint::kAnd;
  }
  return formula;
}

}  // namespace quartet::math
