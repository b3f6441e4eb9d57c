#include "core/hardware/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

namespace quartet {

void AskForHugePages(void* memory, int64_t bytes) {
  constexpr int64_t kWorthAsking = int64_t{2} << 20;  // a huge page of x86-64
  if (bytes < kWorthAsking) return;
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t before = (page - static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) % page)) % page;
  madvise(static_cast<char*>(memory) + before, (bytes - before) / page * page, MADV_HUGEPAGE);
}

}  // namespace quartet
