// Large blocks of host memory for tensors, straight from the operating system and back. LibTorch-free.
//
// The C library would take such blocks from the heaps of whatever threads ask, which keep what is freed between blocks
// that live: a process is then larger than its tensors by up to hundreds of MiB that nobody can foresee. Giving every
// block back at once costs a fault for each page of each temporary, a sixth of a training step. So what is freed is
// kept for the next block of nearly its size, up to a bound.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

namespace quartet {

// Thread safe.
class BlockCache {
 public:
  // Blocks of at least this many bytes are worth a system call of their own.
  static constexpr size_t kSmallestBlock = size_t{1} << 20;
  // The most that is kept of freed blocks, unless SetBound says otherwise.
  static constexpr size_t kKeptBytes = size_t{64} << 20;

  BlockCache() = default;
  // Gives back what is kept; blocks that are in use stay as they are.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // At least `bytes` (above 0), at the start of a page, with anything in them; null where the system has none. What is
  // kept is given back before that is said. Where they are many they are to be huge pages (core/base/huge_pages.h).
  void* Allocate(size_t bytes);
  // False, and without effect, where `block` does not come from Allocate.
  bool Free(void* block);

  void SetBound(size_t bytes);

  // Gives back what is kept.
  void Clear();

  // Of blocks that are freed and kept.
  size_t kept_bytes() const;

 private:
  struct FreeBlock {
    void* data;
    size_t bytes;
  };
  using FreeList = std::list<FreeBlock>;

  void* TakeKept(size_t bytes);
  void GiveBackOldest();

  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> in_use_;
  FreeList kept_;  // the oldest first
  std::multimap<size_t, FreeList::iterator> kept_by_size_;
  size_t kept_bytes_ = 0;
  size_t bound_ = kKeptBytes;
};

}  // namespace quartet
