#include "core/comm/transport/shared_staging.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/division.h"

namespace quartet {

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "atomics are shared between processes");

// All of it starts as zeros, which is what fresh memory holds.
struct SharedStaging::RankState {
  // Written by this rank alone.
  alignas(64) std::atomic<int64_t> written;  // rounds
  alignas(64) std::atomic<int64_t> done;     // rounds
  Meaning meanings[kSlots];
  // Written by the others too.
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;
};

// What the memory begins with.
struct SharedStaging::Layout {
  static constexpr int64_t kPage = 4096;
  uint64_t token;
  int64_t size;

  static int64_t SlotsBegin(int size) {
    const int64_t states = 64 + static_cast<int64_t>(sizeof(RankState)) * size;
    return RoundUp(states, kPage);
  }
  static int64_t Bytes(int size) { return SlotsBegin(size) + size * kSlots * kSlotBytes; }
};

namespace {

std::string SharedMemoryError(const std::string& what) {
  return absl::StrCat("shared memory: ", what, ": ", std::strerror(errno));
}

int64_t Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

SharedStaging::SharedStaging(int rank, int size, int file, uint8_t* memory)
    : rank_(rank), size_(size), file_(file), memory_(memory) {}

absl::StatusOr<std::unique_ptr<SharedStaging>> SharedStaging::Create(int rank, int size) {
  const int file = memfd_create("quartet-staging", MFD_CLOEXEC);
  if (file < 0) return absl::UnavailableError(SharedMemoryError("memfd_create"));
  const int64_t bytes = Layout::Bytes(size);
  void* memory = MAP_FAILED;
  Layout layout = {0, size};
  if (ftruncate(file, bytes) == 0 && getrandom(&layout.token, sizeof(layout.token), 0) == sizeof(layout.token)) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (memory == MAP_FAILED) {
    absl::Status status = absl::UnavailableError(SharedMemoryError(absl::StrCat(bytes, " bytes")));
    close(file);
    return status;
  }
  std::memcpy(memory, &layout, sizeof(layout));
  return std::unique_ptr<SharedStaging>(new SharedStaging(rank, size, file, static_cast<uint8_t*>(memory)));
}

std::string SharedStaging::handle() const {
  return absl::StrCat(getpid(), ",", file_, ",", reinterpret_cast<const Layout*>(memory_)->token);
}

absl::StatusOr<std::unique_ptr<SharedStaging>> SharedStaging::Attach(const std::string& handle, int rank, int size) {
  const std::vector<std::string> fields = absl::StrSplit(handle, ',');
  int64_t pid = 0, number = 0;
  uint64_t token = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &pid) || !absl::SimpleAtoi(fields[1], &number) ||
      !absl::SimpleAtoi(fields[2], &token)) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory: '", handle, "' is not a handle"));
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", number);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return absl::UnavailableError(SharedMemoryError(path));
  const int64_t bytes = Layout::Bytes(size);
  struct stat found = {};
  void* memory = MAP_FAILED;
  if (fstat(file, &found) == 0 && found.st_size == bytes) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) return absl::UnavailableError(absl::StrCat("shared memory: ", path, " cannot be mapped"));
  const Layout* layout = static_cast<const Layout*>(memory);
  if (layout->token != token || layout->size != size) {
    munmap(memory, bytes);
    return absl::UnavailableError(absl::StrCat("shared memory: ", path, " is not this group's"));
  }
  return std::unique_ptr<SharedStaging>(new SharedStaging(rank, size, -1, static_cast<uint8_t*>(memory)));
}

void SharedStaging::AllAttached() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

SharedStaging::~SharedStaging() {
  AllAttached();
  munmap(memory_, Layout::Bytes(size_));
}

SharedStaging::RankState& SharedStaging::state(int rank) const {
  return reinterpret_cast<RankState*>(memory_ + 64)[rank];
}

uint8_t* SharedStaging::slot(int rank, int64_t round) const {
  return memory_ + Layout::SlotsBegin(size_) + (rank * kSlots + round % kSlots) * kSlotBytes;
}

bool SharedStaging::CanWrite(int64_t round) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (state(rank).done.load(std::memory_order_acquire) <= round - kSlots) return false;
  }
  return true;
}

void SharedStaging::Written(int64_t round, const Meaning& meaning) {
  RankState& own = state(rank_);
  own.meanings[round % kSlots] = meaning;
  own.written.store(round + 1, std::memory_order_release);
  RingOthers();
}

bool SharedStaging::CanRead(int64_t round) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (state(rank).written.load(std::memory_order_acquire) <= round) return false;
  }
  return true;
}

const SharedStaging::Meaning& SharedStaging::meaning(int rank, int64_t round) const {
  return state(rank).meanings[round % kSlots];
}

void SharedStaging::DoneReading(int64_t round) {
  state(rank_).done.store(round + 1, std::memory_order_release);
  RingOthers();
}

bool SharedStaging::HoldsUp(int rank, int64_t to_write, int64_t to_read) const {
  return state(rank).done.load(std::memory_order_acquire) <= to_write - kSlots ||
         state(rank).written.load(std::memory_order_acquire) <= to_read;
}

uint32_t SharedStaging::bell() const { return state(rank_).bell.load(); }

// Whoever rings changes the bell first and looks then whether the rank sleeps; the rank says first that it sleeps, and
// the kernel looks then whether the bell has changed. One of the two sees the other.
void SharedStaging::Sleep(uint32_t bell, absl::Duration longest) {
  RankState& own = state(rank_);
  own.sleeping.store(1);
  const timespec timeout = absl::ToTimespec(longest);
  Futex(&own.bell, FUTEX_WAIT, bell, &timeout);
  own.sleeping.store(0);
}

void SharedStaging::Ring(int rank) {
  RankState& other = state(rank);
  other.bell.fetch_add(1);
  if (other.sleeping.load() != 0) Futex(&other.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedStaging::RingOthers() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) Ring(rank);
  }
}

}  // namespace quartet
