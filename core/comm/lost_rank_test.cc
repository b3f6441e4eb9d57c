// Ranks as processes, one of which is killed or stopped in the midst of collectives: the others must soon say which.

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/time/deadline.h"
#include "core/comm/process_group.h"
#include "core/comm/testing/folder_store.h"
#include "core/comm/testing/patient_store.h"

namespace quartet {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr absl::Duration kCollectiveTimeout = absl::Seconds(1);
// Within which a survivor must have given up.
constexpr absl::Duration kPatience = absl::Seconds(10);

void AllGather(ProcessGroup& group) { group.AllGatherInPlace(at::zeros({group.size() * 100'000L}))->Wait(); }
void ReduceScatter(ProcessGroup& group) {
  group.ReduceScatterSum(at::zeros({100'000}), at::ones({group.size() * 100'000L}))->Wait();
}
void SmallAllReduce(ProcessGroup& group) { group.AllReduceSum(at::ones({10}))->Wait(); }
void LargeAllReduce(ProcessGroup& group) { group.AllReduceSum(at::ones({2'000'000}))->Wait(); }

// What a rank tells the test; in memory that both share.
struct Report {
  std::atomic<int> rounds{0};
  char error[2000] = {};
};

// A group whose ranks are children of the test and do the same collective again and again.
class Children {
 public:
  Children(const std::function<void(ProcessGroup&)>& collective, const std::string& backend)
      : reports_(static_cast<Report*>(
            mmap(nullptr, kRanks * sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    std::string folder = testing::TempDir() + "/store_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    for (int rank = 0; rank < kRanks; ++rank) {
      new (&reports_[rank]) Report();
      const pid_t pid = fork();
      if (pid == 0) {
        Rank(folder, rank, collective, backend, &reports_[rank]);
        _exit(0);
      }
      pids_.push_back(pid);
    }
  }
  ~Children() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    munmap(reports_, kRanks * sizeof(Report));
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  // Waits until all ranks are in the midst of it.
  void AwaitRounds(int rounds) {
    for (int rank = 0; rank < kRanks; ++rank) {
      while (reports_[rank].rounds < rounds) {
        absl::SleepFor(absl::Milliseconds(2));
        ASSERT_STREQ(reports_[rank].error, "");
      }
    }
  }

  void Signal(int rank, int signal) { kill(pids_[rank], signal); }

  // What a rank says when it ends; "" where it has not ended by `deadline`.
  std::string Error(int rank, const Deadline& deadline) {
    while (!deadline.passed()) {
      int status = 0;
      if (waitpid(pids_[rank], &status, WNOHANG) == pids_[rank]) {
        pids_[rank] = -1;
        return WIFEXITED(status) ? reports_[rank].error : absl::StrCat("ended by signal ", WTERMSIG(status));
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return "";
  }

 private:
  static void Rank(const std::string& folder, int rank, const std::function<void(ProcessGroup&)>& collective,
                   const std::string& backend, Report* report) {
    std::string error;
    try {
      at::set_num_threads(1);
      const auto store = std::make_unique<PatientStore>(MakeFolderStore(folder));
      ProcessGroupOptions options;
      options.rank = rank;
      options.size = kRanks;
      options.backend = backend;
      options.timeout = absl::Seconds(60);
      {
        // Coming together may take long on a busy machine, losing a rank must not.
        auto assembled = MakeProcessGroup(store.get(), options);
        if (!assembled.ok()) throw std::runtime_error(assembled.status().ToString());
        (*assembled)->Barrier();
      }
      options.timeout = kCollectiveTimeout;
      options.name = "watched";
      auto group = MakeProcessGroup(store.get(), options);
      if (!group.ok()) throw std::runtime_error(group.status().ToString());
      while (true) {
        collective(**group);
        ++report->rounds;
      }
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    std::strncpy(report->error, error.c_str(), sizeof(report->error) - 1);
  }

  Report* const reports_;
  std::vector<pid_t> pids_;
};

struct Collective {
  const char* name;
  void (*run)(ProcessGroup&);
};

class LostRank : public testing::TestWithParam<Collective> {
 protected:
  // Each rank of a group of its own by its signal, over each backend: all at a time, as they do little but wait.
  static void LoseEachRank(const std::array<int, kRanks>& signals) {
    struct Loss {
      int lost;
      std::string backend;
      std::unique_ptr<Children> ranks;
    };
    std::vector<Loss> losses;
    for (const char* backend : {"gloo", "shm"}) {
      for (int lost = 0; lost < kRanks; ++lost) {
        losses.push_back({lost, backend, std::make_unique<Children>(GetParam().run, backend)});
      }
    }
    for (const Loss& loss : losses) loss.ranks->AwaitRounds(5);
    for (const Loss& loss : losses) loss.ranks->Signal(loss.lost, signals[loss.lost]);
    const Deadline deadline = Deadline::In(kPatience);
    for (const Loss& loss : losses) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == loss.lost) continue;
        EXPECT_THAT(loss.ranks->Error(rank, deadline), HasSubstr(absl::StrCat("rank ", loss.lost, " does not answer")))
            << "rank " << rank << " over " << loss.backend << ", lost by signal " << signals[loss.lost];
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Collectives, LostRank,
                         testing::Values(Collective{"AllGather", AllGather}, Collective{"ReduceScatter", ReduceScatter},
                                         Collective{"SmallAllReduce", SmallAllReduce},
                                         Collective{"LargeAllReduce", LargeAllReduce}),
                         [](const auto& value) { return std::string(value.param.name); });

TEST_P(LostRank, IsNamedByAllOthersWhenKilledOrStopped) {
  // Each rank in each way, over these collectives and those.
  const bool sums = std::string_view(GetParam().name).find("Reduce") != std::string_view::npos;
  LoseEachRank(sums ? std::array{SIGKILL, SIGSTOP, SIGKILL} : std::array{SIGSTOP, SIGKILL, SIGSTOP});
}

}  // namespace
}  // namespace quartet
