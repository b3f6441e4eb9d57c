// Memory through which the ranks of a group on one host pass what they have for each other. LibTorch-free.
//
// Each rank has a ring of slots. Rounds are numbered from 0, alike on all ranks; in each round every rank fills its
// slot of the round once and reads what it needs from the others' slots. A slot is filled again only after all ranks
// are done with the round before that used it, so a rank runs at most kSlots rounds ahead of the slowest. Whoever has
// nothing to do sleeps: more ranks than cores must not take each other's time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quartet {

// One thread a rank; Ring from any thread.
class SharedStaging {
 public:
  // Small enough that what one rank has written the other finds in the cache, large enough that waking it is cheap.
  static constexpr int64_t kSlotBytes = 512 << 10;
  static constexpr int64_t kSlots = 8;

  // What a slot is part of: two ranks that fill the slots of one round for different collectives are out of step.
  struct Meaning {
    int64_t collective = 0;
    int64_t kind = 0;
    int64_t bytes = 0;
    bool operator==(const Meaning& other) const = default;
  };

  // The memory has no name in any file system and goes with the last process that uses it.
  static absl::StatusOr<std::unique_ptr<SharedStaging>> Create(int rank, int size);
  // What other ranks attach with while the creator lives and has not called AllAttached. No spaces.
  std::string handle() const;
  static absl::StatusOr<std::unique_ptr<SharedStaging>> Attach(const std::string& handle, int rank, int size);
  void AllAttached();
  ~SharedStaging();
  SharedStaging(const SharedStaging&) = delete;
  SharedStaging& operator=(const SharedStaging&) = delete;

  // Aligned to 64 bytes.
  uint8_t* slot(int rank, int64_t round) const;

  // Whether this rank's slot of `round` is free. Rounds must be written in their order, none left out.
  bool CanWrite(int64_t round) const;
  void Written(int64_t round, const Meaning& meaning);
  // Whether all ranks have written `round`. Rounds must be read in their order, none left out.
  bool CanRead(int64_t round) const;
  const Meaning& meaning(int rank, int64_t round) const;
  void DoneReading(int64_t round);
  // Whether `rank` keeps this one from writing `to_write` or from reading `to_read`.
  bool HoldsUp(int rank, int64_t to_write, int64_t to_read) const;

  // To sleep until something has changed since `bell` was taken, or somebody rang, or `longest` has passed.
  uint32_t bell() const;
  void Sleep(uint32_t bell, absl::Duration longest);
  void Ring(int rank);

 private:
  struct RankState;
  struct Layout;

  SharedStaging(int rank, int size, int file, uint8_t* memory);
  RankState& state(int rank) const;
  void RingOthers();

  const int rank_, size_;
  int file_;  // of the creator until all are attached, else -1
  uint8_t* const memory_;
};

}  // namespace quartet
