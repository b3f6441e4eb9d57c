// Numbers as they are written, and what decorates them before them. Thread safe.
#pragma once

#include <gmpxx.h>

#include <optional>
#include <string_view>

namespace quartet {

// Take a currency's sign, and what may stand before a number without meaning anything by it, off the beginning of
// `*text`; false: it is not there.
bool ConsumeCurrency(std::string_view* text);
bool ConsumeOpener(std::string_view* text);
// What people and TeX put before numbers without meaning anything by it, currencies' codes and styles with it.
void SkipOpeners(std::string_view* text);

// Takes a number, and what decorates it before it: 72, -1,234.5, 3/4, \frac{3}{4}, 2 1/4, 3 \times 10^5. Nothing: there
// is none, or one of more than 1,000 digits or an exponent above 400; how much is taken then is not said.
std::optional<mpq_class> TakeNumber(std::string_view* text);
// Takes "^5", "^{-5}": `base` to that power.
std::optional<mpq_class> TakePower(std::string_view* text, const mpz_class& base);

}  // namespace quartet
