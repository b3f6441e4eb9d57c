// What the environment of this process says.
#pragma once

#include <cstdlib>
#include <string>

namespace quartet {

// The value of the variable; "" where there is none. Thread safe where nobody sets one meanwhile.
inline std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace quartet
