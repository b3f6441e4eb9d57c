// The blocks of a paged key/value cache: who uses them, and which prefixes those that are full hold. LibTorch-free.
//
// A full block can be published under what it holds: its own tokens behind those of the blocks before it. Whoever needs
// the same prefix finds it while it is in use, and after that until its memory is needed: free blocks are taken in the
// order in which they became free, those that hold nothing published before all others.
//
// A prefix has a name, a number that is never given twice. Blocks are found by a hash over their predecessor's name and
// their own tokens, and both are compared on a hit: hashes that collide cannot mix up two prefixes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace quartet {

// One thread.
class BlockPool {
 public:
  // `block_size` tokens a block.
  BlockPool(int64_t num_blocks, int64_t block_size);

  // Of the prefix that consists of no block.
  static constexpr uint64_t kEmptyPrefix = 0;

  struct CachedBlock {
    int32_t block;
    uint64_t prefix;  // with this block
  };
  // The block that holds `tokens` (block_size of them) behind the prefix `before`, if there is one. Does not take it.
  std::optional<CachedBlock> Find(uint64_t before, absl::Span<const int32_t> tokens) const;
  // `block`, which is in use and will not be written any more, holds `tokens` behind `before`. Returns the name of the
  // longer prefix; where another block holds the same already, that one's, and `block` stays unpublished.
  uint64_t Publish(int32_t block, uint64_t before, absl::Span<const int32_t> tokens);
  // Nothing is found any more. Blocks in use stay so.
  void Flush();

  // A free block for one user, or nothing where all are in use. What it held is forgotten.
  std::optional<int32_t> Take();
  // One more user of a block that is in use or published.
  void Share(int32_t block);
  // One user less. The last one makes it free.
  void Release(int32_t block);

  int64_t size() const { return static_cast<int64_t>(blocks_.size()) - 1; }
  int64_t block_size() const { return block_size_; }
  int64_t free() const { return free_; }
  bool is_free(int32_t block) const { return blocks_[block].users == 0; }
  bool is_shared(int32_t block) const { return blocks_[block].users > 1; }
  int64_t published() const { return static_cast<int64_t>(published_.size()); }

 private:
  struct Block {
    int32_t users = 0;
    // Neighbours in the ring of free blocks.
    int32_t previous = 0;
    int32_t next = 0;
    // Where published.
    uint64_t hash = 0;
    uint64_t before = 0;
    uint64_t prefix = kEmptyPrefix;
    std::vector<int32_t> tokens;
  };

  bool Holds(const Block& block, uint64_t before, absl::Span<const int32_t> tokens) const;
  void Unpublish(Block* block);
  void Unlink(int32_t block);
  void LinkBefore(int32_t block, int32_t neighbour);

  const int64_t block_size_;
  std::vector<Block> blocks_;  // the last is the ring's anchor: the first to be taken is its `next`
  absl::flat_hash_map<uint64_t, int32_t> published_;  // by hash
  uint64_t last_prefix_ = kEmptyPrefix;
  int64_t free_ = 0;
};

}  // namespace quartet
