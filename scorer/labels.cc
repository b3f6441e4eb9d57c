#include "scorer/labels.h"

#include <algorithm>

namespace quartet {

bool IsFor(const RewardSource& source, const std::string& prompt_source) {
  return source.only().empty() || std::ranges::find(source.only(), prompt_source) != source.only().end();
}

}  // namespace quartet
