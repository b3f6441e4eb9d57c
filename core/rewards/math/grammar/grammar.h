// The grammar of formulas, which docs/rewards.md has as a table: a method a rule, which takes the tokens of its
// expression. After a failure what it returns says nothing.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/rewards/math/grammar/token_cursor.h"
#include "core/rewards/math/values/expression.h"

namespace quartet::math {

class Grammar {
 public:
  // `minus`: what \pm stands for.
  Grammar(std::vector<Token> tokens, bool minus) : tokens_(std::move(tokens)), minus_(minus) { FindFunctions(); }

  bool failed() const { return tokens_.failed(); }

  struct Element {
    ExpressionPtr expression;
    bool has_plus_minus;
  };
  // parser.cc: from elements down to products.
  std::vector<Element> Elements();
  bool has_or() const { return has_or_; }
  bool has_and() const { return has_and_; }
  bool has_comma() const { return has_comma_; }

 private:
  ExpressionPtr Fail() {
    tokens_.Fail();
    return MakeNumber(0);
  }

  // --- parser.cc ---
  void SkipSeparators();
  ExpressionPtr Relations();
  ExpressionPtr Ratio();
  ExpressionPtr Sets();
  ExpressionPtr Sum();
  // `value` and, where one is next, its modulus.
  ExpressionPtr Modulo(ExpressionPtr value);
  ExpressionPtr Product();
  // Consumes a sign; nothing where there is none. True: minus.
  std::optional<bool> PlusOrMinus();
  ExpressionPtr Signed(bool may_apply = true);
  // Whether a factor can begin here, without a sign for times.
  bool BeginsFactor() const;
  // Whether what is next is a unit of `value` or its modulus, that would be a factor else: \frac{\text{m}}{\text{s}},
  // \Omega, (mod 7).
  bool BeginsUnit(const Expression& value) const;
  // The words and signs for units that are next, as ReadUnit takes them; those of money before the number.
  std::string UnitWords();
  std::string Currency();
  // `value` of what `words` say.
  ExpressionPtr WithUnit(ExpressionPtr value, const std::string& words);

  // --- applications.cc: what is written as functions are ---
  // Whether what is next, in brackets, is what `head` is applied to, which began at `begin`, and no factor: of f(x + 1)
  // and y(x), not of x(x + 1).
  bool IsApplied(const Expression& head, size_t begin) const;
  // Whether the brackets that are next, of `length` tokens, have but a name or a number that is not `letter`: y(x),
  // a(n), x_1(2).
  bool IsAlone(const std::string& letter, size_t length) const;
  // Letters that are so applied somewhere: where T(n) is, T(n - 1) is no product.
  void FindFunctions();
  // The brackets, with the arguments that are in them.
  ExpressionPtr Applied(std::string name);
  // \det A, \max(a, b).
  ExpressionPtr Operator(const std::string& name);
  // Of dy/dx; nothing where what is next is no differential below others.
  bool TakeDerivative(std::vector<ExpressionPtr>* factors);
  // What begins a differential, "d" or \partial.
  bool IsDifferential(size_t ahead) const;

  // --- atoms.cc ---
  // `may_apply`: f(x) is one; else f, before brackets.
  ExpressionPtr Factor(bool may_apply = true);
  // What is raised: a group, or one thing.
  ExpressionPtr Script();
  // An argument of a command: a group, or one digit, letter or command.
  ExpressionPtr Argument();
  // {...}, one expression, or {10 \choose 3}.
  ExpressionPtr Group();
  ExpressionPtr Value(const std::string& text);
  ExpressionPtr Number();
  ExpressionPtr Symbol(std::string name);
  // \vec{a}, \overline{AB}, \angle ABC: the mark and all that is below or behind it are one name.
  ExpressionPtr Marked(const std::string& mark);
  // C_{10}^{3}, {}^{10}C_3; nothing where what is next is none.
  std::optional<ExpressionPtr> Chosen();
  // Elements up to a closing bracket, which is consumed.
  ExpressionPtr Bracketed(const std::string& open);
  ExpressionPtr Between(const std::string& function, std::string_view close);
  ExpressionPtr Matrix();
  ExpressionPtr Function(const std::string& name);
  ExpressionPtr Fraction();
  ExpressionPtr Base();
  ExpressionPtr OfCommand(const std::string& name);

  TokenCursor tokens_;
  const bool minus_;
  std::set<std::string> functions_;
  int bars_ = 0;  // of |...| that are open
  bool plus_minus_ = false;
  bool joins_conditions_ = false;  // by \\land or \\lor
  bool has_or_ = false, has_and_ = false, has_comma_ = false;
};

}  // namespace quartet::math
