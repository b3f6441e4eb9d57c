// Collectives between the ranks of one service: over shared memory, Gloo or NCCL.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/comm/collective_kind.h"
#include "core/comm/store/key_value_store.h"
#include "core/comm/store/local_store.h"                // IWYU pragma: export
#include "core/comm/transport/collective_work.h"        // IWYU pragma: export
#include "core/comm/transport/process_group_options.h"  // IWYU pragma: export

namespace quartet {

// What one rank gives to and takes from the others. Counted are the payloads that the collective needs whatever carries
// it: (n - 1) parts each way for a gather or a reduce-scatter, twice that for an all-reduce, which is one after the
// other. Packet headers, barriers, and what a transport repeats are not in it.
struct CommVolume {
  int64_t calls = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
};

// One thread at a time. All ranks must make the same calls in the same order. Failures are exceptions, which engines
// turn into a Status at their boundary; after one the group is not usable. The message names the ranks that are
// missing: whose process has ended or is stopped, who has not come, who takes part in another collective, or who has
// left. A rank that lacks the memory for a collective throws what says so (core/memory/catch_exceptions.h) and leaves.
// What one rank finds out it tells the others, whose collectives then fail too. A rank leaves when its group is
// destroyed; collectives that it has finished by then are not disturbed.
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

  // Takes no further part: the others' collectives that this rank has not finished fail at once, naming it and `why`.
  // For a rank that has failed alone and knows it.
  virtual void Leave(const std::string& why) = 0;

  // Of this rank, since the group was made; started collectives count.
  virtual CommVolume volume(CollectiveKind kind) const = 0;

  // As ProcessGroupOptions.
  virtual absl::Duration timeout() const = 0;
};

// With size 1 no sockets are opened and the collectives are copies. `store` must outlive the group; it may be null for
// a dry group and for size 1.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(KeyValueStore* store,
                                                               const ProcessGroupOptions& options);

}  // namespace quartet
