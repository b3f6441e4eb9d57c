#include "rollout/calls/generate_calls.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/fail_point.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/stopwatch.h"
#include "core/errors/exceptions.h"
#include "core/service/rpc/status_conversion.h"
#include "core/service/rpc/stream_io.h"

namespace quartet {

// One call: reads its batch, is admitted, writes its replies one at a time, finishes. Each of gRPC's operations is
// begun by the end of the one before, by the writer thread where there was nothing to write, or by the client's
// leaving.
class GenerateCall final : public GenerateCalls::Reactor, private CallSink {
 public:
  static GenerateCall* Begin(GenerateCalls* calls) {
    const std::shared_ptr<GenerateCall> call(new GenerateCall(calls));
    call->self_ = call;
    if (absl::Status status = call->CheckRoom(); !status.ok()) {
      call->End(status);
    } else {
      call->StartRead(&call->request_);
    }
    return call.get();
  }

  // Begins the next operation, unless one runs. Any thread that does not hold the dispatcher's lock.
  void Advance() {
    std::unique_lock lock(mutex_);
    if (writing_ || finished_) return;
    if (!replies_.empty()) {
      writing_ = true;
      reply_ = std::move(replies_.front());
      replies_.pop_front();
      lock.unlock();
      StartWrite(&reply_);
      return;
    }
    // Its place among the dispatcher's calls is given back before the client knows of the end.
    if (!end_.has_value() || admitting_) return;
    finished_ = true;
    std::unique_ptr<Dispatcher::Admission> admission = std::move(admission_);
    lock.unlock();
    admission.reset();
    // The client may make its next call as soon as it knows of the end.
    if (has_place_) --calls_.calls_;
    if (end_->ok() && sequences_ > 1) LogRate();  // agents make a call for each sequence
    Finish(ToGrpc(*end_));
  }

 private:
  explicit GenerateCall(GenerateCalls* calls) : calls_(*calls), reader_(calls->limits_) {}

  absl::Status CheckRoom() {
    QUARTET_RETURN_IF_ERROR(calls_.backend_->CheckServing());
    QUARTET_RETURN_IF_ERROR(calls_.backend_->CheckWeights());
    for (int64_t calls = calls_.calls_; calls < calls_.max_calls_;) {
      if (!calls_.calls_.compare_exchange_weak(calls, calls + 1)) continue;
      has_place_ = true;
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        absl::StrCat(calls_.max_calls_, " calls wait or run: rollout.max_calls = ", calls_.max_calls_, " is reached"));
  }

  // ---- From gRPC.

  void OnReadDone(bool ok) override {
    absl::Status status;
    if (ok) {
      status = CatchAll([this] { return reader_.Take(&request_); });
      if (status.ok()) {
        StartRead(&request_);
        return;
      }
    } else {
      status = CatchAll([this] { return Admit(); });
    }
    if (!status.ok()) EndNow(status);
  }

  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
    }
    if (ok) {
      Advance();
    } else {
      OnCancel();
    }
  }

  // The client has closed the call, or its deadline has passed.
  void OnCancel() override {
    EndNow(absl::CancelledError("the client has closed the call, or its deadline has passed"));
  }

  void OnDone() override { self_.reset(); }

  absl::Status Admit() {
    QUARTET_ASSIGN_OR_RETURN(Batch<GenerateRequest> batch, reader_.End());
    QUARTET_RETURN_IF_ERROR(calls_.backend_->Check(batch.header.sampling(), batch.items));
    QUARTET_RETURN_IF_ERROR(FailPoint("rollout.generate"));
    since_admitted_ = {};
    share_ = std::move(batch.share);
    const auto begin = [this, version = batch.header.policy_version()] {
      return calls_.backend_->CheckVersion(version);
    };
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return absl::OkStatus();  // the client has left
      admitting_ = true;
    }
    std::unique_ptr<Dispatcher::Admission> admission;
    const absl::Status admitted = CatchAll([&]() -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(admission, calls_.dispatcher_->Begin(batch.header, std::move(batch.items), begin,
                                                                    static_cast<CallSink*>(this)));
      return absl::OkStatus();
    });
    {
      const std::lock_guard lock(mutex_);
      admitting_ = false;
      admission_ = std::move(admission);
    }
    Advance();  // it may have ended meanwhile
    return admitted;
  }

  // What there is to be written is not.
  void EndNow(const absl::Status& status) {
    {
      const std::lock_guard lock(mutex_);
      if (!end_.has_value() || end_->ok()) {
        if (!finished_) end_ = status;
      }
      replies_.clear();
    }
    Advance();
  }

  void LogRate() const {
    const double seconds = since_admitted_.Seconds();
    QUARTET_LOG(kInfo) << "generated " << sequences_ << " sequences, " << tokens_ << " tokens in " << seconds << " s ("
                       << static_cast<double>(tokens_) / seconds << " tokens/s)";
  }

  // ---- From the dispatcher, under its lock.

  void Begun() override { share_.Release(); }  // the prompts are the ranks' now

  void Reply(GenerateReply reply) override {
    const std::lock_guard lock(mutex_);
    if (end_.has_value()) return;
    if (reply.has_sequence()) {
      ++sequences_;
      tokens_ += reply.sequence().log_probs_size();
    }
    replies_.push_back(std::move(reply));
    if (!writing_ && replies_.size() == 1) calls_.Wake(self_);
  }

  void End(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    if (end_.has_value()) return;
    end_ = status;
    if (!writing_) calls_.Wake(self_);
  }

  GenerateCalls& calls_;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  bool has_place_ = false;              // among max_calls, until finished_
  GenerateRequest request_;
  BatchReader<GenerateRequest> reader_;
  GenerateReply reply_;  // that is being written
  Stopwatch since_admitted_;
  ByteBudget::Share share_;  // of the prompts, until the call has begun

  std::mutex mutex_;
  // Guarded by mutex_; end_ does not change after finished_.
  std::unique_ptr<Dispatcher::Admission> admission_;
  std::deque<GenerateReply> replies_;
  std::optional<absl::Status> end_;
  bool writing_ = false;
  bool admitting_ = false;  // by Admit, which sets admission_
  bool finished_ = false;
  int64_t sequences_ = 0;
  int64_t tokens_ = 0;
};

GenerateCalls::GenerateCalls(RolloutBackend* backend, Dispatcher* dispatcher, BatchLimits* limits, int64_t max_calls)
    : backend_(backend), dispatcher_(dispatcher), limits_(limits), max_calls_(max_calls), writer_([this] {
        WriteNews();
      }) {}

GenerateCalls::~GenerateCalls() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }
  writer_.join();
}

GenerateCalls::Reactor* GenerateCalls::Begin(grpc::CallbackServerContext* /*context*/) {
  return GenerateCall::Begin(this);
}

void GenerateCalls::Wake(std::shared_ptr<GenerateCall> call) {
  const std::lock_guard lock(mutex_);
  with_news_.push_back(std::move(call));
  changed_.notify_one();
}

void GenerateCalls::WriteNews() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !with_news_.empty(); });
    if (closed_) return;
    std::deque<std::shared_ptr<GenerateCall>> calls = std::exchange(with_news_, {});
    lock.unlock();
    for (const std::shared_ptr<GenerateCall>& call : calls) call->Advance();
    calls.clear();
    lock.lock();
  }
}

}  // namespace quartet
