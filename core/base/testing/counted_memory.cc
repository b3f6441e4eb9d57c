#include "core/base/testing/counted_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace quartet {
namespace {

std::atomic<int64_t> allocated = 0;

void Count(int64_t bytes) { allocated += bytes; }

}  // namespace

int64_t AllocatedBytes() { return allocated; }

}  // namespace quartet

// With each form that the standard library uses: sanitizers have their own of the others, and would find them mixed.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory != nullptr) quartet::Count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}
void* operator new(std::size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) quartet::Count(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
