#include "core/comm/testing/rank_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/trace.h"
#include "core/comm/testing/folder_store.h"
#include "core/comm/testing/patient_store.h"
#include "core/hardware/device.h"

namespace quartet {

at::Device TestDevice() {
  const char* device = getenv("QUARTET_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

namespace {

using Body = std::function<void(KeyValueStore* store, const ProcessGroupOptions& options)>;

void RunRank(int rank, int size, KeyValueStore* store, absl::Duration timeout, const Body& body) {
  SetTraceRank(rank);
  ProcessGroupOptions options;
  options.rank = rank;
  options.size = size;
  options.timeout = timeout;
  if (const char* backend = getenv("QUARTET_TEST_BACKEND"); backend != nullptr) options.backend = backend;
  try {
    const absl::Status entered = EnterDevice(TestDevice());
    if (!entered.ok()) throw std::runtime_error(std::string(entered.message()));
    if (TestDevice().is_cuda()) options.device = "cuda";
    body(store, options);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << " of " << size << ": " << error.what();
  }
}

void RunThreads(int size, absl::Duration timeout, const Body& body) {
  auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      RunRank(rank, size, store.get(), timeout, body);
    });
  }
  for (auto& thread : threads) thread.join();
}

// Which of the program's processes this is, where there are several.
struct OwnProcess {
  int rank = 0;
  int ranks = 1;
  std::string folder;
};
OwnProcess FindOwnProcess() {
  const char *rank = getenv("QUARTET_TEST_RANK"), *ranks = getenv("QUARTET_TEST_RANKS"),
             *folder = getenv("QUARTET_TEST_STORE");
  if (rank == nullptr || ranks == nullptr || folder == nullptr) return {};
  return {std::stoi(rank), std::stoi(ranks), folder};
}

// What went wrong in the present test, from its `first` result on; "" if nothing.
std::string FailuresSince(int first) {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  std::string text;
  for (int i = first; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed()) {
      absl::StrAppend(&text, part.file_name() == nullptr ? "" : part.file_name(), ":", part.line_number(), ": ",
                      part.message(), "\n");
    }
  }
  return text;
}

// A folder for what the processes do together next in the present test, the same in each of them.
std::string NextFolder(const OwnProcess& own) {
  static std::map<std::string, int>& calls = *new std::map<std::string, int>();
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::string name = absl::StrCat(test.test_suite_name(), ".", test.name());
  std::replace(name.begin(), name.end(), '/', '_');
  return absl::StrCat(own.folder, "/", name, ".", calls[name]++);
}

// Tells the others what this process found, "" if nothing went wrong, and waits until all have; rank 0 takes over what
// they say.
void EndTogether(const OwnProcess& own, const std::string& folder, const std::string& failures) {
  const auto store = MakeFolderStore(folder);
  const auto ended = [](int rank) { return absl::StrCat("ended/", rank); };
  ASSERT_TRUE(store->Set(ended(own.rank), failures.empty() ? "well" : failures).ok());
  for (int rank = 0; rank < own.ranks; ++rank) {
    const auto told = store->Wait({ended(rank)}, absl::Minutes(2));
    ASSERT_TRUE(told.ok()) << "rank " << rank << " does not come: " << told.status();
    if (own.rank == 0 && told->front() != "well") ADD_FAILURE() << "rank " << rank << ": " << told->front();
  }
}

// Rank own.rank of them, if there is such a rank; returns once all processes are through.
void RunProcess(const OwnProcess& own, int size, absl::Duration timeout, const Body& body) {
  if (size > own.ranks) {
    FAIL() << size << " ranks, and the test was started as " << own.ranks << " processes; leave it out";
  }
  const std::string folder = NextFolder(own);
  ASSERT_TRUE(MakeDirs(folder).ok());
  PatientStore store(MakeFolderStore(folder));
  const int before = testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  at::set_num_threads(1);
  if (own.rank < size) RunRank(own.rank, size, &store, timeout, body);
  EndTogether(own, folder, own.rank == 0 ? "" : FailuresSince(before));
}

// A group on a GPU that takes tensors of the CPU as well.
class GroupOfAllTensors : public ProcessGroup {
 public:
  explicit GroupOfAllTensors(std::unique_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) override {
    const at::Tensor there = buffer.to(TestDevice());
    return Back(group_->AllGatherInPlace(there), there, buffer);
  }
  std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) override {
    const at::Tensor there = output.to(TestDevice());
    return Back(group_->ReduceScatterSum(there, input.to(TestDevice())), there, output);
  }
  std::unique_ptr<CollectiveWork> AllReduceSum(const at::Tensor& tensor) override {
    const at::Tensor there = tensor.to(TestDevice());
    return Back(group_->AllReduceSum(there), there, tensor);
  }
  std::unique_ptr<CollectiveWork> AllReduceMax(const at::Tensor& tensor) override {
    const at::Tensor there = tensor.to(TestDevice());
    return Back(group_->AllReduceMax(there), there, tensor);
  }
  void Barrier() override { group_->Barrier(); }
  void Leave(const std::string& why) override { group_->Leave(why); }
  CommVolume volume(CollectiveKind kind) const override { return group_->volume(kind); }
  absl::Duration timeout() const override { return group_->timeout(); }

 private:
  class CopiedBack : public CollectiveWork {
   public:
    CopiedBack(std::unique_ptr<CollectiveWork> work, at::Tensor from, at::Tensor to)
        : work_(std::move(work)), from_(std::move(from)), to_(std::move(to)) {}
    void Wait() override {
      work_->Wait();
      to_.copy_(from_);
    }

   private:
    const std::unique_ptr<CollectiveWork> work_;
    const at::Tensor from_, to_;
  };

  static std::unique_ptr<CollectiveWork> Back(std::unique_ptr<CollectiveWork> work, const at::Tensor& from,
                                              const at::Tensor& to) {
    if (from.is_same(to)) return work;
    return std::make_unique<CopiedBack>(std::move(work), from, to);
  }

  const std::unique_ptr<ProcessGroup> group_;
};

}  // namespace

void DoOnce(const std::function<void()>& work) {
  const OwnProcess own = FindOwnProcess();
  const auto meet = [&own] {
    if (own.ranks == 1) return;
    const std::string folder = NextFolder(own);
    ASSERT_TRUE(MakeDirs(folder).ok());
    EndTogether(own, folder, "");
  };
  meet();
  if (own.rank == 0) work();
  meet();
}

void RunRanksOfStore(int size, const Body& body, absl::Duration timeout) {
  const OwnProcess own = FindOwnProcess();
  if (own.ranks == 1 || size == 1) {
    RunThreads(size, timeout, body);
  } else {
    RunProcess(own, size, timeout, body);
  }
}

void RunRanks(int size, const std::function<void(ProcessGroup&)>& body, absl::Duration timeout,
              const std::string& backend) {
  RunRanksOfStore(
      size,
      [&](KeyValueStore* store, ProcessGroupOptions options) {
        const bool on_gpu = options.device == "cuda";
        if (!backend.empty() && !on_gpu) options.backend = backend;
        auto group = MakeProcessGroup(store, options);
        ASSERT_TRUE(group.ok()) << group.status();
        if (on_gpu) *group = std::make_unique<GroupOfAllTensors>(*std::move(group));
        body(**group);
      },
      timeout);
}

}  // namespace quartet
