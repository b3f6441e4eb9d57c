// Values of scalar expressions at points.
#pragma once

#include <acb.h>
#include <gmpxx.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "core/rewards/math/values/expression.h"
#include "core/rewards/math/values/truth.h"

namespace quartet::math {

// The names of its symbols and words.
void CollectSymbols(const Expression& of, std::set<std::string>* symbols);

// Exactly, by rational arithmetic; nothing where it is not rational, not defined, of more than some 200,000 bits, or no
// scalar.
std::optional<mpq_class> Exact(const Expression& of, const std::map<std::string, mpq_class>& symbols);

// A complex number between bounds (Arb; Johansson 2017, "Arb: efficient arbitrary-precision midpoint-radius interval
// arithmetic"). What is real, or infinite, is so exactly.
class Ball {
 public:
  Ball() { acb_init(value_); }
  Ball(const Ball& other) : Ball() { acb_set(value_, other.value_); }
  Ball(Ball&& other) noexcept : Ball() { acb_swap(value_, other.value_); }
  Ball& operator=(Ball other) {
    acb_swap(value_, other.value_);
    return *this;
  }
  ~Ball() { acb_clear(value_); }

  acb_ptr get() { return value_; }
  acb_srcptr get() const { return value_; }
  arb_ptr real() { return acb_realref(value_); }
  arb_srcptr real() const { return acb_realref(value_); }

  bool is_real() const { return acb_is_real(value_); }
  bool is_infinite() const { return arf_is_inf(arb_midref(acb_realref(value_))); }

 private:
  acb_t value_;
};

enum class Among { kComplex, kReal };

// Principal values, to about so many bits; nothing where it is no scalar or not defined, or so many bits do not tell.
// Odd roots of negative numbers are real, as people write them. Among::kReal: nothing, either, where a part of it is
// not real.
std::optional<Ball> Enclose(const Expression& of, const std::map<std::string, mpq_class>& symbols, int bits,
                            Among among = Among::kComplex);

// Whether they are the same number, exactly where both are rational; else kNo is certain, and kYes to some 300 digits.
// kUnknown where one is not defined, or has a sum with terms too small beside the others to be seen in those digits.
Truth SameNumber(const Expression& a, const Expression& b, const std::map<std::string, mpq_class>& symbols);

}  // namespace quartet::math
