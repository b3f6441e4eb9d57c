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
#include "core/comm/store_adapter.h"
#include "core/comm/transport.h"

namespace quartet {
namespace {

// An all-reduce of up to so many bytes goes straight to all peers; a larger one through a reduce-scatter and a gather.
constexpr int64_t kSmallBytes = 64 << 10;

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

class GlooWork : public CollectiveWork {
 public:
  // `finish` runs on the waiting thread after all messages have been passed.
  GlooWork(absl::Duration timeout, Works works, std::function<void()> finish)
      : timeout_(timeout), works_(std::move(works)), finish_(std::move(finish)) {}

  void Wait() override {
    try {
      for (auto& work : works_) work->wait();
      works_.clear();
    } catch (const std::exception& error) {
      const std::string cause = error.what();
      const std::string verdict = absl::StrContains(cause, "imed out")
                                      ? absl::StrCat("timed out after ", absl::FormatDuration(timeout_))
                                      : std::string("lost a peer");
      throw std::runtime_error(absl::StrCat(verdict, ": ", cause));
    }
    if (finish_) std::exchange(finish_, nullptr)();
  }

 private:
  const absl::Duration timeout_;
  Works works_;
  std::function<void()> finish_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(KeyValueStore* store, const ProcessGroupOptions& options) : options_(options) {
    auto gloo = c10d::ProcessGroupGloo::Options::create(absl::ToChronoMilliseconds(options.timeout));
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
    gloo->threads = 1;
    backend_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<StoreAdapter>(store, options.name + "/gloo/", options.timeout), options.rank, options.size,
        gloo);
  }

  at::Device device() const override { return at::kCPU; }

  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) override {
    const int64_t part = buffer.numel() / size();
    const at::Tensor own = buffer.narrow(0, rank() * part, part);
    return Exchange([&](int) { return own; }, [&](int peer) { return buffer.narrow(0, peer * part, part); }, nullptr);
  }

  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    const int64_t part = input.numel() / size();
    const at::Tensor received = at::empty({size(), part}, input.options());
    return Exchange([&](int peer) { return input.narrow(0, peer * part, part); },
                    [&](int peer) { return received.select(0, peer); },
                    [this, received, output, own = input.narrow(0, rank() * part, part)] {
                      const at::Tensor& first = rank() == 0 ? own : received.select(0, 0);
                      output.copy_(first);
                      for (int r = 1; r < size(); ++r) output.add_(r == rank() ? own : received.select(0, r));
                    });
  }

  std::unique_ptr<CollectiveWork> AllReduce(const at::Tensor& tensor, bool max) override {
    if (static_cast<int64_t>(tensor.nbytes()) > kSmallBytes) {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::AllreduceOptions reduce;
      reduce.reduceOp = max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
      return Passing({backend_->allreduce(tensors, reduce)}, nullptr);
    }
    const at::Tensor flat = tensor.view({-1});
    // Peers' answers may come before this rank's own value has been sent to all: it must not change until Wait.
    const at::Tensor received = at::empty({size(), flat.numel()}, flat.options());
    return Exchange([&](int) { return flat; }, [&](int peer) { return received.select(0, peer); },
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

 private:
  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  // Sends send(peer) to and receives receive(peer) from every other rank.
  template <class Send, class Receive>
  std::unique_ptr<CollectiveWork> Exchange(Send send, Receive receive, std::function<void()> finish) {
    const int tag = static_cast<int>(++exchanges_ & 0x7fffffff);
    Works works;
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
    return Passing(std::move(works), std::move(finish));
  }

  std::unique_ptr<CollectiveWork> Passing(Works works, std::function<void()> finish) {
    return std::make_unique<GlooWork>(options_.timeout, std::move(works), std::move(finish));
  }

  const ProcessGroupOptions options_;
  int64_t exchanges_ = 0;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeGlooTransport(KeyValueStore* store, const ProcessGroupOptions& options) {
  return std::make_unique<GlooTransport>(store, options);
}

}  // namespace quartet
