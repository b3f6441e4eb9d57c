#include "core/rewards/math/values/inequalities.h"

#include <flint/fmpq_poly.h>
#include <flint/fmpz_poly.h>
#include <flint/fmpz_poly_factor.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/rewards/math/values/evaluate.h"
#include "core/rewards/math/values/scalars.h"

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

constexpr slong kHighestDegree = 24;
constexpr slong kMostBitsOfCoefficients = 2000;

class Polynomial {
 public:
  Polynomial() { fmpq_poly_init(value_); }
  Polynomial(const Polynomial& other) : Polynomial() { fmpq_poly_set(value_, other.value_); }
  Polynomial& operator=(Polynomial other) {
    fmpq_poly_swap(value_, other.value_);
    return *this;
  }
  ~Polynomial() { fmpq_poly_clear(value_); }

  static Polynomial Of(const mpq_class& number) {
    Polynomial of;
    fmpq_poly_set_mpq(of.value_, number.get_mpq_t());
    return of;
  }
  static Polynomial Variable() {
    Polynomial x;
    fmpq_poly_set_coeff_si(x.value_, 1, 1);
    return x;
  }
  friend Polynomial operator+(const Polynomial& a, const Polynomial& b) {
    Polynomial sum;
    fmpq_poly_add(sum.value_, a.value_, b.value_);
    return sum;
  }
  friend Polynomial operator*(const Polynomial& a, const Polynomial& b) {
    Polynomial product;
    fmpq_poly_mul(product.value_, a.value_, b.value_);
    return product;
  }

  bool is_zero() const { return fmpq_poly_is_zero(value_); }
  bool is_small() const {
    return fmpq_poly_degree(value_) <= kHighestDegree &&
           std::abs(_fmpz_vec_max_bits(value_->coeffs, value_->length)) <= kMostBitsOfCoefficients;
  }
  // But for a factor.
  void ToIntegers(fmpz_poly_t integers) const { fmpq_poly_get_numerator(integers, value_); }

 private:
  fmpq_poly_t value_;
};

struct Rational {
  Polynomial above, below;
};

std::optional<Rational> QuotientIn(const std::string& name, const Expression& of) {
  const Polynomial one = Polynomial::Of(1);
  if (of.kind == Kind::kNumber) return Rational{Polynomial::Of(of.number), one};
  if (of.kind == Kind::kSymbol && of.name == name) return Rational{Polynomial::Variable(), one};
  const auto small = [](Rational made) -> std::optional<Rational> {
    if (!made.above.is_small() || !made.below.is_small() || made.below.is_zero()) return std::nullopt;
    return made;
  };
  if (of.kind == Kind::kPower) {
    const std::optional<mpq_class> exponent = Exact(*of.arguments[1], {});
    if (!exponent.has_value() || exponent->get_den() != 1 || abs(*exponent) > kHighestDegree) return std::nullopt;
    std::optional<Rational> base = QuotientIn(name, *of.arguments[0]);
    if (!base.has_value()) return std::nullopt;
    if (*exponent < 0) std::swap(base->above, base->below);
    Rational power = {one, one};
    for (long i = std::abs(exponent->get_num().get_si()); i > 0; --i) {
      const auto next = small({power.above * base->above, power.below * base->below});
      if (!next.has_value()) return std::nullopt;
      power = *next;
    }
    return small(power);
  }
  if (of.kind != Kind::kAdd && of.kind != Kind::kMultiply && of.kind != Kind::kDivide) return std::nullopt;
  std::optional<Rational> all;
  for (const ExpressionPtr& argument : of.arguments) {
    const std::optional<Rational> next = QuotientIn(name, *argument);
    if (!next.has_value()) return std::nullopt;
    if (!all.has_value()) {
      all = next;
    } else if (of.kind == Kind::kAdd) {
      all = small({all->above * next->below + next->above * all->below, all->below * next->below});
    } else if (of.kind == Kind::kMultiply) {
      all = small({all->above * next->above, all->below * next->below});
    } else {
      all = small({all->above * next->below, all->below * next->above});
    }
    if (!all.has_value()) return std::nullopt;
  }
  return all;
}

// Of an irreducible polynomial; nothing where they have no such form.
std::optional<std::vector<ExpressionPtr>> RootsOf(const fmpz_poly_t of) {
  const slong degree = fmpz_poly_degree(of);
  if (degree > 2) {
    if (fmpz_poly_num_real_roots(of) > 0) return std::nullopt;
    return std::vector<ExpressionPtr>{};
  }
  const auto coefficient = [of](slong i) {
    mpz_class value;
    fmpz_get_mpz(value.get_mpz_t(), of->coeffs + i);
    return mpq_class(value);
  };
  const mpq_class c = coefficient(0), b = coefficient(1);
  if (degree == 1) return std::vector{MakeNumber(-c / b)};
  const mpq_class a = coefficient(2), discriminant = b * b - 4 * a * c;
  if (discriminant < 0) return std::vector<ExpressionPtr>{};
  std::vector<ExpressionPtr> roots;
  for (const int sign : {-1, 1}) {
    ExpressionPtr root = Make(Kind::kFunction, "sqrt", {MakeNumber(discriminant)});
    ExpressionPtr sum = Make(Kind::kAdd, "", {MakeNumber(-b), Make(Kind::kMultiply, "", {MakeNumber(sign), root})});
    roots.push_back(Make(Kind::kDivide, "", {sum, MakeNumber(2 * a)}));
  }
  return roots;
}

struct Bound {
  ExpressionPtr number;
  bool has_value;  // both sides have
  mpq_class about;
};

// Of all irreducible factors of both, from left to right.
std::optional<std::vector<Bound>> BoundsOf(const Rational& of) {
  fmpz_poly_t above, below, product;
  fmpz_poly_factor_t factors;
  fmpz_poly_init(above);
  fmpz_poly_init(below);
  fmpz_poly_init(product);
  fmpz_poly_factor_init(factors);
  of.above.ToIntegers(above);
  of.below.ToIntegers(below);
  fmpz_poly_mul(product, above, below);
  fmpz_poly_factor(factors, product);
  std::optional<std::vector<Bound>> bounds(std::in_place);
  for (slong i = 0; i < factors->num && bounds.has_value(); ++i) {
    const auto roots = RootsOf(factors->p + i);
    if (!roots.has_value()) {
      bounds.reset();
      break;
    }
    fmpz_poly_t rest;
    fmpz_poly_init(rest);
    const bool is_pole = fmpz_poly_divides(rest, below, factors->p + i);
    fmpz_poly_clear(rest);
    for (const ExpressionPtr& root : *roots) bounds->push_back({root, !is_pole, 0});
  }
  fmpz_poly_factor_clear(factors);
  fmpz_poly_clear(product);
  fmpz_poly_clear(below);
  fmpz_poly_clear(above);
  if (!bounds.has_value()) return std::nullopt;
  constexpr int kBits = 4 * kMostBitsOfCoefficients;
  for (Bound& bound : *bounds) {
    const std::optional<Ball> value = Enclose(*bound.number, {}, kBits, Among::kReal);
    if (!value.has_value()) return std::nullopt;
    fmpq_t rational;
    fmpq_init(rational);
    arf_get_fmpq(rational, arb_midref(value->real()));
    fmpq_get_mpq(bound.about.get_mpq_t(), rational);
    fmpq_clear(rational);
  }
  std::sort(bounds->begin(), bounds->end(), [](const Bound& a, const Bound& b) { return a.about < b.about; });
  return bounds;
}

}  // namespace

std::optional<Solutions> Solve(const Expression& relation) {
  const std::string& how = relation.name;
  if (relation.kind != Kind::kRelation || (how != "<" && how != "<=" && how != "!=")) return std::nullopt;
  std::set<std::string> symbols;
  CollectSymbols(relation, &symbols);
  if (symbols.size() != 1) return std::nullopt;
  Solutions solutions;
  solutions.name = *symbols.begin();
  const ExpressionPtr difference =
      Make(Kind::kAdd, "", {relation.arguments[0], Make(Kind::kMultiply, "", {MakeNumber(-1), relation.arguments[1]})});
  const std::optional<Rational> quotient = QuotientIn(solutions.name, *difference);
  if (!quotient.has_value() || quotient->above.is_zero()) return std::nullopt;
  const auto bounds = BoundsOf(*quotient);
  if (!bounds.has_value()) return std::nullopt;
  for (size_t i = 0; i <= bounds->size(); ++i) {
    const mpq_class* const left = i == 0 ? nullptr : &(*bounds)[i - 1].about;
    const mpq_class* const right = i == bounds->size() ? nullptr : &(*bounds)[i].about;
    mpq_class at = 0;
    if (left != nullptr && right != nullptr) {
      at = (*left + *right) / 2;
    } else if (left != nullptr || right != nullptr) {
      at = left != nullptr ? mpq_class(*left + 1) : mpq_class(*right - 1);
    }
    const std::optional<mpq_class> value = Exact(*difference, {{solutions.name, at}});
    if (!value.has_value()) return std::nullopt;
    solutions.between.push_back(how == "!=" ? *value != 0 : *value < 0);
  }
  for (const Bound& bound : *bounds) {
    solutions.bounds.push_back(bound.number);
    solutions.at_bound.push_back(bound.has_value && how == "<=");
  }
  return solutions;
}

}  // namespace quartet::math
