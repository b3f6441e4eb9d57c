#include "scorer/rewards/math/evaluate.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace quartet::math {
namespace {

using Kind = Expression::Kind;

constexpr size_t kMostBits = 100'000;
constexpr unsigned long kLargestFactorial = 5000;

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

std::optional<mpq_class> ExactFunction(const std::string& name, const std::vector<mpq_class>& arguments) {
  const mpq_class& x = arguments[0];
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

long double ToReal(const mpq_class& value) {
  // mpq_get_d is of 53 bits; the rest of the value is added.
  const double high = value.get_d();
  if (!std::isfinite(high)) return high;
  const mpq_class rest = value - mpq_class(high);
  return static_cast<long double>(high) + static_cast<long double>(rest.get_d());
}

std::optional<Complex> NumericFunction(const std::string& name, const std::vector<Complex>& arguments) {
  const Complex& x = arguments[0];
  if (name == "abs") return std::abs(x);
  if (name == "sqrt") return std::sqrt(x);
  if (name == "root") {
    // Of a negative number the odd root is real, as people write it.
    const Complex& of = arguments[1];
    const long double degree = x.real();
    if (of.imag() == 0 && of.real() < 0 && x.imag() == 0 && std::fmod(degree, 2.0L) == 1) {
      return -std::pow(-of.real(), 1 / degree);
    }
    return std::pow(of, Complex(1) / x);
  }
  if (name == "ln") return std::log(x);
  if (name == "logb") return std::log(arguments[1]) / std::log(x);
  if (name == "exp") return std::exp(x);
  if (name == "sin") return std::sin(x);
  if (name == "cos") return std::cos(x);
  if (name == "tan") return std::tan(x);
  if (name == "cot") return Complex(1) / std::tan(x);
  if (name == "sec") return Complex(1) / std::cos(x);
  if (name == "csc") return Complex(1) / std::sin(x);
  if (name == "asin") return std::asin(x);
  if (name == "acos") return std::acos(x);
  if (name == "atan") return std::atan(x);
  if (name == "arccot") return std::numbers::pi_v<long double> / 2 - std::atan(x);
  if (name == "sinh") return std::sinh(x);
  if (name == "cosh") return std::cosh(x);
  if (name == "tanh") return std::tanh(x);
  if (name == "factorial" && x.imag() == 0) return std::tgamma(x.real() + 1);
  if (name == "floor" && x.imag() == 0) return std::floor(x.real());
  if (name == "ceil" && x.imag() == 0) return std::ceil(x.real());
  if (name == "binom" && x.imag() == 0 && arguments[1].imag() == 0) {
    const long double n = x.real(), k = arguments[1].real();
    return std::tgamma(n + 1) / (std::tgamma(k + 1) * std::tgamma(n - k + 1));
  }
  return std::nullopt;
}

}  // namespace

void CollectSymbols(const Expression& of, std::set<std::string>* symbols) {
  if (of.kind == Kind::kSymbol || of.kind == Kind::kText) symbols->insert(of.name);
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

std::optional<Complex> Numeric(const Expression& of, const std::map<std::string, mpq_class>& symbols) {
  if (of.kind == Kind::kConstant) {
    if (of.name == "pi") return std::numbers::pi_v<long double>;
    if (of.name == "e") return std::numbers::e_v<long double>;
    if (of.name == "i") return Complex(0, 1);
    return std::numeric_limits<long double>::infinity();
  }
  if (const std::optional<mpq_class> exact = Exact(of, symbols)) return ToReal(*exact);
  std::vector<Complex> values;
  for (const ExpressionPtr& argument : of.arguments) {
    const std::optional<Complex> value = Numeric(*argument, symbols);
    if (!value.has_value()) return std::nullopt;
    values.push_back(*value);
  }
  const auto defined = [](Complex value) -> std::optional<Complex> {
    if (std::isnan(value.real()) || std::isnan(value.imag())) return std::nullopt;
    return value;
  };
  switch (of.kind) {
    case Kind::kAdd: {
      Complex sum = 0;
      for (const Complex& value : values) sum += value;
      return defined(sum);
    }
    case Kind::kMultiply: {
      // Real numbers times infinity are infinite, not undefined in the part that is not there.
      Complex product = 1;
      for (const Complex& value : values) {
        product = product.imag() == 0 && value.imag() == 0 ? Complex(product.real() * value.real()) : product * value;
      }
      return defined(product);
    }
    case Kind::kDivide:
      if (values[1] == Complex(0)) return std::nullopt;
      return defined(values[0] / values[1]);
    case Kind::kPower:
      if (values[0].imag() == 0 && values[1].imag() == 0 && values[0].real() >= 0) {
        return defined(std::pow(values[0].real(), values[1].real()));
      }
      return defined(std::pow(values[0], values[1]));
    case Kind::kFunction: {
      const std::optional<Complex> value = NumericFunction(of.name, values);
      return value.has_value() ? defined(*value) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace quartet::math
