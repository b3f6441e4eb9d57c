#include "scorer/rewards/math/parser.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "scorer/rewards/math/lexer.h"
#include "scorer/rewards/math/words.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

constexpr int kMostDepth = 80;
constexpr int kMostLinks = 1000;
constexpr size_t kMostDigits = 1000;

const std::set<std::string_view>& Greek() {
  static const auto* names = new std::set<std::string_view>{
      "alpha", "beta",   "gamma", "delta", "epsilon", "zeta",    "eta", "theta", "iota", "kappa",   "lambda", "mu",
      "nu",    "xi",     "rho",   "sigma", "tau",     "upsilon", "phi", "chi",   "psi",  "omega",   "Gamma",  "Delta",
      "Theta", "Lambda", "Xi",    "Pi",    "Sigma",   "Phi",     "Psi", "Omega", "ell",  "emptyset"};
  return *names;
}
std::optional<std::string> RelationOf(const Token& token) {
  if (token.kind == Token::Kind::kSign) {
    for (const char* sign : {"=", "<", ">", "<=", ">=", "!="}) {
      if (token.text == sign) return token.text;
    }
  }
  if (token.kind == Token::Kind::kCommand) {
    if (token.text == "leq") return "<=";
    if (token.text == "geq") return ">=";
    if (token.text == "less") return "<";
    if (token.text == "greater") return ">";
    if (token.text == "neq") return "!=";
    if (token.text == "in") return "in";
    if (token.text == "equiv") return "=";
  }
  return std::nullopt;
}

// Thrown by nobody: a failure is remembered, and everything returns as soon as it can.
class Parser {
 public:
  Parser(std::vector<Token> tokens, bool minus) : tokens_(std::move(tokens)), minus_(minus) {}

  bool failed() const { return failed_; }

  // Elements with whether \pm is in them.
  std::vector<std::pair<ExpressionPtr, bool>> Elements() {
    std::vector<std::pair<ExpressionPtr, bool>> elements;
    do {
      while (IsSeparator()) ++at_;
      if (Peek().kind == Token::Kind::kEnd) break;
      plus_minus_ = false;
      ExpressionPtr element = Relations();
      elements.emplace_back(std::move(element), plus_minus_);
      // "The value is 5." ends with a point.
      if (Sign(".")) ++at_;
    } while (!failed_ && IsSeparator());
    if (Peek().kind != Token::Kind::kEnd || elements.empty()) failed_ = true;
    return elements;
  }

 private:
  class Deeper {
   public:
    explicit Deeper(Parser* parser) : parser_(*parser) {
      if (++parser_.depth_ > kMostDepth) parser_.failed_ = true;
    }
    ~Deeper() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool Sign(std::string_view sign) const { return Peek().kind == Token::Kind::kSign && Peek().text == sign; }
  bool Command(std::string_view name) const { return Peek().kind == Token::Kind::kCommand && Peek().text == name; }
  bool IsSeparator() const { return Sign(",") || Sign(";") || Command("and") || Command("or"); }
  ExpressionPtr Fail() {
    failed_ = true;
    return MakeNumber(0);
  }
  // Powers, factorials and quotients one after the other make a tree deeper, too.
  void CountLink() {
    if (++links_ > kMostLinks) failed_ = true;
  }
  bool Expect(bool there) {
    if (there) {
      ++at_;
    } else {
      failed_ = true;
    }
    return there;
  }

  ExpressionPtr Relations() {
    const Deeper deeper(this);
    std::vector<ExpressionPtr> sides = {Ratio()};
    std::vector<std::string> names;
    while (!failed_) {
      const std::optional<std::string> name = RelationOf(Peek());
      if (!name.has_value()) break;
      ++at_;
      // "x =" has nothing to compare with.
      names.push_back(*name);
      sides.push_back(Ratio());
    }
    // What a value is about is said beside the value.
    if (Command("approx")) {
      ++at_;
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
    while (!failed_ && (Sign(":") || Command("colon"))) {
      ++at_;
      parts.push_back(Sets());
    }
    return parts.size() == 1 ? parts[0] : Make(Kind::kSequence, "::", std::move(parts));
  }

  ExpressionPtr Sets() {
    ExpressionPtr left = Sum();
    while (!failed_) {
      if (Command("cup")) {
        ++at_;
        std::vector<ExpressionPtr> parts = left->kind == Kind::kUnion ? left->arguments : std::vector{left};
        parts.push_back(Sum());
        left = Make(Kind::kUnion, "", std::move(parts));
      } else if (Command("setminus")) {
        ++at_;
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
  std::optional<bool> TakeSign() {
    if (Sign("+")) return ++at_, false;
    if (Sign("-")) return ++at_, true;
    if (Command("pm") || Command("mp")) {
      plus_minus_ = true;
      const bool minus = Command("mp") != minus_;
      ++at_;
      return minus;
    }
    return std::nullopt;
  }

  ExpressionPtr Sum() {
    const Deeper deeper(this);
    std::vector<ExpressionPtr> terms;
    std::optional<bool> sign = TakeSign();
    do {
      bool minus = sign.value_or(false);
      while (const std::optional<bool> further = TakeSign()) minus = minus != *further;
      ExpressionPtr term = Product();
      terms.push_back(minus ? Negate(std::move(term)) : std::move(term));
    } while (!failed_ && (sign = TakeSign()).has_value());
    return terms.size() == 1 ? terms[0] : Make(Kind::kAdd, "", std::move(terms));
  }

  // Whether a factor can begin here, without a sign for times.
  bool BeginsFactor() const {
    const Token& token = Peek();
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
               IsFunction(token.text) || Greek().contains(token.text);
      case Token::Kind::kEnd:
        return false;
    }
    return false;
  }

  ExpressionPtr Product() {
    std::vector<ExpressionPtr> factors = {Factor()};
    while (!failed_) {
      if (Command("times") || Sign("*")) {
        ++at_;
        factors.push_back(Signed());
      } else if (Sign("/") || Command("divide")) {
        CountLink();
        ++at_;
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
    while (const std::optional<bool> sign = TakeSign()) minus = minus != *sign;
    ExpressionPtr factor = Factor();
    return minus ? Negate(std::move(factor)) : factor;
  }

  ExpressionPtr Factor() {
    const Deeper deeper(this);
    if (failed_) return Fail();
    ExpressionPtr base = Base();
    while (!failed_) {
      CountLink();
      if (Sign("^")) {
        ++at_;
        base = Make(Kind::kPower, "", {std::move(base), Script()});
      } else if (Sign("!")) {
        ++at_;
        base = Make(Kind::kFunction, "factorial", {std::move(base)});
      } else {
        break;
      }
    }
    return base;
  }

  // What is raised: a group, or one thing.
  ExpressionPtr Script() {
    if (Sign("{")) return Group();
    return Signed();
  }

  // An argument of a command: a group, or one digit, letter or command.
  ExpressionPtr Argument() {
    if (Sign("{")) return Group();
    if (Peek().kind == Token::Kind::kNumber && Peek().text.size() > 1) {
      const std::string digit = Peek().text.substr(0, 1);
      tokens_[at_].text.erase(0, 1);
      return Value(digit);
    }
    return Base();
  }

  // {...}, one expression.
  ExpressionPtr Group() {
    if (!Expect(Sign("{"))) return Fail();
    const int bars = std::exchange(bars_, 0);
    ExpressionPtr inside = Relations();
    bars_ = bars;
    return Expect(Sign("}")) ? inside : Fail();
  }

  ExpressionPtr Value(const std::string& text) {
    const size_t point = text.find('.');
    std::string digits = text;
    if (digits.size() > kMostDigits) return Fail();
    mpz_class below = 1;
    if (point != std::string::npos) {
      digits.erase(point, 1);
      mpz_ui_pow_ui(below.get_mpz_t(), 10, digits.size() - point);
    }
    mpq_class value(mpz_class(digits, 10), below);
    value.canonicalize();
    return MakeNumber(std::move(value), point != std::string::npos);
  }

  ExpressionPtr Number() {
    ExpressionPtr value = Value(tokens_[at_++].text);
    if (failed_ || value->decimal) return value;
    // 1\frac{1}{2} and 1 1/2.
    const auto whole = [&](size_t ahead) {
      return Peek(ahead).kind == Token::Kind::kNumber && Peek(ahead).text.find('.') == std::string::npos;
    };
    const auto sign = [&](size_t ahead, std::string_view text) {
      return Peek(ahead).kind == Token::Kind::kSign && Peek(ahead).text == text;
    };
    if (Command("frac") && sign(1, "{") && whole(2) && sign(3, "}") && sign(4, "{") && whole(5) && sign(6, "}")) {
      return Make(Kind::kAdd, "", {value, Base()});
    }
    if (whole(0) && Peek().space_before && sign(1, "/") && whole(2)) {
      const ExpressionPtr above = Value(Peek().text), below = Value(Peek(2).text);
      at_ += 3;
      return Make(Kind::kAdd, "", {value, Make(Kind::kDivide, "", {above, below})});
    }
    return value;
  }

  // The index below a letter, as part of its name.
  std::string Subscript() {
    if (!Sign("_")) return "";
    ++at_;
    std::string name = "_";
    if (!Sign("{")) {
      if (Peek().kind == Token::Kind::kEnd) failed_ = true;
      return name + tokens_[std::min(at_++, tokens_.size() - 1)].text;
    }
    int depth = 0;
    do {
      if (Sign("{")) ++depth;
      if (Sign("}")) --depth;
      if (Peek().kind == Token::Kind::kEnd) {
        failed_ = true;
        return name;
      }
      if (!Sign("{") && !Sign("}")) name += Peek().text;
      ++at_;
    } while (depth > 0);
    return name;
  }

  ExpressionPtr Symbol(std::string name) {
    name += Subscript();
    while (Sign("'")) {
      name += "'";
      ++at_;
    }
    if (name == "e" || name == "i") return Make(Kind::kConstant, name, {});
    return Make(Kind::kSymbol, name, {});
  }

  // Elements up to a closing bracket, which is consumed; of the kinds ")", "]" or "}".
  ExpressionPtr Bracketed(const std::string& open) {
    const int bars = std::exchange(bars_, 0);
    ++at_;
    std::vector<ExpressionPtr> elements;
    const auto closes = [&] { return Sign(")") || Sign("]") || Sign("}") || Command("}"); };
    while (!failed_ && !closes()) {
      elements.push_back(Relations());
      if (IsSeparator()) {
        ++at_;
      } else if (!closes()) {
        failed_ = true;
      }
    }
    bars_ = bars;
    if (failed_) return Fail();
    const std::string close = Peek().text;
    const bool set = Command("}");
    ++at_;
    if (open == "\\{" ? !set : (open == "{") != (close == "}" && !set)) return Fail();
    if (open == "\\{") return Make(Kind::kSet, "", std::move(elements));
    if (elements.size() == 1) return elements[0];
    if (elements.empty()) return Fail();
    if (open == "{") return Make(Kind::kSet, "", std::move(elements));
    return Make(Kind::kSequence, open + close, std::move(elements));
  }

  ExpressionPtr Between(const std::string& function, std::string_view close) {
    ++at_;
    ++bars_;
    ExpressionPtr inside = Sum();
    --bars_;
    if (!Expect(Command(close) || (close == "|" && Sign("|")))) return Fail();
    return Make(Kind::kFunction, function, {std::move(inside)});
  }

  ExpressionPtr Matrix() {
    ++at_;
    // {pmatrix}, letter by letter or as a word; {array}{cc}
    const auto skip_group = [&] {
      if (!Expect(Sign("{"))) return;
      while (!failed_ && !Sign("}")) {
        if (Peek().kind == Token::Kind::kEnd) failed_ = true;
        ++at_;
      }
      ++at_;
    };
    const std::string name = Peek(1).text;
    skip_group();
    if (name == "array") skip_group();
    if (name != "array" && name.find("matrix") == std::string::npos) return Fail();
    std::vector<ExpressionPtr> rows, row;
    while (!failed_ && !Command("end")) {
      row.push_back(Sum());
      if (Sign("&")) {
        ++at_;
      } else if (Command("\\")) {
        ++at_;
        rows.push_back(Make(Kind::kSequence, "row", std::exchange(row, {})));
      } else if (!Command("end")) {
        failed_ = true;
      }
    }
    if (failed_) return Fail();
    if (!row.empty()) rows.push_back(Make(Kind::kSequence, "row", std::move(row)));
    ++at_;
    skip_group();
    return Make(Kind::kSequence, "matrix", std::move(rows));
  }

  ExpressionPtr Function(const std::string& name) {
    ++at_;
    ExpressionPtr base, power;
    if (name == "log" && Sign("_")) {
      ++at_;
      base = Argument();
    }
    if (Sign("^")) {
      ++at_;
      power = Script();
    }
    ExpressionPtr argument;
    if (Sign("(") || Sign("[") || Sign("{")) {
      argument = Factor();
    } else {
      // \sin 2x: up to the next sign or function.
      std::vector<ExpressionPtr> factors = {Factor()};
      while (!failed_ && BeginsFactor() && !IsFunction(Peek().text) && !Sign("(")) factors.push_back(Factor());
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
    const Deeper deeper(this);
    if (failed_) return Fail();
    const Token token = Peek();
    switch (token.kind) {
      case Token::Kind::kNumber:
        return Number();
      case Token::Kind::kLetter:
        ++at_;
        return Symbol(token.text);
      case Token::Kind::kText:
        ++at_;
        return Make(Kind::kText, absl::AsciiStrToLower(token.text) + Subscript(), {});
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
    ++at_;
    if (name == "frac") {
      ExpressionPtr above = Argument();
      return Make(Kind::kDivide, "", {std::move(above), Argument()});
    }
    if (name == "binom") {
      ExpressionPtr above = Argument();
      return Make(Kind::kFunction, "binom", {std::move(above), Argument()});
    }
    if (name == "sqrt") {
      if (!Sign("[")) return Make(Kind::kFunction, "sqrt", {Sign("(") ? Base() : Argument()});
      ++at_;
      ExpressionPtr degree = Sum();
      if (!Expect(Sign("]"))) return Fail();
      return Make(Kind::kFunction, "root", {std::move(degree), Argument()});
    }
    if (name == "pi") return Make(Kind::kConstant, "pi", {});
    if (name == "infty") return Make(Kind::kConstant, "oo", {});
    if (Greek().contains(name)) return Symbol(name);
    if (name == "mathbb" && (Sign("{") || Peek().kind == Token::Kind::kLetter)) {
      const bool braces = Sign("{");
      at_ += braces;
      const std::string letter = Peek().text;
      ++at_;
      if (braces && !Expect(Sign("}"))) return Fail();
      return Symbol("mathbb " + letter);
    }
    return Fail();
  }

  std::vector<Token> tokens_;
  const bool minus_;  // of \pm
  size_t at_ = 0;
  int depth_ = 0;
  int links_ = 0;
  int bars_ = 0;  // of |...| that are open
  bool plus_minus_ = false;
  bool failed_ = false;
};

}  // namespace

std::optional<std::vector<ExpressionPtr>> Parse(std::string_view latex) {
  std::optional<std::vector<Token>> tokens = Tokenize(latex);
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
