// Gloo's all-gather and reduce-scatter in LibTorch go through copies of the whole buffer, the latter through an
// all-reduce. Here every rank sends each peer what it needs and receives straight into place: the fewest bytes, no
// buffer beside the caller's for a gather, and sums in the order of the ranks, so that a run can be repeated bit by
// bit.

#include <ATen/ops/empty.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/comm/backends.h"
#include "core/comm/store_adapter.h"

namespace quartet {
namespace {

// An all-reduce of up to so many bytes goes straight to all peers; a larger one through a reduce-scatter and a gather.
constexpr int64_t kSmallBytes = 64 << 10;

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

class GlooWork : public CollectiveWork {
 public:
  // `finish` runs on the waiting thread after all messages have been passed.
  GlooWork(std::string what, absl::Duration timeout, Works works, std::function<void()> finish)
      : what_(std::move(what)), timeout_(timeout), works_(std::move(works)), finish_(std::move(finish)) {}

  void Wait() override {
    try {
      for (auto& work : works_) work->wait();
      works_.clear();
    } catch (const std::exception& error) {
      const std::string cause = error.what();
      const std::string verdict = absl::StrContains(cause, "imed out")
                                      ? absl::StrCat(" timed out after ", absl::FormatDuration(timeout_))
                                      : std::string(" lost a peer");
      throw std::runtime_error(absl::StrCat(what_, verdict, ": ", cause));
    }
    if (finish_) std::exchange(finish_, nullptr)();
  }

 private:
  const std::string what_;
  const absl::Duration timeout_;
  Works works_;
  std::function<void()> finish_;
};

class GlooGroup : public ProcessGroup {
 public:
  GlooGroup(KeyValueStore* store, const ProcessGroupOptions& options) : options_(options) {
    auto gloo = c10d::ProcessGroupGloo::Options::create(absl::ToChronoMilliseconds(options.timeout));
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
    gloo->threads = 1;
    backend_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<StoreAdapter>(store, options.name + "/gloo/", options.timeout), options.rank, options.size,
        gloo);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) override {
    const int64_t part = PartOf(buffer);
    const at::Tensor own = buffer.narrow(0, rank() * part, part);
    return Exchange(
        "all-gather", [&](int) { return own; }, [&](int peer) { return buffer.narrow(0, peer * part, part); }, nullptr);
  }

  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    const int64_t part = PartOf(input);
    TORCH_CHECK(output.numel() == part, "reduce-scatter: output of ", output.numel(), " elements, expected ", part);
    const at::Tensor received = at::empty({size(), part}, input.options());
    return Exchange(
        "reduce-scatter", [&](int peer) { return input.narrow(0, peer * part, part); },
        [&](int peer) { return received.select(0, peer); },
        [this, received, output, own = input.narrow(0, rank() * part, part)] {
          const at::Tensor& first = rank() == 0 ? own : received.select(0, 0);
          output.copy_(first);
          for (int r = 1; r < size(); ++r) output.add_(r == rank() ? own : received.select(0, r));
        });
  }

  std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor& tensor) override {
    return AllReduce(tensor, /*max=*/false);
  }

  std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor& tensor) override {
    return AllReduce(tensor, /*max=*/true);
  }

  void Barrier() override {
    const at::Tensor own = at::empty({1}, at::kByte), received = at::empty({size()}, at::kByte);
    Exchange(
        "barrier", [&](int) { return own; }, [&](int peer) { return received.narrow(0, peer, 1); }, nullptr)
        ->Wait();
  }

 private:
  int64_t PartOf(const at::Tensor& buffer) const {
    TORCH_CHECK(buffer.dim() == 1 && buffer.is_contiguous() && buffer.numel() % size() == 0,
                "a collective needs a flat buffer of a multiple of ", size(), " elements, not one of ", buffer.numel());
    return buffer.numel() / size();
  }

  std::unique_ptr<CollectiveWork> AllReduce(const at::Tensor& tensor, bool max) {
    TORCH_CHECK(tensor.is_contiguous(), "all-reduce needs a contiguous tensor");
    if (static_cast<int64_t>(tensor.nbytes()) > kSmallBytes) {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::AllreduceOptions reduce;
      reduce.reduceOp = max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
      ++sequence_;
      return Named("all-reduce", {backend_->allreduce(tensors, reduce)}, nullptr);
    }
    const at::Tensor flat = tensor.view({-1});
    // Peers' answers may come before this rank's own value has been sent to all: it must not change until Wait.
    const at::Tensor received = at::empty({size(), flat.numel()}, flat.options());
    return Exchange(
        "all-reduce", [&](int) { return flat; }, [&](int peer) { return received.select(0, peer); },
        [this, flat, received, max] {
          received.select(0, rank()).copy_(flat);
          // Every rank goes through the ranks in the same order: the same bits everywhere.
          flat.copy_(received.select(0, 0));
          for (int r = 1; r < size(); ++r) {
            if (max) {
              flat.copy_(flat.maximum(received.select(0, r)));
            } else {
              flat.add_(received.select(0, r));
            }
          }
        });
  }

  // Sends send(peer) to and receives receive(peer) from every other rank.
  template <class Send, class Receive>
  std::unique_ptr<CollectiveWork> Exchange(const char* collective, Send send, Receive receive,
                                           std::function<void()> finish) {
    const int tag = static_cast<int>(++sequence_ & 0x7fffffff);
    Works works;
    try {
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() + size() - step) % size();
        std::vector<at::Tensor> tensors = {receive(from)};
        if (tensors[0].numel() > 0) works.push_back(backend_->recv(tensors, from, tag));
      }
      for (int step = 1; step < size(); ++step) {
        const int to = (rank() + step) % size();
        std::vector<at::Tensor> tensors = {send(to)};
        if (tensors[0].numel() > 0) works.push_back(backend_->send(tensors, to, tag));
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(absl::StrCat(Describe(collective), " could not start: ", error.what()));
    }
    return Named(collective, std::move(works), std::move(finish));
  }

  std::string Describe(const char* collective) const {
    return absl::StrCat(collective, " (collective ", sequence_, " of group ", options_.name, ") on rank ", rank(),
                        " of ", size());
  }

  std::unique_ptr<CollectiveWork> Named(const char* collective, Works works, std::function<void()> finish) {
    return std::make_unique<GlooWork>(Describe(collective), options_.timeout, std::move(works), std::move(finish));
  }

  const ProcessGroupOptions options_;
  int64_t sequence_ = 0;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeGlooGroup(KeyValueStore* store, const ProcessGroupOptions& options) {
  return std::make_unique<GlooGroup>(store, options);
}

}  // namespace quartet
