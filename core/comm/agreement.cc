#include "core/comm/agreement.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/logging.h"
#include "core/comm/agreed_error.h"
#include "core/memory/catch_exceptions.h"

namespace quartet {
namespace {

constexpr int64_t kMessageBytes = 2000;
constexpr int64_t kMessageSlotBytes = 8 + kMessageBytes;  // code, length of the message, message

struct Head {
  int32_t code;
  int32_t length;
};
static_assert(sizeof(Head) == 8);

constexpr absl::Duration kMostBetweenMeetings = absl::Seconds(5);
constexpr absl::Duration kBetweenReports = absl::Minutes(1);

// Meets the other ranks from a thread of its own until none is at work any more.
class Meetings {
 public:
  Meetings(ProcessGroup& group, at::Device device, const std::string& what)
      : group_(group), device_(device), what_(what), thread_([this] { Run(); }) {}

  // This rank is through with its work. Throws what a meeting has thrown.
  void Finish() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  void Run() {
    try {
      const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
      absl::Duration next_report = kBetweenReports;
      const absl::Duration between = std::min(kMostBetweenMeetings, group_.timeout() / 4);
      while (true) {
        bool done = false;
        {
          std::unique_lock<std::mutex> lock(mutex_);
          done = changed_.wait_for(lock, absl::ToChronoNanoseconds(between), [this] { return done_; });
        }
        const at::Tensor last_at_work =
            at::full({1}, done ? 0 : group_.rank() + 1, at::TensorOptions(at::kLong).device(device_));
        group_.AllReduceMax(last_at_work)->Wait();
        const int64_t last = last_at_work.item<int64_t>();
        if (last == 0) return;
        const absl::Duration waited = absl::FromChrono(std::chrono::steady_clock::now() - begin);
        if (group_.rank() == 0 && waited >= next_report) {
          QUARTET_LOG(kInfo) << what_ << ": rank " << last - 1 << " has been at it for "
                             << absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1)));
          next_report += kBetweenReports;
        }
      }
    } catch (const std::exception&) {
      error_ = std::current_exception();
    }
  }

  ProcessGroup& group_;
  const at::Device device_;
  const std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;         // guarded by mutex_
  std::exception_ptr error_;  // of the thread until it is joined
  std::thread thread_;        // last: it uses all of the above
};

absl::Status Caught(const std::string& what, const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    const std::string message = absl::StrCat(what, ": ", error.what());
    return IsOutOfMemory(error) ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
  }
}

}  // namespace

absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, at::Device device) {
  if (group.size() == 1) {
    absl::Status error = mine;
    if (!error.ok()) MarkAgreed(&error);
    return error;
  }
  at::Tensor slots = at::zeros({group.size() * kMessageSlotBytes}, at::kByte);
  Head head = {static_cast<int32_t>(mine.code()),
               static_cast<int32_t>(std::min<int64_t>(mine.message().size(), kMessageBytes))};
  uint8_t* own = slots.data_ptr<uint8_t>() + group.rank() * kMessageSlotBytes;
  std::memcpy(own, &head, sizeof(head));
  std::memcpy(own + sizeof(head), mine.message().data(), head.length);
  slots = slots.to(device);
  group.AllGatherInPlace(slots)->Wait();
  if (device.is_meta()) return mine;  // a dry group has no peers to hear from
  slots = slots.cpu();
  for (int rank = 0; rank < group.size(); ++rank) {
    const uint8_t* slot = slots.data_ptr<uint8_t>() + rank * kMessageSlotBytes;
    std::memcpy(&head, slot, sizeof(head));
    if (head.code == 0) continue;
    const std::string message(reinterpret_cast<const char*>(slot) + sizeof(head), head.length);
    absl::Status error(static_cast<absl::StatusCode>(head.code),
                       absl::StrCat("rank ", rank, " of ", group.size(), ": ", message));
    MarkAgreed(&error);
    return error;
  }
  return absl::OkStatus();
}

absl::Status WithoutDeadline(ProcessGroup& group, at::Device device, const std::string& what,
                             const std::function<absl::Status()>& work) {
  if (group.size() == 1 || device.is_meta()) return Caught(what, work);
  Meetings meetings(group, device, what);
  absl::Status mine = Caught(what, work);
  meetings.Finish();
  return mine;
}

}  // namespace quartet
