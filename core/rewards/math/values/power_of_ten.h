// Powers of ten, exactly.
#pragma once

#include <gmpxx.h>

#include <cstdlib>

namespace quartet {

inline mpq_class PowerOfTen(int exponent) {
  mpz_class power;
  mpz_ui_pow_ui(power.get_mpz_t(), 10, static_cast<unsigned long>(std::abs(exponent)));
  return exponent < 0 ? mpq_class(1, power) : mpq_class(power);
}

}  // namespace quartet
