#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "core/rewards/math/grammar/grammar.h"
#include "core/rewards/math/grammar/products.h"
#include "core/rewards/math/grammar/words.h"
#include "core/rewards/math/vocabulary/units.h"

namespace quartet::math {

using Kind = Expression::Kind;
using Deeper = TokenCursor::Deeper;

namespace {

constexpr int kMostDigits = 1000;  // and the largest exponent

bool IsWhole(const Token& token) {
  return token.kind == Token::Kind::kNumber && token.text.find_first_of(".e") == std::string::npos;
}

// What functions take: 30 degrees as a number.
ExpressionPtr InRadians(ExpressionPtr of) {
  if (of->kind != Kind::kQuantity || of->name != kDegree) return of;
  return Make(Kind::kDivide, "",
              {Make(Kind::kMultiply, "", {of->arguments[0], Make(Kind::kConstant, "pi", {})}), MakeNumber(180)});
}

// Nothing where it is not square.
std::optional<ExpressionPtr> Determinant(const Expression& matrix) {
  std::vector<ExpressionPtr> elements;
  for (const ExpressionPtr& row : matrix.arguments) {
    if (row->arguments.size() != matrix.arguments.size()) return std::nullopt;
    elements.insert(elements.end(), row->arguments.begin(), row->arguments.end());
  }
  return Make(Kind::kFunction, "determinant", std::move(elements));
}

std::string Lower(const std::string& text) {
  std::string lower = absl::AsciiStrToLower(text);
  while (!lower.empty() && (lower.back() == '.' || lower.back() == ' ')) lower.pop_back();
  return lower;
}

}  // namespace

ExpressionPtr Grammar::Factor(bool may_apply) {
  const Deeper deeper(&tokens_);
  if (failed()) return Fail();
  const size_t begin = tokens_.at();
  ExpressionPtr base = Base();
  while (!failed()) {
    tokens_.CountLink();
    const bool derivative = base->kind == Kind::kSymbol && tokens_.Sign("^") && tokens_.Sign("{", 1) &&
                            tokens_.Sign("(", 2) && tokens_.Sign(")", 4) && tokens_.Sign("}", 5);
    if (may_apply && IsApplied(*base, begin)) {
      base = Applied(tokens_.TextSince(begin));
    } else if (derivative) {
      // x^{(n)} is no power.
      tokens_.Skip(6);
      base = Make(Kind::kSymbol, base->name + tokens_.TextSince(tokens_.at() - 6), {});
    } else if (tokens_.TakeSign("^")) {
      base = PowerOf(std::move(base), Script());
    } else if (tokens_.TakeSign("!")) {
      if (tokens_.Sign("!")) return Fail();  // n!!
      base = Make(Kind::kFunction, "factorial", {std::move(base)});
    } else {
      break;
    }
  }
  return base;
}

ExpressionPtr Grammar::Script() {
  if (tokens_.Sign("{")) return Group();
  return Signed(/*may_apply=*/false);  // f^n(x)
}

ExpressionPtr Grammar::Argument() {
  if (tokens_.Sign("{")) return Group();
  if (tokens_.Peek().kind == Token::Kind::kNumber && tokens_.Peek().text.size() > 1) {
    return Value(tokens_.TakeDigit());
  }
  return Base();
}

ExpressionPtr Grammar::Group() {
  if (!tokens_.Expect(tokens_.Sign("{"))) return Fail();
  const int bars = std::exchange(bars_, 0);
  ExpressionPtr inside = Relations();
  if (tokens_.TakeCommand("choose")) inside = Make(Kind::kFunction, "binom", {std::move(inside), Relations()});
  bars_ = bars;
  return tokens_.Expect(tokens_.Sign("}")) ? inside : Fail();
}

ExpressionPtr Grammar::Value(const std::string& text) {
  std::string digits = text.substr(0, text.find('e'));
  int exponent = 0;
  if (digits.size() < text.size() && !absl::SimpleAtoi(text.substr(digits.size() + 1), &exponent)) return Fail();
  std::string repeated;
  if (const size_t open = digits.find('('); open != std::string::npos) {
    repeated = digits.substr(open + 1, digits.size() - open - 2);
    digits.resize(open);
  }
  const size_t point = digits.find('.');
  if (static_cast<int>(digits.size() + repeated.size()) > kMostDigits || std::abs(exponent) > kMostDigits)
    return Fail();
  if (point != std::string::npos) {
    digits.erase(point, 1);
    exponent -= static_cast<int>(digits.size() - point);
  }
  if (digits.empty()) return Fail();  // of ".5" or "1e5" as two arguments
  mpz_class above(digits, 10), below = 1, power;
  mpz_ui_pow_ui(power.get_mpz_t(), 10, std::abs(exponent));
  (exponent < 0 ? below : above) *= power;
  mpq_class value(above, below);
  value.canonicalize();
  if (repeated.empty()) return MakeNumber(std::move(value), point != std::string::npos || exponent < 0);
  // 0.1(6) is 0.1 and 6/9 of its last place.
  mpz_class nines;
  mpz_ui_pow_ui(nines.get_mpz_t(), 10, repeated.size());
  mpq_class tail(mpz_class(repeated, 10), (nines - 1) * below);
  tail.canonicalize();
  return MakeNumber(value + tail);
}

ExpressionPtr Grammar::Number() {
  const std::string text = tokens_.TakeText();
  ExpressionPtr value = Value(text);
  if (failed() || value->decimal) return value;
  // 1011_2: the digits, and the base as their unit.
  if (tokens_.Sign("_")) {
    return Make(Kind::kQuantity, "base" + tokens_.TakeSubscript(), {std::move(value)});
  }
  // 1 1/2
  if (IsWhole(tokens_.Peek()) && tokens_.Peek().space_before && tokens_.Sign("/", 1) && IsWhole(tokens_.Peek(2))) {
    ExpressionPtr above = Value(tokens_.Peek().text), below = Value(tokens_.Peek(2).text);
    if (above->number >= below->number) return Fail();
    tokens_.Skip(3);
    return Make(Kind::kAdd, "", {value, Make(Kind::kDivide, "", {std::move(above), std::move(below)})});
  }
  return value;
}

ExpressionPtr Grammar::Symbol(std::string name) {
  name += tokens_.TakeSubscript();
  while (tokens_.TakeSign("'")) name += '\'';
  if (name == "e" || name == "i") return Make(Kind::kConstant, name, {});
  return Make(Kind::kSymbol, name, {});
}

ExpressionPtr Grammar::Marked(const std::string& mark) {
  const auto part = [&] {
    const Token& token = tokens_.Peek();
    return token.kind == Token::Kind::kLetter || token.kind == Token::Kind::kLetters ||
           token.kind == Token::Kind::kText || token.kind == Token::Kind::kNumber ||
           (token.kind == Token::Kind::kCommand && IsSymbol(token.text));
  };
  std::string name = mark + " ";
  if (tokens_.TakeSign("{")) {
    while (part()) name += tokens_.TakeText();
    name += tokens_.TakeSubscript();
    if (!tokens_.Expect(tokens_.Sign("}"))) return Fail();
  } else if (mark == "angle" || mark == "triangle") {
    while (part() && (name.ends_with(' ') || !tokens_.Peek().space_before)) name += tokens_.TakeText();
  } else if (part()) {
    name += tokens_.TakeText();
  }
  if (name.ends_with(' ')) return Fail();
  return Symbol(std::move(name));
}

std::optional<ExpressionPtr> Grammar::Chosen() {
  const auto chosen = [](std::string_view letter, ExpressionPtr of, ExpressionPtr number) {
    if (letter == "C") return Make(Kind::kFunction, "binom", {std::move(of), std::move(number)});
    return Make(Kind::kFunction, "permutations", {std::move(of), std::move(number)});
  };
  // ^{10}C_{3}, _{10}C_{3}
  if (tokens_.Sign("^") || tokens_.Sign("_")) {
    tokens_.Skip();
    ExpressionPtr of = Argument();
    const std::string letter = tokens_.TakeText();
    if ((letter != "C" && letter != "P") || !tokens_.Expect(tokens_.Sign("_"))) return Fail();
    return chosen(letter, std::move(of), Argument());
  }
  // C_{10}^{3}, of numbers: there is no name like that with a power.
  if (!(tokens_.Peek().kind == Token::Kind::kLetter && tokens_.Peek().text == "C")) return std::nullopt;
  size_t at = 1;
  const auto script = [&](std::string_view sign) -> std::optional<std::string> {
    if (!tokens_.Sign(sign, at)) return std::nullopt;
    const bool braces = tokens_.Sign("{", at + 1);
    const Token& number = tokens_.Peek(at + (braces ? 2 : 1));
    if (!IsWhole(number) || (braces && !tokens_.Sign("}", at + 3))) return std::nullopt;
    at += braces ? 4 : 2;
    return number.text;
  };
  auto below = script("_"), above = script("^");
  if (!below.has_value() && above.has_value()) below = script("_");
  if (!below.has_value() || !above.has_value()) return std::nullopt;
  ExpressionPtr of = Value(*below), number = Value(*above);
  if (of->number < number->number) return std::nullopt;
  tokens_.Skip(at);
  return chosen("C", std::move(of), std::move(number));
}

ExpressionPtr Grammar::Bracketed(const std::string& open) {
  const int bars = std::exchange(bars_, 0);
  tokens_.Skip();
  std::vector<ExpressionPtr> elements;
  const auto closes = [&] {
    return tokens_.Sign(")") || tokens_.Sign("]") || tokens_.Sign("}") || tokens_.Command("}") ||
           tokens_.Command("rangle");
  };
  // {x | x > 3}: what the condition says, of several all.
  size_t bar = 1;
  if (tokens_.Command("in", 1) && tokens_.Command("reals", 2)) bar = 3;
  if (tokens_.Command("in", 1) && tokens_.Command("mathbb", 2)) {
    const size_t letter = tokens_.Sign("{", 3) ? 4 : 3;
    if (tokens_.Peek(letter).text == "R") bar = letter + (letter == 4 ? 2 : 1);
  }
  const bool divided = tokens_.Sign("|", bar) || tokens_.Command("|", bar) || tokens_.Sign(":", bar);
  if (open == "\\{" && divided && tokens_.Peek().kind == Token::Kind::kLetter) {
    const ExpressionPtr name = Make(Kind::kSymbol, tokens_.Peek().text, {});
    tokens_.Skip(bar + 1);
    bool either = false;
    while (!failed() && !closes()) {
      elements.push_back(Relations());
      either |= tokens_.Command("or");
      if (!closes()) tokens_.Expect(tokens_.IsSeparator());
    }
    bars_ = bars;
    if (failed() || !tokens_.Expect(tokens_.Command("}")) || elements.empty()) return Fail();
    if (elements.size() > 1) elements = {Make(Kind::kSequence, either ? "either" : "all", std::move(elements))};
    return Make(Kind::kRelation, "such", {name, elements[0]});
  }
  while (!failed() && !closes()) {
    elements.push_back(Relations());
    if (elements.size() == 1 && open == "{" && tokens_.TakeCommand("choose")) {
      elements[0] = Make(Kind::kFunction, "binom", {elements[0], Relations()});
    }
    if (!closes()) tokens_.Expect(tokens_.IsSeparator());
  }
  bars_ = bars;
  if (failed()) return Fail();
  const bool command = tokens_.Peek().kind == Token::Kind::kCommand;
  const std::string close = (command ? "\\" : "") + tokens_.Peek().text;
  tokens_.Skip();
  // Round and square brackets go together, as intervals have them; others close their own.
  const auto round = [](std::string_view bracket) { return bracket == "(" || bracket == "["; };
  const std::string_view closes_it = open == "\\{" ? "\\}" : open == "\\langle" ? "\\rangle" : "}";
  if (round(open) ? close != ")" && close != "]" : close != closes_it) return Fail();
  if (open == "\\{") return Make(Kind::kSet, "", std::move(elements));
  if (open == "\\langle") return Make(Kind::kSequence, "()", std::move(elements));
  if (elements.size() == 1) {
    // {u}_1, of \mathbf{u}_1
    if (open == "{" && elements[0]->kind == Kind::kSymbol && tokens_.Sign("_")) return Symbol(elements[0]->name);
    // [x] may be the floor of x, or its class.
    return open == "[" && elements[0]->kind == Kind::kSymbol ? Fail() : elements[0];
  }
  if (elements.empty()) return Fail();
  if (open == "{") return Make(Kind::kSet, "", std::move(elements));
  return Make(Kind::kSequence, open + close, std::move(elements));
}

ExpressionPtr Grammar::Between(const std::string& function, std::string_view close) {
  tokens_.Skip();
  ++bars_;
  ExpressionPtr inside = Sets();
  --bars_;
  if (!tokens_.Expect(tokens_.Command(close) || (close == "|" && tokens_.Sign("|")))) return Fail();
  return Make(Kind::kFunction, function, {std::move(inside)});
}

ExpressionPtr Grammar::Matrix() {
  tokens_.Skip();
  // {pmatrix}, letter by letter or as a word; {array}{cc}
  const std::string name = tokens_.Peek(1).text;
  tokens_.SkipGroup();
  if (name == "array") tokens_.SkipGroup();
  // Of Vmatrix it is a norm.
  if ((name != "array" && name.find("matrix") == std::string::npos) || name == "Vmatrix") return Fail();
  std::vector<ExpressionPtr> rows, row;
  while (!failed() && !tokens_.Command("end")) {
    row.push_back(Sum());
    if (tokens_.TakeSign("&")) continue;
    if (tokens_.TakeCommand("\\")) {
      rows.push_back(Make(Kind::kSequence, "row", std::exchange(row, {})));
    } else if (!tokens_.Command("end")) {
      tokens_.Fail();
    }
  }
  if (failed()) return Fail();
  if (!row.empty()) rows.push_back(Make(Kind::kSequence, "row", std::move(row)));
  tokens_.Skip();
  tokens_.SkipGroup();
  ExpressionPtr matrix = Make(Kind::kSequence, "matrix", std::move(rows));
  if (name != "vmatrix") return matrix;
  const std::optional<ExpressionPtr> determinant = Determinant(*matrix);
  return determinant.has_value() ? *determinant : Fail();
}

ExpressionPtr Grammar::Function(const std::string& name) {
  tokens_.Skip();
  std::string function = name;
  ExpressionPtr base, power;
  if (name == "log" && tokens_.TakeSign("_")) base = Argument();
  if (tokens_.TakeSign("^")) power = Script();
  // \sin^{-1} undoes.
  if (power != nullptr && power->kind == Kind::kNumber && power->number == -1) {
    function = InverseOf(name);
    if (function.empty()) return Fail();
    power = nullptr;
  }
  ExpressionPtr argument;
  if (tokens_.Sign("(") || tokens_.Sign("[") || tokens_.Sign("{")) {
    argument = Factor();
  } else {
    // \sin 2x: up to the next sign or function.
    std::vector<ExpressionPtr> factors = {Factor()};
    while (!failed() && BeginsFactor() && !IsFunction(tokens_.Peek().text) && !tokens_.Sign("("))
      factors.push_back(Factor());
    argument = factors.size() == 1 ? factors[0] : Make(Kind::kMultiply, "", std::move(factors));
    if (tokens_.TakeCommand("degree")) argument = Make(Kind::kQuantity, std::string(kDegree), {std::move(argument)});
  }
  argument = InRadians(std::move(argument));
  ExpressionPtr value;
  if (base != nullptr) {
    value = Make(Kind::kFunction, "logb", {std::move(base), std::move(argument)});
  } else if (name == "lg" || name == "log") {
    value = Make(Kind::kFunction, "logb", {MakeNumber(10), std::move(argument)});
  } else {
    value = Make(Kind::kFunction, function, {std::move(argument)});
  }
  return power == nullptr ? value : Make(Kind::kPower, "", {std::move(value), std::move(power)});
}

ExpressionPtr Grammar::Fraction() {
  // \frac{dy}{dx} is no quotient of numbers.
  bool with_d = false, begins_with_d = false;
  const size_t group = tokens_.BracketedAhead();
  for (size_t i = 0; i < group; ++i) with_d |= IsDifferential(i);
  begins_with_d = IsDifferential(tokens_.Sign("{") ? 1 : 0);
  ExpressionPtr above = Argument();
  const size_t inner = tokens_.Sign("{") ? 1 : 0;
  const Token& name = tokens_.Peek(inner + 1);
  const bool d_below = inner == 1 && IsDifferential(1) && (name.kind == Token::Kind::kLetter || IsSymbol(name.text));
  ExpressionPtr below = Argument();
  if (d_below && with_d) {
    return begins_with_d ? Make(Kind::kApply, "derivative", {std::move(above), std::move(below)}) : Fail();
  }
  // \frac{10\text{ m}}{2\text{ s}}
  if (above->kind == Kind::kQuantity && below->kind == Kind::kQuantity) {
    const auto unit = ReadUnit(above->name + "/" + below->name);
    if (!unit.has_value() || below->name.find(' ') != std::string::npos) return Fail();
    return Make(Kind::kQuantity, unit->name, {Make(Kind::kDivide, "", {above->arguments[0], below->arguments[0]})});
  }
  return Make(Kind::kDivide, "", {std::move(above), std::move(below)});
}

ExpressionPtr Grammar::Base() {
  const Deeper deeper(&tokens_);
  if (failed()) return Fail();
  if (std::optional<ExpressionPtr> chosen = Chosen()) return *chosen;
  const Token token = tokens_.Peek();
  switch (token.kind) {
    case Token::Kind::kNumber:
      return Number();
    case Token::Kind::kLetter:
      tokens_.Skip();
      // m\angle A is the size of the angle.
      if (token.text == "m" && tokens_.TakeCommand("angle")) return Marked("angle");
      return Symbol(token.text);
    case Token::Kind::kLetters: {
      tokens_.Skip();
      std::vector<ExpressionPtr> letters;
      for (const char letter : token.text) {
        const std::string name(1, letter);
        letters.push_back(Make(name == "e" || name == "i" ? Kind::kConstant : Kind::kSymbol, name, {}));
      }
      return Make(Kind::kMultiply, token.text, std::move(letters));
    }
    case Token::Kind::kText:
      tokens_.Skip();
      return Make(Kind::kText, Lower(token.text) + tokens_.TakeSubscript(), {});
    case Token::Kind::kSign:
      if (token.text == "(" || token.text == "[" || token.text == "{") return Bracketed(token.text);
      if (token.text == "|" && bars_ == 0) return Between("abs", "|");
      return Fail();
    case Token::Kind::kCommand:
      return OfCommand(token.text);
    case Token::Kind::kEnd:
      return Fail();
  }
  return Fail();
}

ExpressionPtr Grammar::OfCommand(const std::string& name) {
  if (name == "{") return Bracketed("\\{");
  if (name == "langle") return Bracketed("\\langle");
  if (name == "|" && bars_ == 0) return Between("abs", "|");
  if (name == "lfloor") return Between("floor", "rfloor");
  if (name == "lceil") return Between("ceil", "rceil");
  if (name == "begin") return Matrix();
  if (IsFunction(name)) return Function(name);
  if (IsOperator(name)) return Operator(name);
  tokens_.Skip();
  if (name == "frac") return Fraction();
  if (name == "binom") {
    ExpressionPtr above = Argument();
    return Make(Kind::kFunction, "binom", {std::move(above), Argument()});
  }
  if (name == "sqrt") {
    if (!tokens_.TakeSign("[")) return Make(Kind::kFunction, "sqrt", {tokens_.Sign("(") ? Base() : Argument()});
    ExpressionPtr degree = Sum();
    if (!tokens_.Expect(tokens_.Sign("]"))) return Fail();
    return Make(Kind::kFunction, "root", {std::move(degree), Argument()});
  }
  if (name == "pi") return Make(Kind::kConstant, "pi", {});
  if (name == "infty") return Make(Kind::kConstant, "oo", {});
  if (name == "emptyset") return Make(Kind::kSet, "", {});
  if (name == "partial") return Symbol(name);
  if (name == "reals") return Symbol("mathbb R");
  if (IsMark(name)) return Marked(name);
  if (IsSymbol(name)) return Symbol(name);
  if (name == "mathbb" && (tokens_.Sign("{") || tokens_.Peek().kind == Token::Kind::kLetter)) {
    const bool braces = tokens_.TakeSign("{");
    const std::string letter = tokens_.TakeText();
    if (braces && !tokens_.Expect(tokens_.Sign("}"))) return Fail();
    return Symbol("mathbb " + letter);
  }
  return Fail();
}

}  // namespace quartet::math
