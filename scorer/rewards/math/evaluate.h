// Values of scalar expressions at points.
#pragma once

#include <gmpxx.h>

#include <complex>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "scorer/rewards/math/expression.h"

namespace quartet::math {

using Complex = std::complex<long double>;

// The names of its symbols and words.
void CollectSymbols(const Expression& of, std::set<std::string>* symbols);

// Exactly, by rational arithmetic; nothing where it is not rational, not defined, of more than some 100,000 bits, or no
// scalar.
std::optional<mpq_class> Exact(const Expression& of, const std::map<std::string, mpq_class>& symbols);

// To some 18 digits, principal values; nothing where it is no scalar or not defined. Infinity is a value.
std::optional<Complex> Numeric(const Expression& of, const std::map<std::string, mpq_class>& symbols);

}  // namespace quartet::math
