#include "core/comm/process_group.h"

#include <ATen/ops/ones.h>

#include <array>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/comm/transport.h"

namespace quartet {
namespace {

// With one rank a collective is a copy at most.
class LoneTransport : public Transport {
 public:
  at::Device device() const override { return at::kCPU; }
  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor&) override { return std::make_unique<DoneWork>(); }
  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    output.copy_(input);
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<CollectiveWork> AllReduce(const at::Tensor&, bool) override { return std::make_unique<DoneWork>(); }
};

// What all groups have in common: checks, counts, and errors that say which collective failed.
class Group : public ProcessGroup {
 public:
  Group(const ProcessGroupOptions& options, std::unique_ptr<Transport> transport)
      : options_(options), transport_(std::move(transport)) {}

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) override {
    CheckFlat(buffer);
    return Start(CollectiveKind::kAllGather, PeerBytes(buffer), [&] { return transport_->AllGatherInPlace(buffer); });
  }

  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    CheckFlat(input);
    TORCH_CHECK(output.numel() == input.numel() / size(), "reduce-scatter: output of ", output.numel(),
                " elements, expected ", input.numel() / size());
    return Start(CollectiveKind::kReduceScatter, PeerBytes(input),
                 [&] { return transport_->ReduceScatterSum(output, input); });
  }

  std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor& tensor) override { return AllReduce(tensor, false); }
  std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor& tensor) override { return AllReduce(tensor, true); }

  void Barrier() override {
    const at::Tensor one = at::ones({1}, at::TensorOptions(transport_->device()));
    Start(CollectiveKind::kBarrier, 0, [&] { return transport_->AllReduce(one, /*max=*/true); })->Wait();
    if (!one.is_meta()) one.item();  // waits for a device's stream
  }

  CommVolume volume(CollectiveKind kind) const override { return volumes_[static_cast<int>(kind)]; }

 private:
  class Work : public CollectiveWork {
   public:
    Work(std::string what, std::unique_ptr<CollectiveWork> work) : what_(std::move(what)), work_(std::move(work)) {}
    void Wait() override {
      try {
        work_->Wait();
      } catch (const std::exception& error) {
        throw std::runtime_error(absl::StrCat(what_, " ", error.what()));
      }
    }

   private:
    const std::string what_;
    const std::unique_ptr<CollectiveWork> work_;
  };

  void CheckFlat(const at::Tensor& buffer) const {
    TORCH_CHECK(buffer.dim() == 1 && buffer.is_contiguous() && buffer.numel() % size() == 0,
                "a collective needs a flat buffer of a multiple of ", size(), " elements, not one of ", buffer.numel());
  }

  // All parts of the buffer but one.
  int64_t PeerBytes(const at::Tensor& buffer) const {
    return static_cast<int64_t>(buffer.nbytes()) / size() * (size() - 1);
  }

  std::unique_ptr<CollectiveWork> AllReduce(const at::Tensor& tensor, bool max) {
    TORCH_CHECK(tensor.is_contiguous(), "all-reduce needs a contiguous tensor");
    // Here the parts need not be whole bytes.
    const int64_t bytes = 2 * static_cast<int64_t>(tensor.nbytes()) * (size() - 1) / size();
    return Start(CollectiveKind::kAllReduce, bytes, [&] { return transport_->AllReduce(tensor, max); });
  }

  template <class Begin>
  std::unique_ptr<CollectiveWork> Start(CollectiveKind kind, int64_t bytes, Begin begin) {
    CommVolume& volume = volumes_[static_cast<int>(kind)];
    ++volume.calls;
    volume.sent_bytes += bytes;
    volume.received_bytes += bytes;
    ++number_;
    const std::string what = absl::StrCat(CollectiveName(kind), " (collective ", number_, " of group ", options_.name,
                                          ") on rank ", rank(), " of ", size());
    try {
      return std::make_unique<Work>(what, begin());
    } catch (const std::exception& error) {
      throw std::runtime_error(absl::StrCat(what, " could not start: ", error.what()));
    }
  }

  const ProcessGroupOptions options_;
  const std::unique_ptr<Transport> transport_;
  std::array<CommVolume, kCollectiveKinds> volumes_;
  int64_t number_ = 0;
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

const char* CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "collective";
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(KeyValueStore* store,
                                                               const ProcessGroupOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat("process group ", options.name, ": rank ", options.rank,
                                                   " is not within a size of ", options.size));
  }
  if (options.device != "cpu" && options.device != "cuda" && options.device != "meta") {
    return absl::InvalidArgumentError(absl::StrCat("process group ", options.name, ": device \"", options.device,
                                                   "\" is not known; allowed: cpu, cuda, meta"));
  }
  if (options.device == "meta") return std::make_unique<Group>(options, MakeDryTransport());
  if (options.size == 1) return std::make_unique<Group>(options, std::make_unique<LoneTransport>());
  try {
    QUARTET_RETURN_IF_ERROR(AwaitRanks(store, options));
    QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, options.device == "cuda"
                                                                       ? MakeNcclTransport(store, options)
                                                                       : MakeGlooTransport(store, options));
    return std::make_unique<Group>(options, std::move(transport));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("process group ", options.name, ": rank ", options.rank, " of ",
                                               options.size, " at ", options.host, ": ", error.what()));
  }
}

}  // namespace quartet
