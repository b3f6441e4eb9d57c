#include "core/rewards/math/values/evaluate.h"

#include <acb_mat.h>
#include <flint/fmpq_mat.h>

#include <algorithm>
#include <vector>

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

constexpr size_t kMostBits = 200'000;
constexpr unsigned long kLargestFactorial = 5000;
// Balls are computed to more and more bits, until they tell two numbers apart; these that agree to kSameBits are the
// same.
constexpr int kFirstBits = 128;
constexpr int kMostBitsOfBalls = 2048;
constexpr int kSameBits = 1000;

bool Bounded(const mpq_class& value) {
  return mpz_sizeinbase(value.get_num_mpz_t(), 2) + mpz_sizeinbase(value.get_den_mpz_t(), 2) < kMostBits;
}

bool IsInteger(const mpq_class& value) { return value.get_den() == 1; }

std::optional<mpq_class> ExactPower(const mpq_class& base, const mpq_class& exponent) {
  if (!IsInteger(exponent) || !exponent.get_num().fits_slong_p()) return std::nullopt;
  const long n = exponent.get_num().get_si();
  const unsigned long size = n < 0 ? -static_cast<unsigned long>(n) : n;
  const size_t bits = mpz_sizeinbase(base.get_num_mpz_t(), 2) + mpz_sizeinbase(base.get_den_mpz_t(), 2);
  if (size > kMostBits || bits * size > kMostBits) return std::nullopt;
  if (base == 0 && n <= 0) return std::nullopt;
  mpq_class power;
  mpz_pow_ui(power.get_num_mpz_t(), base.get_num_mpz_t(), size);
  mpz_pow_ui(power.get_den_mpz_t(), base.get_den_mpz_t(), size);
  if (n < 0) power = 1 / power;
  return power;
}

// The root of a perfect power.
std::optional<mpq_class> ExactRoot(const mpq_class& of, unsigned long degree) {
  if (of < 0) return std::nullopt;
  mpq_class root;
  if (mpz_root(root.get_num_mpz_t(), of.get_num_mpz_t(), degree) == 0 ||
      mpz_root(root.get_den_mpz_t(), of.get_den_mpz_t(), degree) == 0) {
    return std::nullopt;
  }
  return root;
}

slong RowsOf(size_t elements) {
  slong rows = 0;
  while (static_cast<size_t>(rows * rows) < elements) ++rows;
  return rows;
}

std::optional<mpq_class> ExactFunction(const std::string& name, const std::vector<mpq_class>& arguments) {
  const mpq_class& x = arguments[0];
  if (name == "max") return *std::max_element(arguments.begin(), arguments.end());
  if (name == "min") return *std::min_element(arguments.begin(), arguments.end());
  if (name == "gcd" || name == "lcm") {
    mpz_class all = name == "gcd" ? 0 : 1;
    for (const mpq_class& one : arguments) {
      if (!IsInteger(one)) return std::nullopt;
      (name == "gcd" ? mpz_gcd : mpz_lcm)(all.get_mpz_t(), all.get_mpz_t(), one.get_num_mpz_t());
    }
    return mpq_class(all);
  }
  if (name == "determinant") {
    const slong rows = RowsOf(arguments.size());
    fmpq_mat_t matrix;
    fmpq_mat_init(matrix, rows, rows);
    for (slong i = 0; i < rows * rows; ++i) {
      fmpq_set_mpq(fmpq_mat_entry(matrix, i / rows, i % rows), arguments[i].get_mpq_t());
    }
    fmpq_t determinant;
    fmpq_init(determinant);
    fmpq_mat_det(determinant, matrix);
    mpq_class value;
    fmpq_get_mpq(value.get_mpq_t(), determinant);
    fmpq_clear(determinant);
    fmpq_mat_clear(matrix);
    return value;
  }
  if (name == "mod") {
    if (arguments[1] == 0) return std::nullopt;
    const mpq_class times = x / arguments[1];
    mpz_class whole;
    mpz_fdiv_q(whole.get_mpz_t(), times.get_num_mpz_t(), times.get_den_mpz_t());
    return x - arguments[1] * whole;
  }
  if (name == "abs") return abs(x);
  if (name == "sqrt") return ExactRoot(x, 2);
  if (name == "root" && IsInteger(x) && x > 0 && x < 1000) return ExactRoot(arguments[1], x.get_num().get_ui());
  if (name == "factorial" && IsInteger(x) && x >= 0 && x <= kLargestFactorial) {
    mpz_class product;
    mpz_fac_ui(product.get_mpz_t(), x.get_num().get_ui());
    return mpq_class(product);
  }
  if (name == "binom" && IsInteger(x) && IsInteger(arguments[1]) && x >= 0 && x <= kLargestFactorial &&
      arguments[1] >= 0 && arguments[1] <= kLargestFactorial) {
    mpz_class ways;
    mpz_bin_uiui(ways.get_mpz_t(), x.get_num().get_ui(), arguments[1].get_num().get_ui());
    return mpq_class(ways);
  }
  if (name == "permutations" && IsInteger(x) && IsInteger(arguments[1]) && x <= kLargestFactorial &&
      arguments[1] >= 0 && arguments[1] <= x) {
    mpz_class all, others;
    mpz_fac_ui(all.get_mpz_t(), x.get_num().get_ui());
    mpz_fac_ui(others.get_mpz_t(), mpz_class(x.get_num() - arguments[1].get_num()).get_ui());
    return mpq_class(all / others);
  }
  if (name == "floor" || name == "ceil") {
    mpz_class whole;
    (name == "floor" ? mpz_fdiv_q : mpz_cdiv_q)(whole.get_mpz_t(), x.get_num_mpz_t(), x.get_den_mpz_t());
    return mpq_class(whole);
  }
  if (x == 0 &&
      (name == "sin" || name == "tan" || name == "sinh" || name == "tanh" || name == "asin" || name == "atan")) {
    return mpq_class(0);
  }
  if (x == 0 && (name == "cos" || name == "cosh" || name == "exp")) return mpq_class(1);
  if (x == 1 && name == "ln") return mpq_class(0);
  return std::nullopt;
}

// Of balls of real numbers; the others are where `complex` says.
template <typename OfReal, typename OfComplex>
Ball Apply(const Ball& x, OfReal of_real, OfComplex of_complex, int bits) {
  Ball value;
  if (x.is_real()) {
    of_real(value.real(), x.real(), bits);
    if (arb_is_finite(value.real())) return value;  // else beyond the real function's domain
  }
  of_complex(value.get(), x.get(), bits);
  return value;
}

Ball Power(const Ball& base, const Ball& exponent, int bits) {
  Ball power;
  if (base.is_real() && exponent.is_real() && arb_is_nonnegative(base.real())) {
    arb_pow(power.real(), base.real(), exponent.real(), bits);
  } else {
    acb_pow(power.get(), base.get(), exponent.get(), bits);
  }
  return power;
}

Ball Inverse(const Ball& of, int bits) {
  Ball inverse;
  acb_inv(inverse.get(), of.get(), bits);
  return inverse;
}

Ball Root(const Ball& degree, const Ball& of, int bits) {
  const Ball exponent = Inverse(degree, bits);
  const bool odd =
      degree.is_real() && arb_is_int(degree.real()) && arf_is_int_2exp_si(arb_midref(degree.real()), 1) == 0;
  if (!odd || !of.is_real() || !arb_is_negative(of.real())) return Power(of, exponent, bits);
  Ball root;
  acb_neg(root.get(), of.get());
  root = Power(root, exponent, bits);
  acb_neg(root.get(), root.get());
  return root;
}

Ball Gamma(const Ball& of, int bits) { return Apply(of, arb_gamma, acb_gamma, bits); }

Ball Plus(const Ball& of, int number, int bits) {
  Ball sum;
  acb_add_si(sum.get(), of.get(), number, bits);
  return sum;
}

// Nothing where the bits do not tell which integer it is.
std::optional<Ball> Rounded(const Ball& of, bool up, int bits) {
  if (!of.is_real()) return std::nullopt;
  Ball whole;
  (up ? arb_ceil : arb_floor)(whole.real(), of.real(), bits);
  if (!arb_is_exact(whole.real())) return std::nullopt;
  return whole;
}

std::optional<Ball> EncloseFunction(const std::string& name, const std::vector<Ball>& arguments, int bits) {
  const Ball& x = arguments[0];
  if (name == "determinant") {
    const slong rows = RowsOf(arguments.size());
    acb_mat_t matrix;
    acb_mat_init(matrix, rows, rows);
    for (slong i = 0; i < rows * rows; ++i) acb_set(acb_mat_entry(matrix, i / rows, i % rows), arguments[i].get());
    Ball value;
    acb_mat_det(value.get(), matrix, bits);
    acb_mat_clear(matrix);
    return value;
  }
  if (name == "mod") {
    Ball times, value;
    acb_div(times.get(), x.get(), arguments[1].get(), bits);
    const std::optional<Ball> whole = Rounded(times, /*up=*/false, bits);
    if (!whole.has_value()) return std::nullopt;
    acb_mul(value.get(), arguments[1].get(), whole->get(), bits);
    acb_sub(value.get(), x.get(), value.get(), bits);
    return value;
  }
  if (name == "max" || name == "min") {
    Ball value = x;
    for (const Ball& one : arguments) {
      if (!one.is_real()) return std::nullopt;
      (name == "max" ? arb_max : arb_min)(value.real(), value.real(), one.real(), bits);
    }
    return value;
  }
  if (name == "abs") {
    Ball value;
    acb_abs(value.real(), x.get(), bits);
    return value;
  }
  if (name == "root") return Root(x, arguments[1], bits);
  if (name == "sqrt") return Apply(x, arb_sqrt, acb_sqrt, bits);
  if (name == "ln") return Apply(x, arb_log, acb_log, bits);
  if (name == "logb") {
    Ball value;
    acb_div(value.get(), Apply(arguments[1], arb_log, acb_log, bits).get(), Apply(x, arb_log, acb_log, bits).get(),
            bits);
    return value;
  }
  if (name == "exp") return Apply(x, arb_exp, acb_exp, bits);
  if (name == "sin") return Apply(x, arb_sin, acb_sin, bits);
  if (name == "cos") return Apply(x, arb_cos, acb_cos, bits);
  if (name == "tan") return Apply(x, arb_tan, acb_tan, bits);
  if (name == "cot") return Apply(x, arb_cot, acb_cot, bits);
  if (name == "sec") return Inverse(Apply(x, arb_cos, acb_cos, bits), bits);
  if (name == "csc") return Inverse(Apply(x, arb_sin, acb_sin, bits), bits);
  if (name == "asin") return Apply(x, arb_asin, acb_asin, bits);
  if (name == "acos") return Apply(x, arb_acos, acb_acos, bits);
  if (name == "atan") return Apply(x, arb_atan, acb_atan, bits);
  if (name == "arccot") {
    Ball value;
    arb_const_pi(value.real(), bits);
    arb_mul_2exp_si(value.real(), value.real(), -1);
    acb_sub(value.get(), value.get(), Apply(x, arb_atan, acb_atan, bits).get(), bits);
    return value;
  }
  if (name == "arcsec") return Apply(Inverse(x, bits), arb_acos, acb_acos, bits);
  if (name == "arccsc") return Apply(Inverse(x, bits), arb_asin, acb_asin, bits);
  if (name == "asinh") return Apply(x, arb_asinh, acb_asinh, bits);
  if (name == "acosh") return Apply(x, arb_acosh, acb_acosh, bits);
  if (name == "atanh") return Apply(x, arb_atanh, acb_atanh, bits);
  if (name == "sinh") return Apply(x, arb_sinh, acb_sinh, bits);
  if (name == "cosh") return Apply(x, arb_cosh, acb_cosh, bits);
  if (name == "tanh") return Apply(x, arb_tanh, acb_tanh, bits);
  if (name == "factorial" && x.is_real()) return Gamma(Plus(x, 1, bits), bits);
  if (name == "floor" || name == "ceil") return Rounded(x, name == "ceil", bits);
  if ((name == "binom" || name == "permutations") && x.is_real() && arguments[1].is_real()) {
    Ball rest, value;
    acb_sub(rest.get(), x.get(), arguments[1].get(), bits);
    value = Gamma(Plus(rest, 1, bits), bits);
    if (name == "binom") acb_mul(value.get(), value.get(), Gamma(Plus(arguments[1], 1, bits), bits).get(), bits);
    acb_div(value.get(), Gamma(Plus(x, 1, bits), bits).get(), value.get(), bits);
    return value;
  }
  return std::nullopt;
}

// As it is, where it is a number, or infinite in its real part alone.
std::optional<Ball> Defined(Ball value) {
  if (acb_is_finite(value.get())) return value;
  if (value.is_real() && value.is_infinite() && mag_is_zero(arb_radref(value.real()))) return value;
  return std::nullopt;
}

// Whether a term is nothing in so many bits of a sum.
bool Vanishes(const Ball& term, const Ball& sum) {
  if (acb_is_zero(term.get()) || !acb_is_finite(term.get()) || !acb_is_finite(sum.get())) return false;
  Ball of_term, of_sum;
  acb_abs(of_term.real(), term.get(), kFirstBits);
  acb_abs(of_sum.real(), sum.get(), kFirstBits);
  arb_mul_2exp_si(of_sum.real(), of_sum.real(), -kSameBits);
  return arb_lt(of_term.real(), of_sum.real());
}

}  // namespace

void CollectSymbols(const Expression& of, std::set<std::string>* symbols) {
  if (of.kind == Kind::kSymbol || of.kind == Kind::kText || of.kind == Kind::kApply) symbols->insert(of.name);
  for (const ExpressionPtr& argument : of.arguments) CollectSymbols(*argument, symbols);
}

std::optional<mpq_class> Exact(const Expression& of, const std::map<std::string, mpq_class>& symbols) {
  switch (of.kind) {
    case Kind::kNumber:
      return of.number;
    case Kind::kSymbol:
    case Kind::kText: {
      const auto symbol = symbols.find(of.name);
      if (symbol == symbols.end()) return std::nullopt;
      return symbol->second;
    }
    case Kind::kAdd:
    case Kind::kMultiply:
    case Kind::kDivide:
    case Kind::kPower:
    case Kind::kFunction:
      break;
    default:
      return std::nullopt;
  }
  std::vector<mpq_class> values;
  for (const ExpressionPtr& argument : of.arguments) {
    std::optional<mpq_class> value = Exact(*argument, symbols);
    if (!value.has_value() || !Bounded(*value)) return std::nullopt;
    values.push_back(*std::move(value));
  }
  if (of.kind == Kind::kDivide) {
    if (values[1] == 0) return std::nullopt;
    return values[0] / values[1];
  }
  if (of.kind == Kind::kPower) {
    if (auto power = ExactPower(values[0], values[1])) return power;
    // 4^{1/2}
    if (!values[1].get_den().fits_slong_p() || values[1].get_den() > 1000) return std::nullopt;
    const auto root = ExactRoot(values[0], values[1].get_den().get_ui());
    return root.has_value() ? ExactPower(*root, values[1].get_num()) : std::nullopt;
  }
  if (of.kind == Kind::kFunction) return ExactFunction(of.name, values);
  mpq_class total = of.kind == Kind::kAdd ? 0 : 1;
  for (const mpq_class& value : values) {
    if (of.kind == Kind::kAdd) {
      total += value;
    } else {
      total *= value;
    }
    if (!Bounded(total)) return std::nullopt;
  }
  return total;
}

namespace {

std::optional<Ball> WatchedValue(const Expression& of, const std::map<std::string, mpq_class>& symbols, int bits,
                                 bool* hides, Among among);

// As Enclose; `*hides`, if not null, becomes true where a sum in it has a term that vanishes beside the others.
std::optional<Ball> Watched(const Expression& of, const std::map<std::string, mpq_class>& symbols, int bits,
                            bool* hides, Among among = Among::kComplex) {
  std::optional<Ball> value = WatchedValue(of, symbols, bits, hides, among);
  if (value.has_value() && among == Among::kReal && !value->is_real()) return std::nullopt;
  return value;
}

std::optional<Ball> WatchedValue(const Expression& of, const std::map<std::string, mpq_class>& symbols, int bits,
                                 bool* hides, Among among) {
  Ball value;
  if (of.kind == Kind::kConstant) {
    if (of.name == "pi") {
      arb_const_pi(value.real(), bits);
    } else if (of.name == "e") {
      arb_const_e(value.real(), bits);
    } else if (of.name == "i") {
      acb_onei(value.get());
    } else {
      arb_pos_inf(value.real());
    }
    return value;
  }
  if (const std::optional<mpq_class> exact = Exact(of, symbols)) {
    fmpq_t rational;
    fmpq_init(rational);
    fmpq_set_mpq(rational, exact->get_mpq_t());
    arb_set_fmpq(value.real(), rational, bits);
    fmpq_clear(rational);
    if (hides == nullptr) return value;
    for (const ExpressionPtr& argument : of.arguments) {
      const std::optional<Ball> one = Watched(*argument, symbols, bits, hides, among);
      *hides |= of.kind == Kind::kAdd && one.has_value() && Vanishes(*one, value);
    }
    return value;
  }
  std::vector<Ball> values;
  for (const ExpressionPtr& argument : of.arguments) {
    std::optional<Ball> one = Watched(*argument, symbols, bits, hides, among);
    if (!one.has_value()) return std::nullopt;
    values.push_back(*std::move(one));
  }
  switch (of.kind) {
    case Kind::kAdd:
      for (const Ball& one : values) acb_add(value.get(), value.get(), one.get(), bits);
      for (const Ball& one : values) {
        if (hides != nullptr) *hides |= Vanishes(one, value);
      }
      return Defined(std::move(value));
    case Kind::kMultiply:
      acb_one(value.get());
      for (const Ball& one : values) {
        // Real numbers times infinity are infinite, not undefined in the part that is not there.
        if (value.is_real() && one.is_real()) {
          arb_mul(value.real(), value.real(), one.real(), bits);
        } else {
          acb_mul(value.get(), value.get(), one.get(), bits);
        }
      }
      return Defined(std::move(value));
    case Kind::kDivide:
      if (acb_contains_zero(values[1].get())) return std::nullopt;
      if (values[0].is_real() && values[1].is_real()) {
        arb_div(value.real(), values[0].real(), values[1].real(), bits);
      } else {
        acb_div(value.get(), values[0].get(), values[1].get(), bits);
      }
      return Defined(std::move(value));
    case Kind::kPower:
      return Defined(Power(values[0], values[1], bits));
    case Kind::kFunction: {
      std::optional<Ball> result = EncloseFunction(of.name, values, bits);
      return result.has_value() ? Defined(*std::move(result)) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Ball> Enclose(const Expression& of, const std::map<std::string, mpq_class>& symbols, int bits,
                            Among among) {
  return Watched(of, symbols, bits, nullptr, among);
}

Truth SameNumber(const Expression& a, const Expression& b, const std::map<std::string, mpq_class>& symbols) {
  const std::optional<mpq_class> exact_a = Exact(a, symbols), exact_b = Exact(b, symbols);
  if (exact_a.has_value() && exact_b.has_value()) return *exact_a == *exact_b ? Truth::kYes : Truth::kNo;
  for (const int bits : {kFirstBits, 4 * kFirstBits, kMostBitsOfBalls}) {
    bool hides = false;
    bool* const watch = bits == kMostBitsOfBalls ? &hides : nullptr;
    const std::optional<Ball> ball_a = Watched(a, symbols, bits, watch), ball_b = Watched(b, symbols, bits, watch);
    if (!ball_a.has_value() || !ball_b.has_value()) continue;
    if (ball_a->is_infinite() || ball_b->is_infinite()) {
      return ball_a->is_infinite() && ball_b->is_infinite() && arb_equal(ball_a->real(), ball_b->real()) ? Truth::kYes
                                                                                                         : Truth::kNo;
    }
    if (!acb_overlaps(ball_a->get(), ball_b->get())) return Truth::kNo;
    if (bits < kMostBitsOfBalls) continue;
    // They are the same as far as one can see; is that far?
    Ball difference;
    acb_sub(difference.get(), ball_a->get(), ball_b->get(), bits);
    arb_t distance, size;
    arb_init(distance);
    arb_init(size);
    acb_abs(distance, difference.get(), bits);
    acb_abs(size, ball_a->get(), bits);
    // Relative to what is known not to be 0, else to 1.
    if (!arb_is_positive(size)) arb_one(size);
    arb_mul_2exp_si(size, size, -kSameBits);
    const bool same = arb_lt(distance, size);
    arb_clear(distance);
    arb_clear(size);
    return same && !hides ? Truth::kYes : Truth::kUnknown;
  }
  return Truth::kUnknown;
}

}  // namespace quartet::math
