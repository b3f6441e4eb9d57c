#include "core/memory/block_cache.h"

#include <gtest/gtest.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace quartet {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPage = 4096;

// Of [block, block + bytes), which belong to this process; -1 where they do not.
int64_t ResidentBytes(void* block, size_t bytes) {
  std::vector<unsigned char> pages((bytes + kPage - 1) / kPage);
  if (mincore(block, bytes, pages.data()) != 0) return -1;
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }) * int64_t{kPage};
}

bool IsMapped(void* block) { return ResidentBytes(block, 1) >= 0; }

struct Mapping {
  uintptr_t begin = 0, end = 0;
  int64_t resident_kib = 0;
};

// Mappings of this process that have been asked to be huge pages: only the cache's have.
std::vector<Mapping> HugePageMappings() {
  std::ifstream maps("/proc/self/smaps");
  std::vector<Mapping> found;
  Mapping current;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) current = {begin, end, 0};
    if (line.starts_with("Rss:")) std::sscanf(line.c_str(), "Rss: %" SCNd64, &current.resident_kib);
    if (line.starts_with("VmFlags:") && (line + ' ').find(" hg ") != std::string::npos) found.push_back(current);
  }
  return found;
}

bool KernelHasHugePages() { return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").is_open(); }

size_t Held(const BlockCache& cache) { return cache.stats().in_use + cache.stats().free; }

class InACall : public ::testing::Test {
 protected:
  InACall() { cache_.BeginCall(); }
  ~InACall() override {
    for (char* block : taken_) cache_.Free(block);
    cache_.EndCall();
  }

  char* Take(size_t bytes) {
    auto* block = static_cast<char*>(cache_.Allocate(bytes));
    std::memset(block, 1, bytes);
    taken_.push_back(block);
    return block;
  }

  BlockCache cache_;
  std::vector<char*> taken_;  // of which some may be free again
};

TEST_F(InACall, BlocksAreWholePagesThatCanBeWritten) {
  for (const size_t bytes : {kMiB, kMiB + 1, 3 * kMiB + 1, 64 * kMiB}) {
    char* block = Take(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % sysconf(_SC_PAGESIZE), 0);
  }
}

TEST_F(InACall, BlocksAreToBeHugePages) {
  if (!KernelHasHugePages()) GTEST_SKIP() << "the kernel has none";
  for (const size_t bytes : {kMiB, 8 * kMiB}) {
    const auto address = reinterpret_cast<uintptr_t>(Take(bytes));
    const std::vector<Mapping> mappings = HugePageMappings();
    EXPECT_TRUE(std::any_of(mappings.begin(), mappings.end(), [&](const Mapping& one) {
      return one.begin <= address && address < one.end;
    })) << bytes;
  }
}

TEST_F(InACall, AFreedBlockIsSplitForSmallerOnesAndJoinedAgain) {
  char* const whole = Take(12 * kMiB);
  cache_.Free(whole);
  EXPECT_EQ(cache_.stats().free, 12 * kMiB);
  std::vector<char*> parts;
  for (const size_t mib : {5, 4, 3}) parts.push_back(Take(mib * kMiB));
  for (char* part : parts) EXPECT_TRUE(whole <= part && part < whole + 12 * kMiB);
  EXPECT_EQ(cache_.stats().free, 0);
  for (const int i : {0, 2, 1}) cache_.Free(parts[i]);
  EXPECT_EQ(Take(12 * kMiB), whole);
  EXPECT_EQ(cache_.stats().mapped, 12 * kMiB);
}

TEST_F(InACall, ABlockComesFromTheSmallestChunkThatHasRoom) {
  char *const large = Take(8 * kMiB), *const between = Take(2 * kMiB), *const small = Take(4 * kMiB),
              *const end = Take(kMiB);
  cache_.Free(large);
  cache_.Free(small);
  EXPECT_EQ(Take(3 * kMiB), small);
  EXPECT_EQ(Take(3 * kMiB), large);
  for (char* block : {between, end}) cache_.Free(block);
}

// The pages of the larger block are the freed ones: they are there before anybody has written to it.
TEST_F(InACall, PagesOfScatteredChunksAreUsedForALargerBlock) {
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(Take(4 * kMiB));
    std::memset(blocks.back(), i, 4 * kMiB);
  }
  for (int i = 0; i < 8; i += 2) cache_.Free(blocks[i]);
  void* large = cache_.Allocate(16 * kMiB);
  EXPECT_EQ(ResidentBytes(large, 16 * kMiB), 16 * kMiB);
  EXPECT_EQ(cache_.stats().moved, 16 * kMiB);
  EXPECT_EQ(cache_.stats().mapped, 32 * kMiB);
  EXPECT_EQ(Held(cache_), 32 * kMiB);
  std::memset(large, 100, 16 * kMiB);
  EXPECT_TRUE(cache_.Free(large));
  for (int i = 1; i < 8; i += 2) {
    EXPECT_TRUE(std::all_of(blocks[i], blocks[i] + 4 * kMiB, [&](char byte) { return byte == i; })) << i;
  }
}

TEST_F(InACall, WhatIsMovedMayBeMovedAgain) {
  std::vector<char*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(Take(4 * kMiB));
  for (size_t mib = 4; mib < 32; mib *= 2) {
    std::vector<char*> larger;
    for (size_t i = 0; i < blocks.size(); i += 2) cache_.Free(blocks[i]);
    for (size_t i = 0; i < blocks.size(); i += 4) larger.push_back(Take(2 * mib * kMiB));
    for (size_t i = 1; i < blocks.size(); i += 2) cache_.Free(blocks[i]);
    for (size_t i = 1; i < blocks.size(); i += 4) larger.push_back(Take(2 * mib * kMiB));
    blocks = std::move(larger);
    EXPECT_EQ(cache_.stats().mapped, 64 * kMiB);
    EXPECT_EQ(cache_.stats().free, 0);
  }
}

// Between blocks of 1 MiB that live there is no whole huge page to be used.
TEST_F(InACall, WhatIsFreeAndOfNoUseGoesBackForWhatIsNeeded) {
  if (!KernelHasHugePages()) GTEST_SKIP() << "the kernel has none";
  std::vector<char*> blocks;
  for (int i = 0; i < 256; ++i) blocks.push_back(Take(kMiB));
  for (int i = 0; i < 256; i += 2) cache_.Free(blocks[i]);
  EXPECT_EQ(cache_.stats().free, 128 * kMiB);
  Take(128 * kMiB);
  EXPECT_EQ(cache_.stats().peak_in_use, 256 * kMiB);
  EXPECT_LE(Held(cache_), BlockCache::HeldAtMost(256 * kMiB));
  int64_t resident_kib = 0;
  for (const Mapping& mapping : HugePageMappings()) resident_kib += mapping.resident_kib;
  EXPECT_LE(resident_kib * 1024, BlockCache::HeldAtMost(256 * kMiB));
  for (int i = 1; i < 256; i += 2) EXPECT_EQ(*blocks[i], 1);
}

// As many steps of random sizes as make all of the above happen many times over.
TEST_F(InACall, HoldsNoMoreThanItSaysWhateverIsTakenAndFreed) {
  std::mt19937 random(1);
  std::vector<std::pair<char*, size_t>> blocks;
  size_t in_use = 0;
  for (int step = 0; step < 4000; ++step) {
    const size_t bytes = kMiB + (size_t{1} << (random() % 24)) + random() % kMiB;
    if (in_use + bytes < 200 * kMiB) {
      blocks.emplace_back(static_cast<char*>(cache_.Allocate(bytes)), bytes);
      *blocks.back().first = blocks.back().first[bytes - 1] = static_cast<char>(bytes);
      in_use += bytes;
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto [block, size] = blocks.back();
      ASSERT_EQ(*block, static_cast<char>(size));
      ASSERT_EQ(block[size - 1], static_cast<char>(size));
      ASSERT_TRUE(cache_.Free(block));
      blocks.pop_back();
      in_use -= size;
    }
    ASSERT_LE(Held(cache_), BlockCache::HeldAtMost(cache_.stats().peak_in_use)) << step;
  }
  EXPECT_GT(cache_.stats().moved, 0);
}

// What is written into a free block shows whether its pages have stayed: those that the system took come back empty.
class FreeBlock : public InACall {
 protected:
  static constexpr size_t kBytes = 8 * kMiB;

  void SetUp() override {
    if (madvise(used_, kPage, MADV_PAGEOUT) != 0) GTEST_SKIP() << "the kernel cannot be asked to take pages";
  }

  // As when memory is short, of the first half of `block`.
  static void MakeTheSystemTakeWhatItMay(char* block) { ASSERT_EQ(madvise(block, kBytes / 2, MADV_PAGEOUT), 0); }

  char* const used_ = Take(kBytes);
  char* const block_ = Take(kBytes);
};

TEST_F(FreeBlock, KeepsItsPagesInACall) {
  cache_.Free(block_);
  MakeTheSystemTakeWhatItMay(block_);
  ASSERT_EQ(cache_.Allocate(kBytes), block_);
  EXPECT_TRUE(std::all_of(block_, block_ + kBytes, [](char byte) { return byte == 1; }));
}

TEST_F(FreeBlock, KeepsItsPagesBetweenCallsUntilTheSystemTakesThem) {
  for (const bool freed_in_call : {true, false}) {
    if (freed_in_call) cache_.Free(block_);
    cache_.EndCall();
    if (!freed_in_call) cache_.Free(block_);
    EXPECT_EQ(cache_.stats().free, kBytes);
    for (char* block : {used_, block_}) MakeTheSystemTakeWhatItMay(block);
    cache_.BeginCall();
    ASSERT_EQ(cache_.Allocate(kBytes), block_);
    EXPECT_EQ(cache_.stats().mapped, 2 * kBytes);
    EXPECT_TRUE(std::all_of(block_, block_ + kBytes / 2, [](char byte) { return byte == 0; }));
    EXPECT_TRUE(std::all_of(block_ + kBytes / 2, block_ + kBytes, [](char byte) { return byte == 1; }));
    EXPECT_TRUE(std::all_of(used_, used_ + kBytes, [](char byte) { return byte == 1; }));
    std::memset(block_, 1, kBytes);
  }
}

TEST_F(InACall, GivesBackWhatIsFreeWhenAsked) {
  char* kept = Take(8 * kMiB);
  char* used = Take(8 * kMiB);
  cache_.Free(kept);
  cache_.GiveBack();
  EXPECT_EQ(cache_.stats().free, 0);
  EXPECT_FALSE(IsMapped(kept));
  EXPECT_EQ(ResidentBytes(used, 8 * kMiB), 8 * kMiB);
  EXPECT_TRUE(cache_.Free(used));
}

TEST(BlockCache, LeavesOthersMemoryAlone) {
  BlockCache cache;
  std::vector<char> others(kMiB);
  EXPECT_FALSE(cache.Free(others.data()));
  cache.BeginCall();
  void* block = cache.Allocate(kMiB);
  EXPECT_TRUE(cache.Free(block));
  EXPECT_FALSE(cache.Free(block)) << "freed twice";
  cache.EndCall();
}

TEST_F(InACall, SaysWhereTheSystemHasNoMore) {
  cache_.Free(Take(kMiB));
  for (const size_t bytes : {size_t{1} << 60, ~size_t{0} - 2 * kPage}) EXPECT_EQ(cache_.Allocate(bytes), nullptr);
  EXPECT_EQ(Held(cache_), 0) << "it was tried again without what was free";
}

TEST_F(InACall, AForkedProcessHasItsOwn) {
  char* block = Take(4 * kMiB);
  cache_.Free(Take(4 * kMiB));
  const pid_t child = fork();
  if (child == 0) {
    std::memset(block, 2, 4 * kMiB);
    std::memset(cache_.Allocate(3 * kMiB), 2, 3 * kMiB);
    _exit(cache_.Free(block) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::all_of(block, block + 4 * kMiB, [](char byte) { return byte == 1; }));
}

TEST(BlockCache, ServesSeveralThreadsAtOnce) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 200; ++i) {
        if (i % 50 == 0) cache.BeginCall();
        const size_t bytes = (1 + (i * 7 + t) % 5) * kMiB;
        auto* block = static_cast<char*>(cache.Allocate(bytes));
        auto* other = static_cast<char*>(cache.Allocate(2 * bytes));
        block[0] = block[bytes - 1] = other[0] = static_cast<char>(t);
        std::this_thread::yield();
        EXPECT_EQ(block[0], t);
        EXPECT_EQ(block[bytes - 1], t);
        EXPECT_TRUE(cache.Free(block));
        EXPECT_EQ(other[0], t);
        EXPECT_TRUE(cache.Free(other));
        if (i % 50 == 49) cache.EndCall();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.stats().in_use, 0);
}

#if defined(__SANITIZE_ADDRESS__)
TEST_F(InACall, WhatIsFreeIsPoisonedForAddressSanitizer) {
  char* block = Take(4 * kMiB);
  cache_.Free(block);
  EXPECT_TRUE(__asan_address_is_poisoned(block));
  EXPECT_EQ(Take(3 * kMiB), block);
  EXPECT_EQ(__asan_region_is_poisoned(block, 3 * kMiB), nullptr);
  EXPECT_TRUE(__asan_address_is_poisoned(block + 3 * kMiB)) << "the rest is free";
  cache_.GiveBack();
  EXPECT_FALSE(__asan_address_is_poisoned(block + 3 * kMiB)) << "the address may become another's";
}
#endif

}  // namespace
}  // namespace quartet
