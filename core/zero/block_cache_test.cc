#include "core/zero/block_cache.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace quartet {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Whether the pages that begin at `block` belong to this process still.
bool IsMapped(void* block) {
  unsigned char resident = 0;
  return mincore(block, 1, &resident) == 0;
}

// Whether the kernel has been asked for huge pages at `block`: "hg" among the flags of its mapping.
bool AsksForHugePages(const void* block) {
  std::ifstream maps("/proc/self/smaps");
  const auto address = reinterpret_cast<uintptr_t>(block);
  bool within = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      within = begin <= address && address < end;
    } else if (within && line.starts_with("VmFlags:")) {
      return (line + ' ').find(" hg ") != std::string::npos;
    }
  }
  ADD_FAILURE() << "no mapping has " << block;
  return false;
}

TEST(BlockCache, AsksForHugePagesWhereABlockIsLargerThanOne) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").is_open()) GTEST_SKIP() << "the kernel has none";
  BlockCache cache;
  void* small = cache.Allocate(kMiB);
  EXPECT_FALSE(AsksForHugePages(small));
  void* large = cache.Allocate(8 * kMiB);
  EXPECT_TRUE(AsksForHugePages(large));
  cache.Free(large);
  EXPECT_EQ(cache.Allocate(8 * kMiB), large);
  EXPECT_TRUE(AsksForHugePages(large));
  for (void* block : {small, large}) cache.Free(block);
}

TEST(BlockCache, GivesWholePagesThatCanBeWritten) {
  BlockCache cache;
  void* block = cache.Allocate(3 * kMiB + 1);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % sysconf(_SC_PAGESIZE), 0);
  std::memset(block, 7, 3 * kMiB + 1);
  EXPECT_TRUE(cache.Free(block));
}

TEST(BlockCache, GivesAFreedBlockToTheNextOfItsSize) {
  BlockCache cache;
  void* first = cache.Allocate(4 * kMiB);
  void* other = cache.Allocate(4 * kMiB);
  cache.Free(first);
  EXPECT_EQ(cache.kept_bytes(), 4 * kMiB);
  EXPECT_EQ(cache.Allocate(4 * kMiB - 100'000), first) << "smaller by less than a 32nd";
  EXPECT_EQ(cache.kept_bytes(), 0);
  cache.Free(first);
  void* smaller = cache.Allocate(3 * kMiB);
  EXPECT_NE(smaller, first);
  void* larger = cache.Allocate(5 * kMiB);
  EXPECT_NE(larger, first);
  for (void* block : {other, smaller, larger}) cache.Free(block);
}

TEST(BlockCache, KeepsNoMoreThanItsBoundAndGivesTheOldestBackFirst) {
  BlockCache cache;
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(cache.Allocate(8 * kMiB));
  for (void* block : blocks) {
    EXPECT_TRUE(cache.Free(block));
    EXPECT_LE(cache.kept_bytes(), BlockCache::kKeptBytes);
  }
  EXPECT_EQ(cache.kept_bytes(), 64 * kMiB);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(IsMapped(blocks[i]), i >= 2) << i;
}

TEST(BlockCache, GivesBackAtOnceWhatIsLargerThanItsBound) {
  BlockCache cache;
  void* block = cache.Allocate(65 * kMiB);
  std::memset(block, 1, 65 * kMiB);
  EXPECT_TRUE(cache.Free(block));
  EXPECT_EQ(cache.kept_bytes(), 0);
  EXPECT_FALSE(IsMapped(block));
}

TEST(BlockCache, GivesBackWhatALowerBoundLeavesNoRoomFor) {
  BlockCache cache;
  cache.Free(cache.Allocate(8 * kMiB));
  cache.SetBound(7 * kMiB);
  EXPECT_EQ(cache.kept_bytes(), 0);
  cache.Free(cache.Allocate(8 * kMiB));
  EXPECT_EQ(cache.kept_bytes(), 0);
  cache.Free(cache.Allocate(7 * kMiB));
  EXPECT_EQ(cache.kept_bytes(), 7 * kMiB);
}

TEST(BlockCache, GivesBackAllThatIsKeptWhenTold) {
  BlockCache cache;
  void* kept = cache.Allocate(8 * kMiB);
  void* used = cache.Allocate(8 * kMiB);
  cache.Free(kept);
  cache.Clear();
  EXPECT_EQ(cache.kept_bytes(), 0);
  EXPECT_FALSE(IsMapped(kept));
  std::memset(used, 1, 8 * kMiB);
  EXPECT_TRUE(cache.Free(used));
}

TEST(BlockCache, LeavesOthersMemoryAlone) {
  BlockCache cache;
  std::vector<char> others(kMiB);
  EXPECT_FALSE(cache.Free(others.data()));
  void* block = cache.Allocate(kMiB);
  EXPECT_TRUE(cache.Free(block));
  EXPECT_FALSE(cache.Free(block)) << "freed twice";
  EXPECT_EQ(cache.kept_bytes(), kMiB);
}

TEST(BlockCache, SaysWhereTheSystemHasNoMore) {
  BlockCache cache;
  cache.Free(cache.Allocate(kMiB));
  EXPECT_EQ(cache.Allocate(size_t{1} << 60), nullptr);
  EXPECT_EQ(cache.kept_bytes(), 0) << "it was tried again without what was kept";
}

TEST(BlockCache, ServesSeveralThreadsAtOnce) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = (1 + (i * 7 + t) % 5) * kMiB;
        auto* block = static_cast<char*>(cache.Allocate(bytes));
        block[0] = block[bytes - 1] = static_cast<char>(t);
        std::this_thread::yield();
        EXPECT_EQ(block[0], t);
        EXPECT_EQ(block[bytes - 1], t);
        EXPECT_TRUE(cache.Free(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace quartet
