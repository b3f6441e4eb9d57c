// Page-locked host memory, which copies to and from a GPU need to run at full speed and beside its computation.
// LibTorch-free.
//
// LibTorch's own allocator of such memory takes the next power of two and never gives it back: up to twice of what is
// asked for, of the scarcest memory of a host that holds optimizer state. Here a new block is as large as what it is
// for, in whole pages. Locking pages costs milliseconds, so freed blocks are used again, for things that are smaller by
// an eighth or, all together, by kSlack; and are kept as long as all that is held is no more than was ever in use at
// once.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace quartet {

// Thread safe.
class PinnedBlocks {
 public:
  // Where pages come from, null if there are none left, and where they go.
  struct Pages {
    std::function<void*(size_t bytes)> take;
    std::function<void(void* memory, size_t bytes)> give;
  };
  // Returns once nothing reads or writes a freed block any more.
  using Wait = std::function<void()>;

  static constexpr size_t kSlack = size_t{64} << 20;
  explicit PinnedBlocks(Pages pages, size_t slack = kSlack) : pages_(std::move(pages)), slack_(slack) {}
  // Gives back what is free; blocks that are in use stay as they are.
  ~PinnedBlocks() { GiveBack(); }
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;

  // At least `bytes` (above 0), with anything in them; null where the system has none, even after GiveBack.
  void* Allocate(size_t bytes);
  // `block` comes from Allocate. `wait` is called before anyone else gets its memory, or it goes back.
  void Free(void* block, Wait wait);
  void GiveBack();

  struct Stats {
    size_t in_use = 0;  // in whole pages of what was asked for
    size_t peak_in_use = 0;
    size_t wasted = 0;  // what blocks in use have beyond that
    size_t held = 0;    // in use, wasted and free
  };
  Stats stats() const;

 private:
  struct Block {
    size_t bytes, asked;
  };
  struct Freed {
    void* memory;
    Wait wait;
  };

  void GiveBackLargest();

  const Pages pages_;
  const size_t slack_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::multimap<size_t, Freed> free_;  // by their size; of one size, the one that was freed first comes first
  Stats stats_;
};

}  // namespace quartet
