// Where expressions are compared: values of their variables.
#pragma once

#include <gmpxx.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/rewards/math/values/expression.h"

namespace quartet::math {

using Values = std::map<std::string, mpq_class>;

std::set<std::string> SymbolsOf(const Expression& a, const Expression& b);

// The same for the same expressions. First those of both signs, several sizes, and whole ones, whatever the expressions
// say. Where a piece of one may be of another form (|x + 1000|, floors, roots), then those around what the numbers in
// them, their quotients, products and roots are, and between and beyond them, at either side.
class Points {
 public:
  Points(const Expression& a, const Expression& b);

  static int first_count();
  int count() const { return first_count() + further_; }
  Values at(int number) const;

 private:
  std::vector<std::string> symbols_;
  std::vector<mpq_class> sizes_;
  int further_ = 0;
};

}  // namespace quartet::math
