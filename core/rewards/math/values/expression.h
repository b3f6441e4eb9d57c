// Mathematical expressions as trees. LibTorch-free; thread safe.
#pragma once

#include <gmpxx.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace quartet::math {

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind {
    kNumber,    // exact; `decimal` where it was written with a decimal point
    kSymbol,    // `name`: a variable ("x", "x_1"), or what else stands for itself ("mathbb{R}")
    kConstant,  // `name`: "pi", "e", "i", "oo"
    kAdd,       // of all arguments
    kMultiply,  // `name`: "" but for letters that are all there is ("ab", "dog"), which are these letters and may be
                // a word
    kDivide,    // of two
    kPower,     // of two
    kQuantity,  // of one; `name`: its unit, as units.h writes it. Has no value inside of another expression
    kFunction,  // `name` ("sqrt", "sin", "log", "abs", ...) of one argument; "root" and "logb" of two, of which the
                // first is the degree or base; "binom", "permutations" (n! / (n - k)!) and "mod" of two; "determinant"
                // of n * n; "max", "min", "gcd" and "lcm" of any number
    kApply,  // a function of which nothing is known ("f", "f^-1", "det", "cross"), of all arguments in order: the same
             // only where its name and they are
    kSequence,  // in order; `name`: its brackets, such as "()", "[)", "::" (a ratio), "matrix", or "all" and
                // "either" of conditions
    kSet,       // in any order
    kUnion,     // of sets; in any order
    kIntersection,
    kWithout,   // a set less another
    kRelation,  // `name`: "=", "about", "<", "<=", "!=", "in", "notin", "such" (a name and its
                // condition, {x | x > 3}); of two
    kText,      // `name`: words
  };
  Kind kind;
  std::string name;
  mpq_class number;
  bool decimal = false;
  std::vector<ExpressionPtr> arguments;
};

inline ExpressionPtr Make(Expression::Kind kind, std::string name, std::vector<ExpressionPtr> arguments) {
  auto made = std::make_shared<Expression>();
  made->kind = kind;
  made->name = std::move(name);
  made->arguments = std::move(arguments);
  return made;
}
inline ExpressionPtr MakeNumber(mpq_class number, bool decimal = false) {
  auto made = std::make_shared<Expression>();
  made->kind = Expression::Kind::kNumber;
  made->number = std::move(number);
  made->decimal = decimal;
  return made;
}

}  // namespace quartet::math
