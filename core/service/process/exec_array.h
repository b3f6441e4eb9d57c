// Texts as exec takes them.
#pragma once

#include <string>
#include <vector>

namespace quartet {

// Pointers to `texts`, which stay where they are as long as these are used, and a null pointer behind them.
inline std::vector<char*> ExecArray(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace quartet
