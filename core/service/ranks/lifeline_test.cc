#include "core/service/ranks/lifeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

// A pipe in memory.
struct Wire {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> inbox[2];  // of the leader's end, of the other
  bool cut = false;
};
class MemoryPipe final : public RankPipe {
 public:
  MemoryPipe(std::shared_ptr<Wire> wire, int end) : wire_(std::move(wire)), end_(end) {}
  bool Write(std::string message) override {
    const std::lock_guard lock(wire_->mutex);
    if (wire_->cut) return false;
    wire_->inbox[1 - end_].push_back(std::move(message));
    wire_->changed.notify_all();
    return true;
  }
  bool Read(std::string* message) override {
    std::unique_lock lock(wire_->mutex);
    std::deque<std::string>& inbox = wire_->inbox[end_];
    wire_->changed.wait(lock, [&] { return wire_->cut || !inbox.empty(); });
    if (inbox.empty()) return false;
    *message = std::move(inbox.front());
    inbox.pop_front();
    return true;
  }
  void Cancel() override {
    if (end_ == 0) Cut();
  }
  // As where a process ends.
  void Cut() {
    const std::lock_guard lock(wire_->mutex);
    wire_->cut = true;
    wire_->changed.notify_all();
  }

 private:
  const std::shared_ptr<Wire> wire_;
  const int end_;
};

class Ranks;

// Pipes alone.
class FakeGroup final : public RankGroup {
 public:
  FakeGroup(Ranks* ranks, int rank, int world_size) : ranks_(ranks), rank_(rank) {
    for (int r = 0; r < world_size; ++r) endpoints_.push_back(absl::StrCat("host", r, ":1"));
  }
  void Register(const std::string&, Kind, Handler) override {}
  void RegisterPipe(const std::string&, PipeHandler handler) override { handler_ = std::move(handler); }
  grpc::Service* service() override { return nullptr; }
  absl::Status Start(absl::Duration) override { return absl::OkStatus(); }
  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(endpoints_.size()); }
  const std::vector<std::string>& endpoints() const override { return endpoints_; }
  absl::StatusOr<std::vector<RankOutput>> Run(const std::string&, std::vector<RankInput>, const Deadline&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::shared_ptr<RankPipe>> OpenPipe(int rank, const std::string& name) override;
  void EndCalls(const absl::Status&) override {}
  void Break(const absl::Status&) override {}
  absl::Status RunHere(const std::function<absl::Status()>& work) override { return work(); }
  void Stop() override {}

  PipeHandler handler_;

 private:
  Ranks* const ranks_;
  const int rank_;
  std::vector<std::string> endpoints_;
};

// A leader and others, each with its lifeline.
class Ranks {
 public:
  explicit Ranks(int world_size) : broken(world_size), left(world_size) {
    for (int r = 0; r < world_size; ++r) groups.push_back(std::make_unique<FakeGroup>(this, r, world_size));
    for (int r = 0; r < world_size; ++r) {
      lifelines.push_back(std::make_unique<Lifeline>(
          *groups[r], Lifeline::Callbacks{.on_broken =
                                              [this, r](const absl::Status& status) {
                                                const std::lock_guard lock(mutex);
                                                broken[r].push_back(std::string(status.message()));
                                              },
                                          .on_leave =
                                              [this, r](const std::string& why) {
                                                const std::lock_guard lock(mutex);
                                                left[r].push_back(why);
                                              }}));
    }
  }
  ~Ranks() {
    // All at once, as where a launcher ends them.
    std::vector<std::thread> threads;
    for (auto& lifeline : lifelines) threads.emplace_back([&lifeline] { lifeline->Leave("the test ends", false); });
    for (std::thread& thread : threads) thread.join();
    for (std::thread& thread : handlers) thread.join();
  }
  void Start() {
    for (auto& lifeline : lifelines) ASSERT_TRUE(lifeline->Start().ok());
  }
  std::vector<std::string> Broken(int rank) {
    const std::lock_guard lock(mutex);
    return broken[rank];
  }
  std::vector<std::string> Left(int rank) {
    const std::lock_guard lock(mutex);
    return left[rank];
  }
  // The first that rank `rank` hears.
  std::string Heard(int rank) {
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      if (const auto said = Broken(rank); !said.empty()) return "broken: " + said[0];
      if (const auto said = Left(rank); !said.empty()) return "left: " + said[0];
    }
  }

  std::mutex mutex;
  std::vector<std::vector<std::string>> broken, left;
  std::vector<std::unique_ptr<FakeGroup>> groups;
  std::vector<std::unique_ptr<Lifeline>> lifelines;
  std::map<int, std::shared_ptr<MemoryPipe>> pipes;  // the leader's ends
  std::vector<std::thread> handlers;
};

absl::StatusOr<std::shared_ptr<RankPipe>> FakeGroup::OpenPipe(int rank, const std::string&) {
  auto wire = std::make_shared<Wire>();
  ranks_->handlers.emplace_back([handler = ranks_->groups[rank]->handler_, wire] {
    MemoryPipe pipe(wire, 1);
    handler(pipe);
    pipe.Cut();  // a stream ends with its handler
  });
  return ranks_->pipes[rank] = std::make_shared<MemoryPipe>(wire, 0);
}

TEST(Lifeline, ServesOnceAllHaveLoaded) {
  Ranks ranks(3);
  ranks.lifelines[2]->ReportLoad(absl::OkStatus());  // before the leader has opened its pipe
  ranks.Start();
  ranks.lifelines[0]->ReportLoad(absl::OkStatus());
  std::atomic<bool> loaded = false;
  std::thread waiting([&] {
    EXPECT_TRUE(ranks.lifelines[0]->WaitUntilAllLoaded().ok());
    EXPECT_TRUE(loaded);
  });
  loaded = true;
  ranks.lifelines[1]->ReportLoad(absl::OkStatus());
  waiting.join();
  for (auto& lifeline : ranks.lifelines) EXPECT_TRUE(lifeline->WaitUntilAllLoaded().ok());
}

TEST(Lifeline, AllHearOfTheFirstThatCannotLoad) {
  for (const int first : {0, 1}) {
    Ranks ranks(3);
    ranks.Start();
    ranks.lifelines[first]->ReportLoad(absl::NotFoundError("no model"));
    for (auto& lifeline : ranks.lifelines) {
      EXPECT_EQ(lifeline->WaitUntilAllLoaded(), absl::AbortedError("no model"));
    }
    ranks.lifelines[2]->ReportLoad(absl::InternalError("the others do not come"));
    EXPECT_EQ(ranks.lifelines[2]->WaitUntilAllLoaded(), absl::AbortedError("no model"));
  }
}

TEST(Lifeline, ARankWhosePipeEndsWithoutAWordIsGoneHoweverItEnds) {
  Ranks ranks(3);
  ranks.Start();
  ranks.pipes[1]->Cut();
  EXPECT_THAT(ranks.Heard(0), HasSubstr("broken: rank 1 (host1:1) is gone"));
  EXPECT_THAT(ranks.Heard(1), HasSubstr("broken: rank 0 (host0:1) is gone"));
  EXPECT_TRUE(ranks.Broken(2).empty());
  // Who waits for all to load is told too.
  EXPECT_TRUE(absl::IsUnavailable(ranks.lifelines[0]->WaitUntilAllLoaded()));
}

TEST(Lifeline, TellsAnEndThatWasAskedForFromABreak) {
  for (const int first : {0, 1}) {
    SCOPED_TRACE(first);
    Ranks asked(2), broke(2);
    asked.Start();
    broke.Start();
    asked.lifelines[first]->Leave("SIGTERM", /*broken=*/false);
    EXPECT_EQ(asked.Heard(1 - first), absl::StrCat("left: SIGTERM (of rank ", first, ")"));
    broke.lifelines[first]->Leave("the device is lost", /*broken=*/true);
    EXPECT_EQ(broke.Heard(1 - first), "broken: the device is lost");
    for (Ranks* ranks : {&asked, &broke}) {
      EXPECT_TRUE(ranks->Broken(first).empty() && ranks->Left(first).empty()) << "it needs not be told";
      EXPECT_FALSE(ranks->lifelines[first]->WaitUntilAllLoaded().ok());
    }
  }
}

TEST(Lifeline, ARankAloneHasNobodyToWaitFor) {
  Ranks ranks(1);
  ranks.Start();
  ranks.lifelines[0]->ReportLoad(absl::OkStatus());
  EXPECT_TRUE(ranks.lifelines[0]->WaitUntilAllLoaded().ok());
}

}  // namespace
}  // namespace quartet
