// Large blocks of host memory for tensors. LibTorch-free.
//
// The C library would take such blocks from the heaps of whatever threads ask, which keep what is freed between blocks
// that live: a process is then larger than its tensors by up to hundreds of MiB that nobody can foresee. Giving every
// block back to the system at once costs a fault and a cleared page for each page of each temporary, a third of a
// training step. So what is freed is used again, split and joined:
//
//  - A block comes from the smallest free chunk that has room for it; the rest of the chunk stays free. A freed block
//    is joined with the free chunks beside it.
//  - Where all free chunks together have room but no single one, whole huge pages out of several are put side by side
//    at a new address. That moves entries of the page table, and clears nothing.
//  - New memory is taken where this is not enough either. Free chunks go back for it as far as the cache would hold
//    more than HeldAtMost of what was in use at once: scattered free memory costs time, and never memory.
//  - While no call runs, free huge pages are the system's for the taking (MADV_FREE): it takes them, oldest first,
//    where memory is short, before it would end a process. What it has left until then costs the next call nothing.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quartet {

// Thread safe.
class BlockCache {
 public:
  // Blocks of at least this many bytes are worth a place of their own.
  static constexpr size_t kSmallestBlock = size_t{256} << 10;

  // The most that is held, free chunks included, where blocks of at most `in_use` bytes were in use at once.
  static constexpr size_t HeldAtMost(size_t in_use) { return in_use + in_use / 64 + (size_t{2} << 20); }

  BlockCache() = default;
  // Gives back what is free; blocks that are in use stay as they are.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // At least `bytes` (above 0), at the start of a page, with anything in them; null where the system has none. The
  // system is asked for huge pages (core/hardware/huge_pages.h).
  void* Allocate(size_t bytes);
  // False, and without effect, where `block` does not come from Allocate.
  bool Free(void* block);

  // Between the first BeginCall and as many EndCalls nothing that is free is offered to the system.
  void BeginCall();
  void EndCall();
  // Gives back what is free, also while a call runs: the process is smaller at once.
  void GiveBack();

  // In bytes; blocks count in whole pages.
  struct Stats {
    size_t in_use = 0;
    size_t free = 0;         // held beside what is in use
    size_t peak_in_use = 0;  // since the cache was made
    size_t peak_held = 0;    // of in_use and free together
    size_t mapped = 0;       // ever taken from the system
    size_t moved = 0;        // ever put side by side
  };
  Stats stats() const;

 private:
  using Chunks = std::map<char*, size_t>;

  void* TakeFree(size_t bytes);
  void* TakeNew(size_t bytes);
  std::optional<size_t> MoveTo(char* to, const std::vector<char*>& huge_pages);
  std::vector<char*> FreeHugePages(size_t count) const;
  Chunks::iterator AddFree(char* begin, size_t bytes);
  void RemoveFree(Chunks::iterator chunk);
  Chunks::iterator Offer(Chunks::iterator chunk);
  bool Unmap(Chunks::iterator chunk);
  void UnmapAllFree();

  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> in_use_;
  Chunks free_;  // no two are neighbours
  std::set<std::pair<size_t, char*>> free_by_size_;
  int calls_ = 0;
  size_t peak_ = 0;  // of what was in use since the free chunks were last given back
  Stats stats_;
};

// The process's, which LibTorch's tensors come from (accounted_tensor.h).
BlockCache& HostBlocks();

// A call that takes and frees tensors again and again: while one lives in the process, on any thread, the system leaves
// what is freed for the next tensors.
class [[nodiscard]] ReuseScope {
 public:
  ReuseScope() { HostBlocks().BeginCall(); }
  ReuseScope(const ReuseScope&) = delete;
  ReuseScope& operator=(const ReuseScope&) = delete;
  ~ReuseScope() { HostBlocks().EndCall(); }
};

}  // namespace quartet
