#include "core/comm/process_group.h"

#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/comm/backends.h"

namespace quartet {
namespace {

class DoneWork : public CollectiveWork {
 public:
  void Wait() override {}
};

class GroupOfOne : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor&) override { return std::make_unique<DoneWork>(); }
  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    output.copy_(input);
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor&) override { return std::make_unique<DoneWork>(); }
  std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor&) override { return std::make_unique<DoneWork>(); }
  void Barrier() override {}
};

// All ranks show up in the store first, so that one that does not come is named; the backends would only say that they
// could not connect.
absl::Status AwaitRanks(KeyValueStore* store, const ProcessGroupOptions& options) {
  auto key = [&](int rank) { return absl::StrCat(options.name, "/rank/", rank); };
  absl::Status arrived = store->Set(key(options.rank), options.host);
  if (!arrived.ok()) return arrived;
  const absl::Time deadline = absl::Now() + options.timeout;
  std::vector<int> missing;
  for (int rank = 0; rank < options.size; ++rank) {
    auto value = store->Wait({key(rank)}, std::max(deadline - absl::Now(), absl::ZeroDuration()));
    if (absl::IsDeadlineExceeded(value.status())) {
      missing.push_back(rank);
    } else if (!value.ok()) {
      return value.status();
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("process group ", options.name, ": rank ", options.rank, " of ",
                                                  options.size, " waited ", absl::FormatDuration(options.timeout),
                                                  "; not there: rank ", absl::StrJoin(missing, ", ")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(KeyValueStore* store,
                                                               const ProcessGroupOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat("process group ", options.name, ": rank ", options.rank,
                                                   " is not within a size of ", options.size));
  }
  if (options.device != "cpu" && options.device != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("process group ", options.name, ": device \"", options.device,
                                                   "\" is not known; allowed: cpu, cuda"));
  }
  if (options.size == 1) return std::make_unique<GroupOfOne>();
  try {
    absl::Status arrived = AwaitRanks(store, options);
    if (!arrived.ok()) return arrived;
    return options.device == "cuda" ? MakeNcclGroup(store, options) : MakeGlooGroup(store, options);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("process group ", options.name, ": rank ", options.rank, " of ",
                                               options.size, " at ", options.host, ": ", error.what()));
  }
}

}  // namespace quartet
