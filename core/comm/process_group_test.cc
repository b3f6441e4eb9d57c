#include "core/comm/process_group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "absl/time/time.h"
#include "core/comm/agreement.h"
#include "core/comm/testing/patient_store.h"
#include "core/comm/testing/rank_threads.h"
#include "core/comm/transport/transport.h"
#include "core/memory/accounted_tensor.h"

namespace quartet {
namespace {

// Of some size, over each backend.
class ProcessGroupOfSize : public testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  static void RunRanks(const std::function<void(ProcessGroup&)>& body) {
    quartet::RunRanks(std::get<0>(GetParam()), body, absl::Seconds(60), std::get<1>(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, ProcessGroupOfSize,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Values("gloo", "shm")),
                         [](const auto& value) {
                           return std::get<1>(value.param) + std::to_string(std::get<0>(value.param));
                         });

// What ends a group, over each backend.
class ProcessGroupOver : public testing::TestWithParam<std::string> {
 protected:
  static void RunRanks(int size, const std::function<void(ProcessGroup&)>& body, absl::Duration timeout) {
    quartet::RunRanks(size, body, timeout, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ProcessGroupOver, testing::Values("gloo", "shm"),
                         [](const auto& value) { return value.param; });

TEST_P(ProcessGroupOfSize, AllGatherFillsEveryRanksPart) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    RunRanks([&](ProcessGroup& group) {
      const int64_t part = 70'000;
      at::Tensor buffer = at::full({part * group.size()}, -1, dtype);
      const at::Tensor own = (at::arange(part) % 100 + group.rank()).to(dtype);
      buffer.narrow(0, group.rank() * part, part).copy_(own);
      group.AllGatherInPlace(buffer)->Wait();
      for (int r = 0; r < group.size(); ++r) {
        EXPECT_TRUE(at::equal(buffer.narrow(0, r * part, part), (at::arange(part) % 100 + r).to(dtype)));
      }
    });
  }
}

TEST_P(ProcessGroupOfSize, ReduceScatterGivesEachRankTheSumOfItsPart) {
  RunRanks([&](ProcessGroup& group) {
    const int64_t part = 33'333;
    const int n = group.size();
    // Rank r contributes (r + 1) * position.
    const at::Tensor input = at::arange(part * n, at::kFloat) * (group.rank() + 1);
    at::Tensor output = at::zeros({part});
    group.ReduceScatterSum(output, input)->Wait();
    const at::Tensor expected =
        at::arange(group.rank() * part, (group.rank() + 1) * part, at::kFloat) * (n * (n + 1) / 2);
    EXPECT_TRUE(output.allclose(expected, 1e-6, 0));
  });
}

TEST_P(ProcessGroupOfSize, AllReduceSumsSmallAndLargeTensors) {
  for (int64_t numel : {1, 7, 16'384, 100'001, 3'000'001}) {
    RunRanks([&](ProcessGroup& group) {
      at::Tensor values = at::arange(numel, at::kFloat) + group.rank();
      group.AllReduceSum(values)->Wait();
      const int n = group.size();
      EXPECT_TRUE(values.allclose(at::arange(numel, at::kFloat) * n + n * (n - 1) / 2, 1e-6, 0)) << numel;
      at::Tensor doubles = at::arange(numel, at::kDouble) * (group.rank() + 1);
      group.AllReduceSum(doubles)->Wait();
      EXPECT_TRUE(at::equal(doubles, at::arange(numel, at::kDouble) * (n * (n + 1) / 2))) << numel;
    });
  }
}

TEST_P(ProcessGroupOfSize, AllReduceTakesTheLargest) {
  for (int64_t numel : {3, 50'000, 700'001}) {
    RunRanks([&](ProcessGroup& group) {
      // The even positions are largest on the first rank, the odd ones on the last.
      const at::Tensor sign = at::arange(numel, at::kDouble) % 2 * 2 - 1;
      at::Tensor values = sign * group.rank();
      group.AllReduceMax(values)->Wait();
      const at::Tensor expected = (sign + 1) / 2 * (group.size() - 1);
      EXPECT_TRUE(at::equal(values, expected)) << numel;
    });
  }
}

TEST_P(ProcessGroupOfSize, CollectivesUnderWayTogetherDoNotMixTheirMessages) {
  RunRanks([&](ProcessGroup& group) {
    const int64_t part = 20'000;
    at::Tensor first = at::full({part * group.size()}, group.rank() + 1.0);
    at::Tensor second = at::full({part * group.size()}, group.rank() + 100.0);
    at::Tensor reduced = at::zeros({part});
    auto gather_first = group.AllGatherInPlace(first);
    auto reduce = group.ReduceScatterSum(reduced, at::full({part * group.size()}, 1.0));
    auto gather_second = group.AllGatherInPlace(second);
    gather_second->Wait();
    reduce->Wait();
    gather_first->Wait();
    group.Barrier();
    EXPECT_TRUE(reduced.eq(group.size()).all().item<bool>());
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_TRUE(first.narrow(0, r * part, part).eq(r + 1).all().item<bool>());
      EXPECT_TRUE(second.narrow(0, r * part, part).eq(r + 100).all().item<bool>());
    }
  });
}

// Values whose sum depends on the order of adding.
at::Tensor Uneven(int64_t numel, int rank, at::ScalarType dtype) {
  const at::Tensor position = at::arange(numel, at::kDouble);
  return ((position * (0.37 + rank)).sin() * (position * 0.11 + 5 * rank).cos().exp()).to(dtype);
}

TEST(ProcessGroup, SumsAreTheSameBitsOnAllRanksOverAllBackendsAndInTheOrderOfTheRanks) {
  constexpr int kRanks = 3;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t numel : {4L, 40'000L, 2'500'001L}) {
      std::vector<at::Tensor> of_rank;
      for (int r = 0; r < kRanks; ++r) of_rank.push_back(Uneven(numel, r, dtype));
      at::Tensor expected = of_rank[0].clone();
      for (int r = 1; r < kRanks; ++r) expected += of_rank[r];
      for (const char* backend : {"gloo", "shm"}) {
        RunRanks(
            kRanks,
            [&](ProcessGroup& group) {
              at::Tensor sum = of_rank[group.rank()].clone();
              group.AllReduceSum(sum)->Wait();
              EXPECT_TRUE(at::equal(sum, expected)) << backend << " " << numel;
              const int64_t part = numel / kRanks;
              at::Tensor scattered = at::zeros({part}, dtype);
              group.ReduceScatterSum(scattered, of_rank[group.rank()].narrow(0, 0, part * kRanks))->Wait();
              EXPECT_TRUE(at::equal(scattered, expected.narrow(0, group.rank() * part, part)))
                  << backend << " " << numel;
            },
            absl::Seconds(60), backend);
      }
    }
  }
}

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_P(ProcessGroupOver, ACollectiveThatAPeerDoesNotJoinTimesOutAndSaysWhere) {
  std::string message;
  std::promise<void> given_up;
  RunRanks(
      2,
      [&](ProcessGroup& group) {
        if (group.rank() == 1) {
          given_up.get_future().wait();
          return;
        }
        at::Tensor buffer = at::zeros({64});
        message = MessageOf([&] { group.AllGatherInPlace(buffer)->Wait(); });
        given_up.set_value();
      },
      absl::Milliseconds(400));
  EXPECT_THAT(message, testing::HasSubstr("all-gather"));
  EXPECT_THAT(message, testing::HasSubstr("on rank 0 of 2"));
  EXPECT_THAT(message, testing::HasSubstr("timed out after 400ms"));
  EXPECT_THAT(message, testing::HasSubstr("rank 1 has not come to collective 1"));
}

TEST_P(ProcessGroupOver, APeerThatLeavesIsReportedAtOnce) {
  std::string message;
  RunRanks(
      3,
      [&](ProcessGroup& group) {
        if (group.rank() == 2) return;  // its sockets close
        at::Tensor output = at::zeros({8}), input = at::zeros({24});
        const std::string error = MessageOf([&] { group.ReduceScatterSum(output, input)->Wait(); });
        if (group.rank() == 0) message = error;
      },
      absl::Seconds(120));  // far beyond the test's own limit: only the closed connection can end it
  EXPECT_THAT(message, testing::HasSubstr("reduce-scatter"));
  EXPECT_THAT(message, testing::HasSubstr("on rank 0 of 3"));
  EXPECT_THAT(message, testing::HasSubstr("rank 2 has left the group after collective 0"));
}

TEST_P(ProcessGroupOver, ARankThatFailsAloneIsNamedToAll) {
  std::vector<std::string> messages(3);
  RunRanks(
      3,
      [&](ProcessGroup& group) {
        at::Tensor buffer = at::zeros({99});
        group.AllGatherInPlace(buffer)->Wait();
        if (group.rank() == 1) group.Leave("the loss is no number");
        messages[group.rank()] = MessageOf([&] { group.AllReduceSum(buffer)->Wait(); });
      },
      absl::Seconds(120));
  for (const std::string& message : messages) {
    EXPECT_THAT(message, testing::HasSubstr("rank 1 has left the group after collective 1: the loss is no number"));
  }
}

TEST_P(ProcessGroupOver, ARankThatGetsOutOfStepIsNamed) {
  std::vector<std::string> messages(3);
  RunRanks(
      3,
      [&](ProcessGroup& group) {
        at::Tensor part = at::zeros({10}), whole = at::zeros({30});
        messages[group.rank()] = MessageOf([&] {
          if (group.rank() == 2) {
            group.AllGatherInPlace(whole)->Wait();
          } else {
            group.ReduceScatterSum(part, whole)->Wait();
          }
        });
      },
      absl::Seconds(1));
  for (const std::string& message : messages) {
    EXPECT_THAT(message, testing::HasSubstr("rank 2 takes part in another collective: an all-gather of 120 bytes"));
  }
}

TEST_P(ProcessGroupOver, ARankThatLeavesAfterTheLastCollectiveDisturbsNobody) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    RunRanks(
        3,
        [&](ProcessGroup& group) {
          at::Tensor buffer = at::full({300'000}, group.rank() + 1.0);
          auto gather = group.AllGatherInPlace(buffer);
          // The others have time to finish and to go.
          if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          gather->Wait();
          EXPECT_EQ(buffer[299'999].item<float>(), 3);
        },
        absl::Seconds(60));
  }
}

TEST(ProcessGroup, ARankThatNeverArrivesIsNamed) {
  auto store = MakeLocalStore();
  ProcessGroupOptions options;
  options.rank = 0;
  options.size = 3;
  options.name = "trainers";
  options.timeout = absl::Milliseconds(100);
  ASSERT_TRUE(store->Set("trainers/rank/2", "127.0.0.1").ok());
  auto group = MakeProcessGroup(store.get(), options);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(group.status().message()), testing::EndsWith("not there: rank 1"));
}

TEST(ProcessGroup, AnErrorOfOneRankIsTheVerdictOfAll) {
  std::vector<absl::Status> verdicts(3);
  RunRanks(3, [&](ProcessGroup& group) {
    EXPECT_TRUE(AgreeOnStatus(group, absl::OkStatus(), at::kCPU).ok());
    absl::Status mine = group.rank() == 1 ? absl::NotFoundError("no file 'x'") : absl::OkStatus();
    if (group.rank() == 2) mine = absl::DataLossError(std::string(5000, 'y'));
    verdicts[group.rank()] = AgreeOnStatus(group, mine, at::kCPU);
  });
  for (const absl::Status& verdict : verdicts) {
    EXPECT_EQ(verdict.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(verdict.message(), "rank 1 of 3: no file 'x'");
  }
}

TEST(ProcessGroup, ARankWithoutMemoryForACollectiveIsNamedToAllAndSaysSoItself) {
  std::string healthy;
  RunRanks(
      2,
      [&](ProcessGroup& group) {
        at::Tensor input = at::zeros({200'000}), output = at::zeros({100'000});
        if (group.rank() == 0) {
          healthy = MessageOf([&] { group.ReduceScatterSum(output, input)->Wait(); });
          return;
        }
        Ledger ledger;
        ledger.SetBudget(MemoryTier::kDevice, 1000);
        const MemoryScope scope(&ledger, MemoryCategory::kGathered);
        EXPECT_THROW(group.ReduceScatterSum(output, input)->Wait(), OutOfMemoryError);
      },
      absl::Seconds(120), "gloo");
  EXPECT_THAT(healthy,
              testing::HasSubstr("rank 1 has left the group after collective 0: no memory for the reduce-scatter"));
}

TEST_P(ProcessGroupOver, WorkMayTakeLongerThanACollective) {
  std::vector<absl::Status> own(3), verdicts(3);
  RunRanks(
      3,
      [&](ProcessGroup& group) {
        const int rank = group.rank();
        own[rank] = WithoutDeadline(group, at::kCPU, "writing", [&]() -> absl::Status {
          if (rank == 1) absl::SleepFor(absl::Milliseconds(1500));
          if (rank == 2) throw std::bad_alloc();
          return absl::OkStatus();
        });
        verdicts[rank] = AgreeOnStatus(group, own[rank], at::kCPU);
        group.Barrier();
      },
      absl::Milliseconds(500));
  EXPECT_TRUE(own[0].ok() && own[1].ok());
  EXPECT_EQ(own[2].code(), absl::StatusCode::kResourceExhausted);
  for (const absl::Status& verdict : verdicts) {
    EXPECT_EQ(verdict.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(verdict.message()), testing::StartsWith("rank 2 of 3: writing: "));
  }
}

TEST_P(ProcessGroupOver, ARankThatIsLostEndsWorkAtItsOwnPace) {
  std::vector<std::string> messages(2);
  RunRanks(
      3,
      [&](ProcessGroup& group) {
        if (group.rank() == 2) return;
        messages[group.rank()] =
            MessageOf([&] { (void)WithoutDeadline(group, at::kCPU, "writing", [] { return absl::OkStatus(); }); });
      },
      absl::Seconds(120));
  for (const std::string& message : messages) {
    EXPECT_THAT(message, testing::HasSubstr("rank 2 has left the group after collective 0"));
  }
}

// One that a rank gives up while it does the last of it has succeeded: the next must not end for that.
TEST(ProcessGroup, ACollectiveThatEndsAsItTimesOutDoesNotEndTheNext) {
  for (int attempt = 0; attempt < 300; ++attempt) {
    PatientStore store(MakeLocalStore());
    const std::vector<ProcessIdentity> processes(2, OwnProcessIdentity());
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        ProcessGroupOptions options;
        options.rank = rank;
        options.size = 2;
        options.timeout = absl::Microseconds(50 + 5 * attempt);
        auto transport = MakeSharedMemoryTransport(&store, options, processes);
        ASSERT_TRUE(transport.ok()) << transport.status();
        const at::Tensor values = at::zeros({60'000});
        const std::string first = MessageOf([&] { (*transport)->AllReduce(1, values, /*max=*/true)->Wait(); });
        const std::string second = MessageOf([&] { (*transport)->AllReduce(2, values, /*max=*/true)->Wait(); });
        if (first.empty()) {
          EXPECT_THAT(second, testing::Not(testing::HasSubstr("ended from outside")));
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

TEST(ProcessGroup, RefusesRanksAndDevicesThatCannotBe) {
  auto store = MakeLocalStore();
  ProcessGroupOptions options;
  options.rank = 2;
  options.size = 2;
  EXPECT_EQ(MakeProcessGroup(store.get(), options).status().code(), absl::StatusCode::kInvalidArgument);
  options.rank = 0;
  options.device = "tpu";
  EXPECT_THAT(std::string(MakeProcessGroup(store.get(), options).status().message()),
              testing::HasSubstr("allowed: cpu, cuda, meta"));
  options.device = "cpu";
  options.backend = "mpi";
  EXPECT_THAT(std::string(MakeProcessGroup(store.get(), options).status().message()),
              testing::HasSubstr("allowed: auto, gloo, shm"));
  options.device = "cuda";
  options.backend = "gloo";
  EXPECT_THAT(std::string(MakeProcessGroup(store.get(), options).status().message()),
              testing::HasSubstr("is for device \"cpu\""));
  options.device = "meta";
  options.rank = 1;
  EXPECT_TRUE(MakeProcessGroup(nullptr, options).ok()) << "a dry group stands for one over Gloo";
}

// Local addresses of this process's listening TCP sockets, as /proc writes them (hexadecimal).
std::vector<std::string> ListeningAddresses() {
  std::set<std::string> own;
  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(descriptor, gone));
  }
  std::vector<std::string> addresses;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string index, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> index >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (state == "0A" && own.count("socket:[" + inode + "]") > 0) addresses.push_back(local);
    }
  }
  return addresses;
}

TEST(ProcessGroup, ListensOnTheGivenAddressOnly) {
  RunRanks(
      2,
      [&](ProcessGroup& group) {
        group.Barrier();
        if (group.rank() == 0) {
          const std::vector<std::string> addresses = ListeningAddresses();
          EXPECT_FALSE(addresses.empty());
          // 127.0.0.1 in the kernel's byte order.
          EXPECT_THAT(addresses, testing::Each(testing::StartsWith("0100007F:")));
        }
        group.Barrier();
      },
      absl::Seconds(60), "gloo");
}

TEST(ProcessGroup, TakesSharedMemoryByItselfWhereAllRanksAreOnOneHost) {
  RunRanks(2, [&](ProcessGroup& group) {
    group.Barrier();
    if (group.rank() == 0) {
      EXPECT_THAT(ListeningAddresses(), testing::IsEmpty());
    }
    group.Barrier();
  });
}

}  // namespace
}  // namespace quartet
