#include "core/rewards/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <set>

#include "absl/time/clock.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

using Body = std::function<absl::StatusOr<Reward>(const Answer&, std::stop_token)>;

class Function final : public RewardFunction {
 public:
  explicit Function(Body body, std::vector<size_t>* sizes = nullptr) : body_(std::move(body)), sizes_(sizes) {}
  std::vector<absl::StatusOr<Reward>> Score(std::span<const Answer* const> answers, std::stop_token stop) override {
    if (sizes_ != nullptr) sizes_->push_back(answers.size());
    std::vector<absl::StatusOr<Reward>> rewards;
    for (const Answer* answer : answers) rewards.push_back(body_(*answer, stop));
    return rewards;
  }

 private:
  const Body body_;
  std::vector<size_t>* const sizes_;
};

std::future<absl::StatusOr<Reward>> Submit(WorkerPool& pool, const std::string& response, std::stop_token stop = {}) {
  auto answer = std::make_shared<Answer>();
  answer->response = response;
  auto promise = std::make_shared<std::promise<absl::StatusOr<Reward>>>();
  pool.Submit(answer, std::move(stop), [promise](absl::StatusOr<Reward> r) { promise->set_value(std::move(r)); });
  return promise->get_future();
}

WorkerPoolOptions Quick(int workers, int tries) {
  return {.workers = workers, .max_tries = tries, .first_pause = absl::Milliseconds(1)};
}

TEST(WorkerPool, ScoresEveryAnswer) {
  WorkerPool pool(std::make_unique<Function>([](const Answer& a, auto) { return Reward{std::stof(a.response)}; }),
                  Quick(4, 1));
  std::vector<std::future<absl::StatusOr<Reward>>> rewards;
  for (int i = 0; i < 1000; ++i) rewards.push_back(Submit(pool, std::to_string(i)));
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(rewards[i].get()->value, i);
}

TEST(WorkerPool, TriesAgainWhatMayPass) {
  std::atomic<int> tries = 0;
  WorkerPool pool(std::make_unique<Function>([&](const Answer&, auto) -> absl::StatusOr<Reward> {
                    if (++tries < 3) return absl::UnavailableError("not yet");
                    return Reward{7};
                  }),
                  Quick(2, 3));
  const auto reward = Submit(pool, "").get();
  ASSERT_TRUE(reward.ok()) << reward.status();
  EXPECT_EQ(reward->value, 7);
  EXPECT_EQ(tries, 3);
}

TEST(WorkerPool, GivesTheLastErrorAfterAllTriesAndNeverANumber) {
  std::atomic<int> tries = 0;
  WorkerPool pool(std::make_unique<Function>([&](const Answer&, auto) -> absl::StatusOr<Reward> {
                    return absl::UnavailableError("down, the " + std::to_string(++tries) + ". time");
                  }),
                  Quick(2, 3));
  const absl::Status status = Submit(pool, "").get().status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(std::string(status.message()), "after 3 tries: down, the 3. time");
}

TEST(WorkerPool, AnExceptionIsTheAnswersErrorAndTheNextIsScored) {
  WorkerPool pool(std::make_unique<Function>([](const Answer& a, auto) { return Reward{std::stof(a.response)}; }),
                  Quick(1, 1));
  EXPECT_EQ(Submit(pool, "none").get().status(), absl::InternalError("stof"));
  EXPECT_EQ(Submit(pool, "3").get()->value, 3);
}

TEST(WorkerPool, CountsTheTriesThatFail) {
  std::atomic<int> tries = 0;
  WorkerPool pool(std::make_unique<Function>([&](const Answer&, auto) -> absl::StatusOr<Reward> {
                    if (++tries % 3 != 0) return absl::AbortedError("it has ended: exit code 3");
                    return Reward{7};
                  }),
                  Quick(1, 3));
  for (int answer = 0; answer < 2; ++answer) EXPECT_TRUE(Submit(pool, "").get().ok());
  EXPECT_EQ(pool.failed_tries(), 4);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(absl::IsCancelled(Submit(pool, "", stop.get_token()).get().status()));
  EXPECT_EQ(pool.failed_tries(), 4);
}

TEST(WorkerPool, TriesAgainBeforeItBeginsWhatWaits) {
  // The first answer fails in every try; each of the others lasts longer than the pause before the next one.
  std::atomic<int> begun = 0;
  WorkerPool pool(std::make_unique<Function>([&](const Answer& a, auto) -> absl::StatusOr<Reward> {
                    if (a.response == "fails") return absl::UnavailableError("down");
                    ++begun;
                    absl::SleepFor(absl::Milliseconds(20));
                    return Reward{1};
                  }),
                  Quick(1, 3));
  auto failed = Submit(pool, "fails");
  std::vector<std::future<absl::StatusOr<Reward>>> rewards;
  for (int i = 0; i < 10; ++i) rewards.push_back(Submit(pool, "waits"));
  EXPECT_THAT(std::string(failed.get().status().message()), HasSubstr("after 3 tries"));
  EXPECT_LT(begun, 10);
  for (auto& reward : rewards) EXPECT_TRUE(reward.get().ok());
}

TEST(WorkerPool, DoesNotTryAgainWhatCannotPass) {
  std::atomic<int> tries = 0;
  WorkerPool pool(std::make_unique<Function>([&](const Answer&, auto) -> absl::StatusOr<Reward> {
                    ++tries;
                    return absl::InvalidArgumentError("no label");
                  }),
                  Quick(2, 3));
  EXPECT_TRUE(absl::IsInvalidArgument(Submit(pool, "").get().status()));
  EXPECT_EQ(tries, 1);
}

TEST(WorkerPool, DoesNotTryAgainWhatTakesBackEarlierRewards) {
  WorkerPool pool(std::make_unique<Function>([tries = 0](const Answer&, auto) mutable -> absl::StatusOr<Reward> {
                    if (++tries == 1) return absl::DataLossError("it has answered twice");
                    return Reward{1};
                  }),
                  Quick(1, 3));
  EXPECT_TRUE(absl::IsDataLoss(Submit(pool, "").get().status()));
}

TEST(WorkerPool, TakesWhatWaitsInBatches) {
  std::vector<size_t> sizes;
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  WorkerPoolOptions options = Quick(1, 1);
  options.max_batch = 4;
  WorkerPool pool(std::make_unique<Function>(
                      [gone](const Answer& a, auto) {
                        if (a.response == "first") gone.wait();
                        return Reward{1};
                      },
                      &sizes),
                  options);
  std::vector<std::future<absl::StatusOr<Reward>>> rewards;
  rewards.push_back(Submit(pool, "first"));
  for (int i = 0; i < 6; ++i) rewards.push_back(Submit(pool, "more"));
  go.set_value();
  for (auto& reward : rewards) EXPECT_TRUE(reward.get().ok());
  size_t total = 0;
  for (const size_t size : sizes) {
    EXPECT_LE(size, 4);
    total += size;
  }
  EXPECT_EQ(total, 7);
  EXPECT_LE(sizes.size(), 4);
}

absl::StatusOr<Reward> WaitForStop(std::stop_token stop) {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  changed.wait(lock, stop, [] { return false; });
  return absl::CancelledError("stopped");
}

TEST(WorkerPool, StopsWhatIsNotWantedAnyMore) {
  std::stop_source stop;
  std::promise<void> begun;
  std::atomic<bool> first = true;
  WorkerPool pool(std::make_unique<Function>([&](const Answer&, std::stop_token asked) {
                    if (first.exchange(false)) begun.set_value();
                    return WaitForStop(asked);
                  }),
                  Quick(1, 5));
  auto running = Submit(pool, "runs", stop.get_token());
  auto waiting = Submit(pool, "waits", stop.get_token());
  begun.get_future().wait();
  stop.request_stop();
  EXPECT_TRUE(absl::IsCancelled(running.get().status()));
  EXPECT_TRUE(absl::IsCancelled(waiting.get().status()));
}

TEST(WorkerPool, EndsWithAnswersThatAreNotDone) {
  std::promise<void> begun;
  std::future<absl::StatusOr<Reward>> running, waiting;
  {
    WorkerPool pool(std::make_unique<Function>([&](const Answer&, std::stop_token asked) {
                      begun.set_value();
                      return WaitForStop(asked);
                    }),
                    Quick(1, 5));
    running = Submit(pool, "runs");
    begun.get_future().wait();
    waiting = Submit(pool, "waits");
  }
  EXPECT_TRUE(absl::IsCancelled(running.get().status()));
  EXPECT_TRUE(absl::IsCancelled(waiting.get().status()));
}

}  // namespace
}  // namespace quartet
