#include "rollout/engine/scheduling/block_pool.h"

#include <algorithm>

#include "core/base/hash.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

uint64_t HashOf(uint64_t before, absl::Span<const int32_t> tokens) {
  return HashBytes({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t)}, before);
}

}  // namespace

BlockPool::BlockPool(int64_t num_blocks, int64_t block_size) : block_size_(block_size), blocks_(num_blocks + 1) {
  const auto anchor = static_cast<int32_t>(num_blocks);
  blocks_[anchor].next = blocks_[anchor].previous = anchor;
  blocks_[anchor].users = 1;
  for (int32_t block = 0; block < anchor; ++block) LinkBefore(block, anchor);
}

std::optional<BlockPool::CachedBlock> BlockPool::Find(uint64_t before, absl::Span<const int32_t> tokens) const {
  const auto found = published_.find(HashOf(before, tokens));
  if (found == published_.end() || !Holds(blocks_[found->second], before, tokens)) return std::nullopt;
  return CachedBlock{found->second, blocks_[found->second].prefix};
}

uint64_t BlockPool::Publish(int32_t block, uint64_t before, absl::Span<const int32_t> tokens) {
  QUARTET_CHECK(static_cast<int64_t>(tokens.size()) == block_size_) << "publishing a block of " << tokens.size();
  Block& entry = blocks_[block];
  QUARTET_CHECK(entry.users > 0 && entry.prefix == kEmptyPrefix) << "block " << block << " cannot be published";
  const uint64_t hash = HashOf(before, tokens);
  const auto [found, is_new] = published_.emplace(hash, block);
  if (!is_new) {
    const Block& other = blocks_[found->second];
    // A collision: nothing will be found behind the name.
    return Holds(other, before, tokens) ? other.prefix : ++last_prefix_;
  }
  entry.hash = hash;
  entry.before = before;
  entry.prefix = ++last_prefix_;
  entry.tokens.assign(tokens.begin(), tokens.end());
  return entry.prefix;
}

void BlockPool::Flush() {
  for (Block& block : blocks_) block.prefix = kEmptyPrefix;
  published_.clear();
}

std::optional<int32_t> BlockPool::Take() {
  const int32_t block = blocks_.back().next;
  if (block == size()) return std::nullopt;
  Unpublish(&blocks_[block]);
  Unlink(block);
  blocks_[block].users = 1;
  return block;
}

void BlockPool::Share(int32_t block) {
  Block& entry = blocks_[block];
  if (entry.users == 0) {
    QUARTET_CHECK(entry.prefix != kEmptyPrefix) << "sharing block " << block << ", which nobody uses";
    Unlink(block);
  }
  ++entry.users;
}

void BlockPool::Release(int32_t block) {
  Block& entry = blocks_[block];
  QUARTET_CHECK(entry.users > 0) << "releasing block " << block << ", which nobody uses";
  if (--entry.users > 0) return;
  LinkBefore(block, entry.prefix == kEmptyPrefix ? blocks_.back().next : static_cast<int32_t>(size()));
}

bool BlockPool::Holds(const Block& block, uint64_t before, absl::Span<const int32_t> tokens) const {
  return block.before == before && absl::MakeConstSpan(block.tokens) == tokens;
}

void BlockPool::Unpublish(Block* block) {
  if (block->prefix == kEmptyPrefix) return;
  published_.erase(block->hash);
  block->prefix = kEmptyPrefix;
}

void BlockPool::Unlink(int32_t block) {
  const Block& entry = blocks_[block];
  blocks_[entry.previous].next = entry.next;
  blocks_[entry.next].previous = entry.previous;
  --free_;
}

void BlockPool::LinkBefore(int32_t block, int32_t neighbour) {
  Block& entry = blocks_[block];
  entry.previous = blocks_[neighbour].previous;
  entry.next = neighbour;
  blocks_[entry.previous].next = block;
  blocks_[neighbour].previous = block;
  ++free_;
}

}  // namespace quartet
