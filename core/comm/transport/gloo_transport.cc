// Gloo's all-gather and reduce-scatter in LibTorch go through copies of the whole buffer, the latter through an
// all-reduce. Here every rank sends each peer what it needs and receives straight into place: the fewest bytes, no
// buffer beside the caller's for a gather, and sums in the order of the ranks, so that a run can be repeated bit by
// bit.

#include <ATen/ops/empty.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/division.h"
#include "core/comm/transport/store_adapter.h"
#include "core/comm/transport/transport.h"

namespace quartet {
namespace {

// An all-reduce of up to so many bytes goes straight to all peers; a larger one through reduce-scatters and gathers of
// pieces of the second size, which is also what it needs beside the tensor.
constexpr int64_t kSmallBytes = 64 << 10;
constexpr int64_t kPieceBytes = 4 << 20;

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// The messages under way, so that waiting for them can be ended from another thread.
class Messages {
 public:
  void Add(int64_t number, const c10::intrusive_ptr<c10d::Work>& work) {
    std::lock_guard<std::mutex> lock(mutex_);
    Check(number);
    under_way_[number].push_back(work);
  }

  // Waits for all messages of a collective.
  void Wait(int64_t number) {
    Works works;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      works = under_way_[number];
    }
    for (auto& work : works) {
      if (!work->wait()) throw std::runtime_error("ended from outside");
    }
    Drop(number);
  }

  void Drop(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_.erase(number);
  }

  void Abort(int64_t first_number) {
    std::lock_guard<std::mutex> lock(mutex_);
    first_ended_ = std::min(first_ended_, first_number);
    for (auto it = under_way_.lower_bound(first_number); it != under_way_.end(); ++it) {
      for (auto& work : it->second) work->abort();
    }
  }

 private:
  void Check(int64_t number) const {
    if (number >= first_ended_) throw std::runtime_error("ended from outside");
  }

  std::mutex mutex_;
  std::map<int64_t, Works> under_way_;
  int64_t first_ended_ = std::numeric_limits<int64_t>::max();
};

class GlooWork : public TransportWork {
 public:
  // `finish` runs on the waiting thread after all messages have been passed.
  GlooWork(std::shared_ptr<Messages> messages, int64_t number, absl::Duration timeout, std::function<void()> finish)
      : messages_(std::move(messages)), number_(number), timeout_(timeout), finish_(std::move(finish)) {}
  ~GlooWork() override { messages_->Drop(number_); }

  void Wait() override {
    try {
      messages_->Wait(number_);
      if (finish_) std::exchange(finish_, nullptr)();
    } catch (const std::exception& error) {
      const std::string cause = error.what();
      if (!absl::StrContains(cause, "imed out")) throw;
      throw std::runtime_error(absl::StrCat("timed out after ", absl::FormatDuration(timeout_), ": ", cause));
    }
  }

 private:
  const std::shared_ptr<Messages> messages_;
  const int64_t number_;
  const absl::Duration timeout_;
  std::function<void()> finish_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(KeyValueStore* store, const ProcessGroupOptions& options) : options_(options) {
    // Gloo writes to its sockets in a way that ends the process where the peer has gone.
    struct sigaction present = {};
    if (sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
    auto gloo = c10d::ProcessGroupGloo::Options::create(absl::ToChronoMilliseconds(options.timeout));
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
    gloo->threads = 1;
    backend_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<StoreAdapter>(store, options.name + "/gloo/", options.timeout), options.rank, options.size,
        gloo);
  }

  at::Device device() const override { return at::kCPU; }

  std::unique_ptr<TransportWork> AllGatherInPlace(int64_t number, const at::Tensor& buffer) override {
    const int64_t part = buffer.numel() / size();
    const at::Tensor own = buffer.narrow(0, rank() * part, part);
    Exchange(
        {number, Kind::kGather, part}, [&](int) { return own; },
        [&](int peer) { return buffer.narrow(0, peer * part, part); });
    return NewWork(number, nullptr);
  }

  std::unique_ptr<TransportWork> ReduceScatterSum(int64_t number, const at::Tensor& output,
                                                  const at::Tensor& input) override {
    const int64_t part = input.numel() / size();
    const at::Tensor received = at::empty({size(), part}, input.options());
    Exchange(
        {number, Kind::kScatter, part}, [&](int peer) { return input.narrow(0, peer * part, part); },
        [&](int peer) { return received.select(0, peer); });
    return NewWork(number, [this, received, output, own = input.narrow(0, rank() * part, part)] {
      Combine(received, own, /*max=*/false, output);
    });
  }

  std::unique_ptr<TransportWork> AllReduce(int64_t number, const at::Tensor& tensor, bool max) override {
    const at::Tensor flat = tensor.view({-1});
    if (static_cast<int64_t>(flat.nbytes()) > kSmallBytes) {
      const at::Tensor first = Scatter(number, flat, 0);
      return NewWork(number, [=, this] { FinishLargeAllReduce(number, flat, max, first); });
    }
    // Peers' answers may come before this rank's own value has been sent to all: it must not change until Wait.
    const at::Tensor received = at::empty({size(), flat.numel()}, flat.options());
    Exchange(
        {number, Kind::kReduce, flat.numel()}, [&](int) { return flat; },
        [&](int peer) { return received.select(0, peer); });
    return NewWork(number, [this, flat, received, max] { Combine(received, flat.clone(), max, flat); });
  }

  void Abort(int64_t first_number) override { messages_->Abort(first_number); }

 private:
  enum class Kind { kGather, kScatter, kReduce };
  // What both sides of a message must agree on.
  struct Meaning {
    int64_t number;
    Kind kind;
    int64_t elements;
    int64_t piece = 0;
  };

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  // Ranks that have got out of step wait for each other's messages in vain rather than take them for others.
  static int Tag(const Meaning& meaning) {
    uint64_t hash = 0;
    for (const int64_t part : {meaning.number, static_cast<int64_t>(meaning.kind), meaning.elements, meaning.piece}) {
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 29;
    }
    return static_cast<int>(hash >> 33);
  }

  // Begins to send send(peer) to and to receive receive(peer) from every other rank.
  template <class Send, class Receive>
  void Exchange(const Meaning& meaning, Send send, Receive receive) {
    const int tag = Tag(meaning);
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() + size() - step) % size();
      std::vector<at::Tensor> tensors = {receive(from)};
      if (tensors[0].numel() > 0) messages_->Add(meaning.number, backend_->recv(tensors, from, tag));
    }
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      std::vector<at::Tensor> tensors = {send(to)};
      if (tensors[0].numel() > 0) messages_->Add(meaning.number, backend_->send(tensors, to, tag));
    }
  }

  // Into `output`: the sum or maximum over ranks, in the order of the ranks on all of them: the same bits everywhere.
  void Combine(const at::Tensor& received, const at::Tensor& own, bool max, const at::Tensor& output) const {
    for (int r = 0; r < size(); ++r) {
      const at::Tensor theirs = r == rank() ? own : received.select(0, r);
      if (r == 0) {
        output.copy_(theirs);
      } else if (max) {
        output.copy_(output.maximum(theirs));
      } else {
        output.add_(theirs);
      }
    }
  }

  // A rank's part of one piece of a large all-reduce; parts at the end may be shorter or empty.
  at::Tensor PartOf(const at::Tensor& flat, int64_t piece, int peer) const {
    const int64_t whole = kPieceBytes / static_cast<int64_t>(flat.element_size());
    const int64_t begin = piece * whole, count = std::min(whole, flat.numel() - begin);
    const int64_t part = CeilDivide(count, size());
    const int64_t first = std::min(count, peer * part);
    return flat.narrow(0, begin + first, std::min(part, count - first));
  }

  at::Tensor Scatter(int64_t number, const at::Tensor& flat, int64_t piece) {
    const int64_t own = PartOf(flat, piece, rank()).numel();
    const at::Tensor received = at::empty({size(), own}, flat.options());
    Exchange(
        {number, Kind::kReduce, flat.numel(), 2 * piece}, [&](int peer) { return PartOf(flat, piece, peer); },
        [&](int peer) { return received.select(0, peer); });
    return received;
  }

  void FinishLargeAllReduce(int64_t number, const at::Tensor& flat, bool max, at::Tensor received) {
    for (int64_t piece = 0;; ++piece) {
      const at::Tensor own = PartOf(flat, piece, rank());
      Combine(received, own.clone(), max, own);
      Exchange(
          {number, Kind::kReduce, flat.numel(), 2 * piece + 1}, [&](int) { return own; },
          [&](int peer) { return PartOf(flat, piece, peer); });
      messages_->Wait(number);
      if ((piece + 1) * kPieceBytes >= static_cast<int64_t>(flat.nbytes())) return;
      received = Scatter(number, flat, piece + 1);
      messages_->Wait(number);
    }
  }

  std::unique_ptr<TransportWork> NewWork(int64_t number, std::function<void()> finish) {
    return std::make_unique<GlooWork>(messages_, number, options_.timeout, std::move(finish));
  }

  const ProcessGroupOptions options_;
  const std::shared_ptr<Messages> messages_ = std::make_shared<Messages>();
  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeGlooTransport(KeyValueStore* store, const ProcessGroupOptions& options) {
  return std::make_unique<GlooTransport>(store, options);
}

}  // namespace quartet
