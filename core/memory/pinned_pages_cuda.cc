#include <cuda_runtime.h>
#include <sys/mman.h>

#include <cstdint>

#include "core/hardware/huge_pages.h"
#include "core/memory/pinned_pages.h"

namespace quartet {

void* TakePinnedPages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  AskForHugePages(memory, static_cast<int64_t>(bytes));
  if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess) return memory;
  cudaGetLastError();  // it is said by null
  munmap(memory, bytes);
  return nullptr;
}

void GivePinnedPages(void* memory, size_t bytes) {
  cudaHostUnregister(memory);
  munmap(memory, bytes);
}

}  // namespace quartet
