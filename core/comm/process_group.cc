#include "core/comm/process_group.h"

#include <ATen/ops/ones.h>

#include <array>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/base/trace.h"
#include "core/comm/rank_watch.h"
#include "core/comm/transport/process_identity.h"
#include "core/comm/transport/transport.h"
#include "core/memory/catch_exceptions.h"

namespace quartet {
namespace {

// What all groups have in common: checks, counts, traces, and errors that say which collective failed and through whom.
class Group : public ProcessGroup {
 public:
  // `watch` is null where there are no peers.
  Group(const ProcessGroupOptions& options, std::unique_ptr<Transport> transport, std::unique_ptr<RankWatch> watch)
      : options_(options), transport_(std::move(transport)), watch_(std::move(watch)) {
    for (int r = static_cast<int>(options_.rank_names.size()); r < size(); ++r) options_.rank_names.push_back(r);
  }

  absl::Status Watch(const std::vector<std::string>& addresses) {
    return watch_->Start(rank(), addresses, options_.rank_names,
                         [this](int64_t first_number) { transport_->Abort(first_number); });
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) override {
    CheckFlat(buffer);
    return Start(CollectiveKind::kAllGather, buffer, PeerBytes(buffer),
                 [&] { return transport_->AllGatherInPlace(number_, buffer); });
  }

  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    CheckFlat(input);
    TORCH_CHECK(output.is_contiguous() && output.numel() == input.numel() / size(), "reduce-scatter: output of ",
                output.numel(), " elements, expected ", input.numel() / size(), ", contiguous");
    return Start(CollectiveKind::kReduceScatter, input, PeerBytes(input),
                 [&] { return transport_->ReduceScatterSum(number_, output, input); });
  }

  std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor& tensor) override { return AllReduce(tensor, false); }
  std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor& tensor) override { return AllReduce(tensor, true); }

  void Barrier() override {
    const at::Tensor one = at::ones({1}, at::TensorOptions(transport_->device()));
    Start(CollectiveKind::kBarrier, one, 0, [&] { return transport_->AllReduce(number_, one, /*max=*/true); })->Wait();
    if (!one.is_meta()) one.item();  // waits for a device's stream
  }

  void Leave(const std::string& why) override {
    if (watch_ == nullptr) return;
    watch_->Leave(why);
    transport_->Abort(0);
  }

  absl::Duration timeout() const override { return options_.timeout; }
  CommVolume volume(CollectiveKind kind) const override { return volumes_[static_cast<int>(kind)]; }

 private:
  struct Call {
    int64_t number;
    CollectiveKind kind;
    int64_t bytes;  // of the whole tensor
    int64_t start;  // of the trace's clock
  };

  class Work : public CollectiveWork {
   public:
    Work(Group* group, const Call& call, std::unique_ptr<TransportWork> work)
        : group_(group), call_(call), work_(std::move(work)) {}
    void Wait() override {
      const int64_t start = TraceNow();
      try {
        work_->Wait();
      } catch (const std::exception& error) {
        group_->Fail(call_, error);
      }
      group_->Finish(call_, work_->finished(), start);
    }

   private:
    Group* const group_;
    const Call call_;
    const std::unique_ptr<TransportWork> work_;
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
    return Start(CollectiveKind::kAllReduce, tensor, bytes,
                 [&] { return transport_->AllReduce(number_, tensor, max); });
  }

  // `begin` starts the collective `number_`.
  template <class Begin>
  std::unique_ptr<CollectiveWork> Start(CollectiveKind kind, const at::Tensor& tensor, int64_t moved, Begin begin) {
    CommVolume& volume = volumes_[static_cast<int>(kind)];
    ++volume.calls;
    volume.sent_bytes += moved;
    volume.received_bytes += moved;
    const Call call = {++number_, kind, static_cast<int64_t>(tensor.nbytes()), TraceNow()};
    if (watch_ != nullptr) watch_->Begin(call.number, kind, call.bytes);
    try {
      return std::make_unique<Work>(this, call, begin());
    } catch (const std::exception& error) {
      Fail(call, error);
    }
  }

  // `finished` is 0 where the end of waiting is all that is known.
  void Finish(const Call& call, int64_t finished, int64_t wait_start) {
    if (watch_ != nullptr) watch_->Finish(call.number);
    if (call.start == 0 || wait_start == 0) return;
    const int64_t now = TraceNow();
    const int name = options_.rank_names[rank()];
    TraceSpent(CollectiveName(call.kind), CollectiveName(call.kind), call.start, finished != 0 ? finished : now,
               call.bytes, name);
    TraceSpent("", absl::StrCat("wait for ", CollectiveName(call.kind)), wait_start, now, call.bytes, name);
  }

  // Of a handler that has caught `error`.
  [[noreturn]] void Fail(const Call& call, const std::exception& error) {
    if (IsOutOfMemory(error)) {
      // This rank's own: no other is to blame, and its type says what it is to who catches it.
      const std::string message = error.what();
      Leave(absl::StrCat("no memory for the ", CollectiveName(call.kind), ": ", message.substr(0, message.find('\n'))));
      throw;
    }
    std::string who;
    if (watch_ != nullptr) {
      who = absl::StrCat(watch_->Diagnose(call.number), "; here it ");
      transport_->Abort(0);  // what else is under way must not wait for another deadline
    }
    throw std::runtime_error(absl::StrCat(CollectiveName(call.kind), " (collective ", call.number, " of group ",
                                          options_.name, ") on rank ", options_.rank_names[rank()], " of ",
                                          rank_names_are_numbers_ ? "" : "a group of ", size(), " failed: ", who,
                                          error.what()));
  }

  ProcessGroupOptions options_;
  const bool rank_names_are_numbers_ = options_.rank_names.empty();
  const std::unique_ptr<Transport> transport_;
  std::array<CommVolume, kCollectiveKinds> volumes_;
  int64_t number_ = 0;
  // Last: it tells the others that this rank leaves before the transport closes its connections, and it calls the
  // transport.
  const std::unique_ptr<RankWatch> watch_;
};

// All ranks show up in the store first, so that one that does not come is named; the backends would only say that they
// could not connect. Returns what each rank says of itself.
absl::StatusOr<std::vector<std::string>> AwaitRanks(KeyValueStore* store, const ProcessGroupOptions& options,
                                                    const std::string& mine) {
  auto key = [&](int rank) { return absl::StrCat(options.name, "/rank/", rank); };
  QUARTET_RETURN_IF_ERROR(store->Set(key(options.rank), mine));
  const Deadline deadline = Deadline::In(options.timeout);
  std::vector<std::string> all;
  std::vector<int> missing;
  for (int rank = 0; rank < options.size; ++rank) {
    auto value = store->Wait({key(rank)}, deadline.left());
    if (absl::IsDeadlineExceeded(value.status())) {
      missing.push_back(rank);
    } else if (!value.ok()) {
      return value.status();
    } else {
      all.push_back(value->front());
    }
  }
  if (missing.empty()) return all;
  return absl::DeadlineExceededError(absl::StrCat("process group ", options.name, ": rank ", options.rank, " of ",
                                                  options.size, " waited ", absl::FormatDuration(options.timeout),
                                                  "; not there: rank ", absl::StrJoin(missing, ", ")));
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(KeyValueStore* store, const ProcessGroupOptions& options,
                                                         const std::vector<ProcessIdentity>& processes) {
  if (options.device == "cuda") return MakeNcclTransport(store, options);
  bool one_host = true;
  for (const ProcessIdentity& process : processes) {
    one_host = one_host && !process.host.empty() && process.host == processes[0].host;
  }
  if (options.backend == "shm" && !one_host) {
    return absl::FailedPreconditionError(
        absl::StrCat("process group ", options.name, ": backend \"shm\" needs all ranks on one host, as one user"));
  }
  if (options.backend == "gloo" || !one_host) return MakeGlooTransport(store, options);
  auto shared = MakeSharedMemoryTransport(store, options, processes);
  if (shared.ok() || options.backend == "shm") return shared;
  if (options.rank == 0) {
    QUARTET_LOG(kWarning) << "process group " << options.name
                          << " uses Gloo: " << std::string(shared.status().message());
  }
  return MakeGlooTransport(store, options);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> Connect(KeyValueStore* store, const ProcessGroupOptions& options) {
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<RankWatch> watch, RankWatch::Open(options.host));
  QUARTET_ASSIGN_OR_RETURN(
      const std::vector<std::string> ranks,
      AwaitRanks(store, options, absl::StrCat(watch->address(), " ", OwnProcessIdentity().ToString())));
  std::vector<std::string> addresses;
  std::vector<ProcessIdentity> processes;
  for (const std::string& rank : ranks) {
    const std::vector<std::string> fields = absl::StrSplit(rank, ' ');
    if (fields.size() != 2) return absl::InternalError(absl::StrCat("process group ", options.name, ": '", rank, "'"));
    addresses.push_back(fields[0]);
    QUARTET_ASSIGN_OR_RETURN(ProcessIdentity process, ProcessIdentity::Parse(fields[1]));
    processes.push_back(std::move(process));
  }
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, MakeTransport(store, options, processes));
  auto group = std::make_unique<Group>(options, std::move(transport), std::move(watch));
  QUARTET_RETURN_IF_ERROR(group->Watch(addresses));
  return group;
}

}  // namespace

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
  if (options.backend != "auto" && options.backend != "gloo" && options.backend != "shm") {
    return absl::InvalidArgumentError(absl::StrCat("process group ", options.name, ": backend \"", options.backend,
                                                   "\" is not known; allowed: auto, gloo, shm"));
  }
  if (options.backend != "auto" && options.device == "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("process group ", options.name, ": backend \"", options.backend,
                                                   "\" is for device \"cpu\"; ranks on device \"cuda\" use NCCL"));
  }
  if (!options.rank_names.empty() && options.rank_names.size() != static_cast<size_t>(options.size)) {
    return absl::InvalidArgumentError(absl::StrCat("process group ", options.name, ": ", options.rank_names.size(),
                                                   " names for ", options.size, " ranks"));
  }
  if (options.device == "meta") return std::make_unique<Group>(options, MakeDryTransport(options), nullptr);
  if (options.size == 1) return std::make_unique<Group>(options, std::make_unique<LoneTransport>(), nullptr);
  try {
    return Connect(store, options);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("process group ", options.name, ": rank ", options.rank, " of ",
                                               options.size, " at ", options.host, ": ", error.what()));
  }
}

}  // namespace quartet
