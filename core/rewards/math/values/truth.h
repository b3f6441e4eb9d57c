// What a comparison comes to.
#pragma once

namespace quartet::math {

enum class Truth { kNo, kYes, kUnknown };

}  // namespace quartet::math
