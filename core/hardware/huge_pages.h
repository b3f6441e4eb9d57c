// Large memory that is read again and again, on the CPU. LibTorch-free.
#pragma once

#include <cstdint>

namespace quartet {

// Asks the operating system to back [memory, memory + bytes) by huge pages, as far as whole ones fit; to be called
// before the memory is first written to. Reads of weights and of cache blocks are otherwise held up by looking up the
// addresses of their pages, on virtual machines above all. An advice: nothing is taken earlier than it is written to,
// and where it cannot be followed nothing changes.
void AskForHugePages(void* memory, int64_t bytes);

}  // namespace quartet
