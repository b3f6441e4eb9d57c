// Collectives between the ranks of one service, over LibTorch's c10d backends.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/comm/key_value_store.h"
#include "core/comm/local_store.h"  // IWYU pragma: export

namespace quartet {

// A collective under way. Wait throws (c10::Error or std::runtime_error) if it failed or timed out; the tensors given
// to the collective must live until then. Dropping it without Wait is allowed only after the group failed.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  virtual void Wait() = 0;
};

enum class CollectiveKind { kAllGather, kReduceScatter, kAllReduce, kBarrier };
inline constexpr int kCollectiveKinds = 4;
// "all-gather", "reduce-scatter", ...
const char* CollectiveName(CollectiveKind kind);

// What one rank gives to and takes from the others. Counted are the payloads that the collective needs whatever carries
// it: (n - 1) parts each way for a gather or a reduce-scatter, twice that for an all-reduce, which is one after the
// other. Packet headers, barriers, and what a transport repeats are not in it.
struct CommVolume {
  int64_t calls = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
};

// One thread at a time. All ranks must make the same calls in the same order. Failures are exceptions, which engines
// turn into a Status at their boundary; after one the group is not usable.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `buffer` [size * n], flat and contiguous; rank r's part is its r-th n elements, filled on entry; all are filled on
  // return.
  virtual std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) = 0;
  // Sums `input` [size * n], flat and contiguous, over ranks; rank r receives the r-th n elements in `output` [n].
  virtual std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor& tensor) = 0;
  virtual std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor& tensor) = 0;
  virtual void Barrier() = 0;

  // Of this rank, since the group was made; started collectives count.
  virtual CommVolume volume(CollectiveKind kind) const = 0;
};

struct ProcessGroupOptions {
  int rank = 0;
  int size = 1;
  // "cpu": Gloo. "cuda": NCCL (in builds with --config=cuda). "meta": a dry group of any rank and size, which meets no
  // peers and needs no store: collectives return at once, leave what tensors hold as it is, and are counted.
  std::string device = "cpu";
  // Address that Gloo's sockets are bound to.
  std::string host = "127.0.0.1";
  // Longest time of one collective.
  absl::Duration timeout = absl::Seconds(300);
  // Prefix of this group's keys; a group made anew needs a new one.
  std::string name = "default";
};

// With size 1 no sockets are opened and the collectives are copies. `store` must outlive the group; it may be null for
// a dry group and for size 1.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(KeyValueStore* store,
                                                               const ProcessGroupOptions& options);

}  // namespace quartet
