// How much memory the whole program has from operator new, but for what asks for an alignment. Thread safe.
#pragma once

#include <cstdint>

namespace quartet {

int64_t AllocatedBytes();

}  // namespace quartet
