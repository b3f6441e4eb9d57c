// Collectives over SharedStaging, for ranks on one host: what a rank has for others goes into its slots piece by piece
// and from there straight to its place, so that a gather costs two copies of each byte, the second out of the cache,
// and a reduce-scatter one copy and one addition. Nothing but the slots is needed beside the caller's tensors.
//
// The work is done by one thread a group, so that collectives go on while the caller computes and a rank that is ahead
// need not meet the others in Wait. It moves bytes and adds; it does not enter LibTorch's parallel regions, which would
// make a second team of threads. While it has nothing to move it sleeps.

#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/division.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/base/time/running_wait.h"
#include "core/base/trace.h"
#include "core/comm/transport/shared_staging.h"
#include "core/comm/transport/transport.h"
#include "core/hardware/simd.h"

namespace quartet {
namespace {

constexpr int64_t kSlotBytes = SharedStaging::kSlotBytes;
// LibTorch computes fewer elements than its grain of 32,768 on the calling thread.
constexpr int64_t kSerialElements = 16'384;
// How often a rank that waits looks whether those it waits for still live.
constexpr absl::Duration kLookAround = absl::Milliseconds(100);

enum class Kind : int64_t { kGather, kScatter, kReduce };

// to[i] = from[0][i] + from[1][i] + ..., added in this order; `to` may be one of them.
QUARTET_SIMD_CLONES void SumFloats(const std::vector<const float*>& from, int64_t count, float* to) {
  const size_t ranks = from.size();
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    simd::F16 sum = simd::Load(from[0] + i);
    for (size_t r = 1; r < ranks; ++r) sum += simd::Load(from[r] + i);
    simd::Store(to + i, sum);
  }
  for (; i < count; ++i) {
    float sum = from[0][i];
    for (size_t r = 1; r < ranks; ++r) sum += from[r][i];
    to[i] = sum;
  }
}

// The same for any type, or the maximum: what LibTorch's operators give.
void CombineAny(const std::vector<const uint8_t*>& from, at::ScalarType dtype, bool max, int64_t bytes, uint8_t* to) {
  const int64_t step = kSerialElements * static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t begin = 0; begin < bytes; begin += step) {
    const int64_t size = std::min(step, bytes - begin);
    auto values = [&](const uint8_t* data) {
      return at::from_blob(const_cast<uint8_t*>(data) + begin, {size / static_cast<int64_t>(c10::elementSize(dtype))},
                           at::TensorOptions(dtype));
    };
    at::Tensor result = values(from[0]).clone();
    for (size_t r = 1; r < from.size(); ++r) {
      if (max) {
        result = at::maximum(result, values(from[r]));
      } else {
        result.add_(values(from[r]));
      }
    }
    std::memcpy(to + begin, result.const_data_ptr(), size);
  }
}

// One collective. The tensors are flat and contiguous.
struct Operation {
  int64_t number;
  Kind kind;
  at::Tensor input, output;  // the same for a gather and an all-reduce
  bool max = false;

  int64_t first_round = 0, rounds = 0;
  // Of the group's own thread: rounds of this collective that are behind it.
  int64_t written = 0, read = 0;

  // Guarded by Engine::mutex_.
  bool given_up = false;  // by the caller; it may be done all the same
  bool done = false;
  std::string error;
  int64_t finished = 0;  // the trace's clock
};

// The group's thread and what it works on.
class Engine {
 public:
  Engine(const ProcessGroupOptions& options, std::unique_ptr<SharedStaging> staging,
         std::vector<ProcessIdentity> processes)
      : rank_(options.rank),
        size_(options.size),
        timeout_(options.timeout),
        staging_(std::move(staging)),
        processes_(std::move(processes)),
        thread_([this] { Run(); }) {}

  ~Engine() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    staging_->Ring(rank_);
    thread_.join();
  }

  void Start(const std::shared_ptr<Operation>& operation) {
    operation->rounds = Rounds(*operation);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      operation->first_round = next_round_;
      next_round_ += operation->rounds;
      queue_.push_back(operation);
    }
    staging_->Ring(rank_);
  }

  void Wait(Operation& operation) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto done = [&] { return operation.done; };
    if (!WaitWhileRunning(changed_, lock, Deadline::In(timeout_), done)) {
      GiveUp(operation);
      // The thread may be in the midst of a piece, the last one even; the tensors are the caller's again after that
      // only.
      changed_.wait(lock, done);
      if (!operation.error.empty()) {
        throw std::runtime_error(absl::StrCat("timed out after ", absl::FormatDuration(timeout_)));
      }
    }
    if (!operation.error.empty()) throw std::runtime_error(operation.error);
  }

  // The caller wants no more of it.
  void Drop(Operation& operation) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (operation.done) return;
    GiveUp(operation);
    changed_.wait(lock, [&] { return operation.done; });
  }

  void Abort(int64_t first_number) {
    std::lock_guard<std::mutex> lock(mutex_);
    End(first_number);
  }

  int64_t Finished(const Operation& operation) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return operation.finished;
  }

 private:
  // Under mutex_. Later ones end if this one does (Retire).
  void GiveUp(Operation& operation) {
    operation.given_up = true;
    staging_->Ring(rank_);
  }

  // Under mutex_.
  void End(int64_t first_number) {
    first_ended_ = std::min(first_ended_, first_number);
    staging_->Ring(rank_);
  }

  void Run() {
    auto moved = std::chrono::steady_clock::now();  // or looked around
    while (true) {
      const uint32_t bell = staging_->bell();
      std::shared_ptr<Operation> operation;
      bool ended = false;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!queue_.empty()) {
          operation = queue_.front();
          ended = stopping_ || operation->given_up || operation->number >= first_ended_;
        } else if (stopping_) {
          return;
        }
      }
      if (operation == nullptr) {
        staging_->Sleep(bell, absl::Hours(1));
        continue;
      }
      std::string error;
      if (ended) {
        error = "ended from outside";
      } else {
        try {
          const bool stepped = Step(*operation);
          if (!stepped) staging_->Sleep(bell, kLookAround);
          const auto now = std::chrono::steady_clock::now();
          if (!stepped && now - moved >= absl::ToChronoNanoseconds(kLookAround)) error = FindDead(*operation);
          if (stepped || now - moved >= absl::ToChronoNanoseconds(kLookAround)) moved = now;
        } catch (const std::exception& failure) {
          error = failure.what();
        }
      }
      if (!error.empty() || operation->read == operation->rounds) Retire(*operation, error);
    }
  }

  void Retire(Operation& operation, const std::string& error) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.pop_front();
    // When Wait returns, nobody but the caller holds the tensors.
    operation.input.reset();
    operation.output.reset();
    operation.done = true;
    operation.error = error;
    operation.finished = TraceNow();
    // The rounds of one that failed are not complete, so that later ones cannot be.
    if (!error.empty()) first_ended_ = std::min(first_ended_, operation.number);
    changed_.notify_all();
  }

  // One round written or read; false where that must wait for others.
  bool Step(Operation& operation) {
    const int64_t read = operation.first_round + operation.read, write = operation.first_round + operation.written;
    const SharedStaging::Meaning meaning = {operation.number, static_cast<int64_t>(operation.kind),
                                            static_cast<int64_t>(operation.input.nbytes())};
    // Reading first: it makes room for the others, and what they wrote may still be in the cache.
    if (operation.read < operation.written && staging_->CanRead(read)) {
      for (int r = 0; r < size_; ++r) {
        if (staging_->meaning(r, read) != meaning) {
          throw std::runtime_error(absl::StrCat("met another collective of rank ", r, " of this group"));
        }
      }
      Read(operation, operation.read);
      ++operation.read;
      staging_->DoneReading(read);
      return true;
    }
    // The second half of a piece of an all-reduce passes on what the first has given.
    const bool ready =
        operation.kind != Kind::kReduce || operation.written % 2 == 0 || operation.read == operation.written;
    if (operation.written < operation.rounds && ready && staging_->CanWrite(write)) {
      Write(operation, operation.written);
      ++operation.written;
      staging_->Written(write, meaning);
      return true;
    }
    return false;
  }

  std::string FindDead(const Operation& operation) const {
    const int64_t to_write = operation.first_round + std::min(operation.written, operation.rounds - 1);
    const int64_t to_read = operation.first_round + operation.read;
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && staging_->HoldsUp(r, to_write, to_read) && !IsAlive(processes_[r])) {
        return absl::StrCat("lost process ", processes_[r].pid);
      }
    }
    return "";
  }

  // Bytes that a slot has for each of the other ranks.
  int64_t Share() const { return kSlotBytes / (size_ - 1) / 64 * 64; }
  // Where in the slot of `from` that for `to` begins.
  int64_t ShareBegin(int from, int to) const { return (to < from ? to : to - 1) * Share(); }

  static uint8_t* Bytes(const at::Tensor& tensor) { return static_cast<uint8_t*>(tensor.data_ptr()); }

  bool IsSmallReduce(const Operation& operation) const {
    return operation.kind == Kind::kReduce && static_cast<int64_t>(operation.input.nbytes()) <= kSlotBytes;
  }

  // At least one, so that all ranks meet.
  int64_t Rounds(const Operation& operation) const {
    const int64_t bytes = static_cast<int64_t>(operation.input.nbytes());
    auto pieces = [](int64_t all, int64_t piece) { return std::max<int64_t>(1, CeilDivide(all, piece)); };
    switch (operation.kind) {
      case Kind::kGather:
        return pieces(bytes / size_, kSlotBytes);
      case Kind::kScatter:
        return pieces(bytes / size_, Share());
      case Kind::kReduce:
        return IsSmallReduce(operation) ? 1 : 2 * pieces(bytes, size_ * Share());
    }
    return 0;
  }

  struct Range {
    int64_t begin, count;
  };
  // Bytes of `rank`'s part in a round of a gather (of `piece` bytes a round) or a reduce-scatter.
  Range PartRange(const Operation& operation, int rank, int64_t round, int64_t piece) const {
    const int64_t part = static_cast<int64_t>(operation.input.nbytes()) / size_;
    const int64_t begin = std::min(part, round * piece);
    return {rank * part + begin, std::min(piece, part - begin)};
  }
  // Bytes of `rank`'s part of one piece of a large all-reduce.
  Range PieceRange(const Operation& operation, int rank, int64_t piece) const {
    const int64_t begin = piece * size_ * Share() + rank * Share();
    const int64_t bytes = static_cast<int64_t>(operation.input.nbytes());
    return {std::min(bytes, begin), std::clamp<int64_t>(bytes - begin, 0, Share())};
  }

  void Write(const Operation& operation, int64_t round) {
    uint8_t* const slot = staging_->slot(rank_, first(operation, round));
    const uint8_t* const input = Bytes(operation.input);
    if (operation.kind == Kind::kGather) {
      const Range own = PartRange(operation, rank_, round, kSlotBytes);
      std::memcpy(slot, input + own.begin, own.count);
    } else if (IsSmallReduce(operation)) {
      std::memcpy(slot, input, operation.input.nbytes());
    } else if (operation.kind == Kind::kReduce && round % 2 == 1) {
      const Range own = PieceRange(operation, rank_, round / 2);
      std::memcpy(slot, input + own.begin, own.count);
    } else {
      for (int to = 0; to < size_; ++to) {
        if (to == rank_) continue;
        const Range part = operation.kind == Kind::kScatter ? PartRange(operation, to, round, Share())
                                                            : PieceRange(operation, to, round / 2);
        std::memcpy(slot + ShareBegin(rank_, to), input + part.begin, part.count);
      }
    }
  }

  void Read(const Operation& operation, int64_t round) {
    const int64_t group_round = first(operation, round);
    uint8_t* const output = Bytes(operation.output);
    const uint8_t* const input = Bytes(operation.input);
    if (operation.kind == Kind::kGather || (operation.kind == Kind::kReduce && round % 2 == 1)) {
      for (int from = 0; from < size_; ++from) {
        if (from == rank_) continue;
        const Range part = operation.kind == Kind::kGather ? PartRange(operation, from, round, kSlotBytes)
                                                           : PieceRange(operation, from, round / 2);
        std::memcpy(output + part.begin, staging_->slot(from, group_round), part.count);
      }
      return;
    }
    const bool small = IsSmallReduce(operation);
    const Range own = small                              ? Range{0, static_cast<int64_t>(operation.input.nbytes())}
                      : operation.kind == Kind::kScatter ? PartRange(operation, rank_, round, Share())
                                                         : PieceRange(operation, rank_, round / 2);
    std::vector<const uint8_t*> from;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) {
        from.push_back(input + own.begin);
      } else {
        from.push_back(staging_->slot(r, group_round) + (small ? 0 : ShareBegin(r, rank_)));
      }
    }
    // A reduce-scatter has an output for this rank's part alone.
    uint8_t* const to = operation.kind == Kind::kScatter ? output + round * Share() : output + own.begin;
    Combine(from, operation, own.count, to);
  }

  static void Combine(const std::vector<const uint8_t*>& from, const Operation& operation, int64_t bytes, uint8_t* to) {
    if (bytes == 0) return;
    const at::ScalarType dtype = operation.input.scalar_type();
    if (dtype != at::kFloat || operation.max) {
      CombineAny(from, dtype, operation.max, bytes, to);
      return;
    }
    std::vector<const float*> floats;
    floats.reserve(from.size());
    for (const uint8_t* data : from) floats.push_back(reinterpret_cast<const float*>(data));
    SumFloats(floats, bytes / static_cast<int64_t>(sizeof(float)), reinterpret_cast<float*>(to));
  }

  static int64_t first(const Operation& operation, int64_t round) { return operation.first_round + round; }

  const int rank_, size_;
  const absl::Duration timeout_;
  const std::unique_ptr<SharedStaging> staging_;
  const std::vector<ProcessIdentity> processes_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::shared_ptr<Operation>> queue_;
  int64_t next_round_ = 0;
  int64_t first_ended_ = std::numeric_limits<int64_t>::max();
  bool stopping_ = false;

  std::thread thread_;  // last: it uses all of the above
};

class SharedMemoryWork : public TransportWork {
 public:
  SharedMemoryWork(std::shared_ptr<Engine> engine, std::shared_ptr<Operation> operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}
  ~SharedMemoryWork() override { engine_->Drop(*operation_); }
  void Wait() override { engine_->Wait(*operation_); }
  int64_t finished() const override { return engine_->Finished(*operation_); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Operation> operation_;
};

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(const ProcessGroupOptions& options, std::unique_ptr<SharedStaging> staging,
                        std::vector<ProcessIdentity> processes)
      : engine_(std::make_shared<Engine>(options, std::move(staging), std::move(processes))) {}

  at::Device device() const override { return at::kCPU; }

  std::unique_ptr<TransportWork> AllGatherInPlace(int64_t number, const at::Tensor& buffer) override {
    return Start({.number = number, .kind = Kind::kGather, .input = buffer, .output = buffer});
  }

  std::unique_ptr<TransportWork> ReduceScatterSum(int64_t number, const at::Tensor& output,
                                                  const at::Tensor& input) override {
    return Start({.number = number, .kind = Kind::kScatter, .input = input, .output = output});
  }

  std::unique_ptr<TransportWork> AllReduce(int64_t number, const at::Tensor& tensor, bool max) override {
    return Start({.number = number, .kind = Kind::kReduce, .input = tensor, .output = tensor, .max = max});
  }

  void Abort(int64_t first_number) override { engine_->Abort(first_number); }

 private:
  std::unique_ptr<TransportWork> Start(Operation operation) {
    auto shared = std::make_shared<Operation>(std::move(operation));
    engine_->Start(shared);
    return std::make_unique<SharedMemoryWork>(engine_, std::move(shared));
  }

  const std::shared_ptr<Engine> engine_;
};

// Rank 0's memory, attached to by all, or the error of one on all ranks.
absl::StatusOr<std::unique_ptr<SharedStaging>> Share(KeyValueStore* store, const ProcessGroupOptions& options) {
  const std::string prefix = options.name + "/shm/";
  absl::StatusOr<std::unique_ptr<SharedStaging>> staging;
  if (options.rank == 0) {
    staging = SharedStaging::Create(options.rank, options.size);
    QUARTET_RETURN_IF_ERROR(store->Set(prefix + "handle", staging.ok() ? (*staging)->handle() : "none"));
  } else {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> handle, store->Wait({prefix + "handle"}, options.timeout));
    staging = SharedStaging::Attach(handle[0], options.rank, options.size);
  }
  const std::string mine = staging.ok() ? "" : std::string(staging.status().message());
  QUARTET_RETURN_IF_ERROR(store->Set(absl::StrCat(prefix, "rank/", options.rank), "=" + mine));
  std::vector<std::string> keys;
  for (int r = 0; r < options.size; ++r) keys.push_back(absl::StrCat(prefix, "rank/", r));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> verdicts, store->Wait(keys, options.timeout));
  for (int r = 0; r < options.size; ++r) {
    if (verdicts[r] != "=") {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, ": ", verdicts[r].substr(1)));
    }
  }
  (*staging)->AllAttached();
  return staging;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeSharedMemoryTransport(KeyValueStore* store,
                                                                     const ProcessGroupOptions& options,
                                                                     const std::vector<ProcessIdentity>& processes) {
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<SharedStaging> staging, Share(store, options));
  return std::make_unique<SharedMemoryTransport>(options, std::move(staging), processes);
}

}  // namespace quartet
