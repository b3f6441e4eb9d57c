#include "scorer/rewards/math/parser.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "scorer/rewards/math/lexer.h"
#include "scorer/rewards/math/token_cursor.h"
#include "scorer/rewards/math/words.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;
using Deeper = TokenCursor::Deeper;

constexpr int kMostDigits = 1000;  // and the largest exponent

// A method a rule of the grammar, which takes the tokens of its expression. After a failure what it returns says
// nothing.
class Parser {
 public:
  Parser(std::vector<Token> tokens, bool minus) : tokens_(std::move(tokens)), minus_(minus) {}

  bool failed() const { return tokens_.failed(); }

  // Elements with whether \pm is in them.
  std::vector<std::pair<ExpressionPtr, bool>> Elements() {
    std::vector<std::pair<ExpressionPtr, bool>> elements;
    do {
      while (tokens_.IsSeparator()) tokens_.Skip();
      if (tokens_.AtEnd()) break;
      plus_minus_ = false;
      ExpressionPtr element = Relations();
      elements.emplace_back(std::move(element), plus_minus_);
      // "The value is 5." ends with a point.
      tokens_.TakeSign(".");
    } while (!failed() && tokens_.IsSeparator());
    if (!tokens_.AtEnd() || elements.empty()) tokens_.Fail();
    return elements;
  }

 private:
  ExpressionPtr Fail() {
    tokens_.Fail();
    return MakeNumber(0);
  }

  ExpressionPtr Relations() {
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
    // What a value is about is said beside the value.
    if (tokens_.TakeCommand("approx")) {
      ExpressionPtr about = Ratio();
      if (names.empty()) return Make(Kind::kRelation, "=", {sides[0], std::move(about)});
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

  ExpressionPtr Ratio() {
    std::vector<ExpressionPtr> parts = {Sets()};
    while (!failed() && (tokens_.TakeSign(":") || tokens_.TakeCommand("colon"))) parts.push_back(Sets());
    return parts.size() == 1 ? parts[0] : Make(Kind::kSequence, "::", std::move(parts));
  }

  ExpressionPtr Sets() {
    ExpressionPtr left = Sum();
    while (!failed()) {
      if (tokens_.TakeCommand("cup") || tokens_.TakeCommand("bigcup")) {
        std::vector<ExpressionPtr> parts = left->kind == Kind::kUnion ? left->arguments : std::vector{left};
        parts.push_back(Sum());
        left = Make(Kind::kUnion, "", std::move(parts));
      } else if (tokens_.TakeCommand("setminus")) {
        left = Make(Kind::kWithout, "", {left, Sum()});
      } else {
        break;
      }
    }
    return left;
  }

  static ExpressionPtr Negate(ExpressionPtr of) {
    if (of->kind == Kind::kNumber) return MakeNumber(-of->number, of->decimal);
    return Make(Kind::kMultiply, "", {MakeNumber(-1), std::move(of)});
  }

  // Consumes a sign; nothing where there is none. True: minus.
  std::optional<bool> PlusOrMinus() {
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

  ExpressionPtr Sum() {
    const Deeper deeper(&tokens_);
    std::vector<ExpressionPtr> terms;
    std::optional<bool> sign = PlusOrMinus();
    do {
      bool minus = sign.value_or(false);
      while (const std::optional<bool> further = PlusOrMinus()) minus = minus != *further;
      ExpressionPtr term = Product();
      terms.push_back(minus ? Negate(std::move(term)) : std::move(term));
    } while (!failed() && (sign = PlusOrMinus()).has_value());
    return terms.size() == 1 ? terms[0] : Make(Kind::kAdd, "", std::move(terms));
  }

  // Whether a factor can begin here, without a sign for times.
  bool BeginsFactor() const {
    const Token& token = tokens_.Peek();
    switch (token.kind) {
      case Token::Kind::kNumber:
      case Token::Kind::kLetter:
      case Token::Kind::kText:
        return true;
      case Token::Kind::kSign:
        return token.text == "(" || token.text == "[" || token.text == "{" || (token.text == "|" && bars_ == 0);
      case Token::Kind::kCommand:
        return token.text == "frac" || token.text == "sqrt" || token.text == "pi" || token.text == "infty" ||
               token.text == "binom" || token.text == "lfloor" || token.text == "lceil" || token.text == "begin" ||
               token.text == "mathbb" || token.text == "{" || (token.text == "|" && bars_ == 0) ||
               IsFunction(token.text) || IsSymbol(token.text);
      case Token::Kind::kEnd:
        return false;
    }
    return false;
  }

  ExpressionPtr Product() {
    std::vector<ExpressionPtr> factors = {Factor()};
    while (!failed()) {
      if (tokens_.TakeCommand("times") || tokens_.TakeSign("*")) {
        factors.push_back(Signed());
      } else if (tokens_.TakeSign("/") || tokens_.TakeCommand("divide")) {
        tokens_.CountLink();
        ExpressionPtr below = Signed();
        // 1/2x and 1/2 x: what follows multiplies, as programs read it.
        ExpressionPtr above = factors.size() == 1 ? factors[0] : Make(Kind::kMultiply, "", std::move(factors));
        factors = {Make(Kind::kDivide, "", {std::move(above), std::move(below)})};
      } else if (BeginsFactor()) {
        factors.push_back(Factor());
      } else {
        break;
      }
    }
    // Words beside a value are units and the like.
    if (factors.size() > 1) {
      std::vector<ExpressionPtr> values;
      for (const ExpressionPtr& factor : factors) {
        if (factor->kind != Kind::kText) values.push_back(factor);
      }
      if (!values.empty()) factors = std::move(values);
    }
    return factors.size() == 1 ? factors[0] : Make(Kind::kMultiply, "", std::move(factors));
  }

  ExpressionPtr Signed() {
    bool minus = false;
    while (const std::optional<bool> sign = PlusOrMinus()) minus = minus != *sign;
    ExpressionPtr factor = Factor();
    return minus ? Negate(std::move(factor)) : factor;
  }

  ExpressionPtr Factor() {
    const Deeper deeper(&tokens_);
    if (failed()) return Fail();
    ExpressionPtr base = Base();
    while (!failed()) {
      tokens_.CountLink();
      if (tokens_.TakeSign("^")) {
        base = Make(Kind::kPower, "", {std::move(base), Script()});
      } else if (tokens_.TakeSign("!")) {
        base = Make(Kind::kFunction, "factorial", {std::move(base)});
      } else {
        break;
      }
    }
    return base;
  }

  // What is raised: a group, or one thing.
  ExpressionPtr Script() {
    if (tokens_.Sign("{")) return Group();
    return Signed();
  }

  // An argument of a command: a group, or one digit, letter or command.
  ExpressionPtr Argument() {
    if (tokens_.Sign("{")) return Group();
    if (tokens_.Peek().kind == Token::Kind::kNumber && tokens_.Peek().text.size() > 1) {
      return Value(tokens_.TakeDigit());
    }
    return Base();
  }

  // {...}, one expression.
  ExpressionPtr Group() {
    if (!tokens_.Expect(tokens_.Sign("{"))) return Fail();
    const int bars = std::exchange(bars_, 0);
    ExpressionPtr inside = Relations();
    bars_ = bars;
    return tokens_.Expect(tokens_.Sign("}")) ? inside : Fail();
  }

  ExpressionPtr Value(const std::string& text) {
    std::string digits = text.substr(0, text.find('e'));
    int exponent = 0;
    if (digits.size() < text.size() && !absl::SimpleAtoi(text.substr(digits.size() + 1), &exponent)) return Fail();
    const size_t point = digits.find('.');
    if (static_cast<int>(digits.size()) > kMostDigits || std::abs(exponent) > kMostDigits) return Fail();
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
    return MakeNumber(std::move(value), point != std::string::npos || exponent < 0);
  }

  ExpressionPtr Number() {
    ExpressionPtr value = Value(tokens_.TakeText());
    if (failed() || value->decimal) return value;
    // 1\frac{1}{2} and 1 1/2.
    const auto whole = [&](size_t ahead) {
      return tokens_.Peek(ahead).kind == Token::Kind::kNumber &&
             tokens_.Peek(ahead).text.find_first_of(".e") == std::string::npos;
    };
    if (tokens_.Command("frac") && tokens_.Sign("{", 1) && whole(2) && tokens_.Sign("}", 3) && tokens_.Sign("{", 4) &&
        whole(5) && tokens_.Sign("}", 6)) {
      return Make(Kind::kAdd, "", {value, Base()});
    }
    if (whole(0) && tokens_.Peek().space_before && tokens_.Sign("/", 1) && whole(2)) {
      const ExpressionPtr above = Value(tokens_.Peek().text), below = Value(tokens_.Peek(2).text);
      tokens_.Skip(3);
      return Make(Kind::kAdd, "", {value, Make(Kind::kDivide, "", {above, below})});
    }
    return value;
  }

  ExpressionPtr Symbol(std::string name) {
    name += tokens_.TakeSubscript();
    while (tokens_.TakeSign("'")) name += '\'';
    if (name == "e" || name == "i") return Make(Kind::kConstant, name, {});
    return Make(Kind::kSymbol, name, {});
  }

  // Elements up to a closing bracket, which is consumed; of the kinds ")", "]" or "}".
  ExpressionPtr Bracketed(const std::string& open) {
    const int bars = std::exchange(bars_, 0);
    tokens_.Skip();
    std::vector<ExpressionPtr> elements;
    const auto closes = [&] {
      return tokens_.Sign(")") || tokens_.Sign("]") || tokens_.Sign("}") || tokens_.Command("}");
    };
    while (!failed() && !closes()) {
      elements.push_back(Relations());
      if (!closes()) tokens_.Expect(tokens_.IsSeparator());
    }
    bars_ = bars;
    if (failed()) return Fail();
    const std::string close = tokens_.Peek().text;
    const bool set = tokens_.Command("}");
    tokens_.Skip();
    if (open == "\\{" ? !set : (open == "{") != (close == "}" && !set)) return Fail();
    if (open == "\\{") return Make(Kind::kSet, "", std::move(elements));
    if (elements.size() == 1) return elements[0];
    if (elements.empty()) return Fail();
    if (open == "{") return Make(Kind::kSet, "", std::move(elements));
    return Make(Kind::kSequence, open + close, std::move(elements));
  }

  ExpressionPtr Between(const std::string& function, std::string_view close) {
    tokens_.Skip();
    ++bars_;
    ExpressionPtr inside = Sum();
    --bars_;
    if (!tokens_.Expect(tokens_.Command(close) || (close == "|" && tokens_.Sign("|")))) return Fail();
    return Make(Kind::kFunction, function, {std::move(inside)});
  }

  ExpressionPtr Matrix() {
    tokens_.Skip();
    // {pmatrix}, letter by letter or as a word; {array}{cc}
    const std::string name = tokens_.Peek(1).text;
    tokens_.SkipGroup();
    if (name == "array") tokens_.SkipGroup();
    if (name != "array" && name.find("matrix") == std::string::npos) return Fail();
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
    return Make(Kind::kSequence, "matrix", std::move(rows));
  }

  ExpressionPtr Function(const std::string& name) {
    tokens_.Skip();
    ExpressionPtr base, power;
    if (name == "log" && tokens_.TakeSign("_")) base = Argument();
    if (tokens_.TakeSign("^")) power = Script();
    ExpressionPtr argument;
    if (tokens_.Sign("(") || tokens_.Sign("[") || tokens_.Sign("{")) {
      argument = Factor();
    } else {
      // \sin 2x: up to the next sign or function.
      std::vector<ExpressionPtr> factors = {Factor()};
      while (!failed() && BeginsFactor() && !IsFunction(tokens_.Peek().text) && !tokens_.Sign("("))
        factors.push_back(Factor());
      argument = factors.size() == 1 ? factors[0] : Make(Kind::kMultiply, "", std::move(factors));
    }
    ExpressionPtr value;
    if (base != nullptr) {
      value = Make(Kind::kFunction, "logb", {std::move(base), std::move(argument)});
    } else if (name == "lg" || name == "log") {
      value = Make(Kind::kFunction, "logb", {MakeNumber(10), std::move(argument)});
    } else {
      value = Make(Kind::kFunction, name, {std::move(argument)});
    }
    return power == nullptr ? value : Make(Kind::kPower, "", {std::move(value), std::move(power)});
  }

  ExpressionPtr Base() {
    const Deeper deeper(&tokens_);
    if (failed()) return Fail();
    const Token token = tokens_.Peek();
    switch (token.kind) {
      case Token::Kind::kNumber:
        return Number();
      case Token::Kind::kLetter:
        tokens_.Skip();
        return Symbol(token.text);
      case Token::Kind::kText:
        tokens_.Skip();
        return Make(Kind::kText, absl::AsciiStrToLower(token.text) + tokens_.TakeSubscript(), {});
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

  ExpressionPtr OfCommand(const std::string& name) {
    if (name == "{") return Bracketed("\\{");
    if (name == "|" && bars_ == 0) return Between("abs", "|");
    if (name == "lfloor") return Between("floor", "rfloor");
    if (name == "lceil") return Between("ceil", "rceil");
    if (name == "begin") return Matrix();
    if (IsFunction(name)) return Function(name);
    tokens_.Skip();
    if (name == "frac") {
      ExpressionPtr above = Argument();
      return Make(Kind::kDivide, "", {std::move(above), Argument()});
    }
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
    if (IsSymbol(name)) return Symbol(name);
    if (name == "mathbb" && (tokens_.Sign("{") || tokens_.Peek().kind == Token::Kind::kLetter)) {
      const bool braces = tokens_.TakeSign("{");
      const std::string letter = tokens_.TakeText();
      if (braces && !tokens_.Expect(tokens_.Sign("}"))) return Fail();
      return Symbol("mathbb " + letter);
    }
    return Fail();
  }

  TokenCursor tokens_;
  const bool minus_;  // of \pm
  int bars_ = 0;      // of |...| that are open
  bool plus_minus_ = false;
};

}  // namespace

std::optional<std::vector<ExpressionPtr>> Parse(std::string_view latex, LetterE e) {
  std::optional<std::vector<Token>> tokens = Tokenize(latex, e);
  if (!tokens.has_value()) return std::nullopt;
  const std::vector<Token> words = JoinWords(*tokens);
  std::vector<ExpressionPtr> elements;
  Parser plus(words, /*minus=*/false), minus(words, /*minus=*/true);
  const auto upper = plus.Elements();
  if (plus.failed()) return std::nullopt;
  const bool twice = std::any_of(upper.begin(), upper.end(), [](const auto& element) { return element.second; });
  const auto lower = twice ? minus.Elements() : upper;
  for (size_t i = 0; i < upper.size(); ++i) {
    elements.push_back(upper[i].first);
    if (upper[i].second) elements.push_back(lower[i].first);
  }
  return elements;
}

}  // namespace quartet::math
