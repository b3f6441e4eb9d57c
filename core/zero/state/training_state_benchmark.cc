// Seconds to save and to load the training state of a model of SmolLM2-135M's shape (1.6 GB) on 2 ranks, and for the
// same bytes in plain files: one a rank, 1 MiB at a time, synced; read with the page cache dropped. In the folder
// TEST_TMPDIR, else /tmp.
//
//   bazel build -c opt //core/zero/state:training_state_benchmark && bazel-bin/core/zero/state/training_state_benchmark
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/logging.h"
#include "core/comm/testing/rank_threads.h"
#include "core/model/initialize.h"
#include "core/model/testing/smollm2.h"
#include "core/zero/state/training_state.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr int64_t kChunk = 1 << 20;

std::string Folder(const std::string& name) {
  const char* base = getenv("TEST_TMPDIR");
  return std::string(base != nullptr ? base : "/tmp") + "/quartet_training_state_benchmark/" + name;
}

void Check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// The files of `folder` are on disk, and nowhere else.
void DropFromCache(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int fd = open(entry.path().c_str(), O_RDONLY);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

void WritePlainFile(const std::string& path, int64_t bytes) {
  const std::vector<char> chunk(kChunk, 'x');
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (int64_t done = 0; done < bytes; done += kChunk) {
    QUARTET_CHECK(pwrite(fd, chunk.data(), std::min(kChunk, bytes - done), done) > 0);
  }
  QUARTET_CHECK(fsync(fd) == 0);
  close(fd);
}

void ReadPlainFile(const std::string& path, int64_t bytes) {
  std::vector<char> chunk(kChunk);
  const int fd = open(path.c_str(), O_RDONLY);
  for (int64_t done = 0; done < bytes; done += kChunk) {
    QUARTET_CHECK(pread(fd, chunk.data(), std::min(kChunk, bytes - done), done) > 0);
  }
  close(fd);
}

// Times one call of `work` on every rank, from when all of them are ready to when all are done.
void Time(benchmark::State& state, const std::function<void()>& prepare,
          const std::function<void(TrainableModel&, ProcessGroup&)>& work) {
  if (!fs::exists(Folder("model"))) {
    Check(WriteRandomModel(SmolLm2(), HeadKind::kVocabulary, 1, Dtype::kBF16, Folder("model")));
  }
  int64_t bytes = 0;
  RunRanks(
      kRanks,
      [&](ProcessGroup& group) {
        Ledger ledger;
        TrainableModelOptions options;
        auto model = TrainableModel::Load(Folder("model"), options, &group, &ledger);
        Check(model.status());
        const auto timed = [&] {
          work(**model, group);
          group.Barrier();
        };
        if (group.rank() == 0) {
          prepare();
          bytes = 12 * (*model)->model().layout().numel();
          for (auto _ : state) {
            group.Barrier();
            timed();
          }
        } else {
          group.Barrier();
          timed();
        }
      },
      absl::Minutes(10));
  state.SetBytesProcessed(bytes);
}

int64_t BytesOfRank(TrainableModel& model) { return 12 * model.model().layout().numel() / kRanks; }

void BM_WritePlainFiles(benchmark::State& state) {
  Time(
      state,
      [] {
        fs::remove_all(Folder("plain"));
        fs::create_directories(Folder("plain"));
      },
      [](TrainableModel& model, ProcessGroup& group) {
        WritePlainFile(Folder("plain/") + std::to_string(group.rank()), BytesOfRank(model));
      });
}

void BM_Save(benchmark::State& state) {
  Time(
      state, [] { fs::remove_all(Folder("state")); },
      [](TrainableModel& model, ProcessGroup&) { Check(SaveTrainingState(model, Folder("state")).status()); });
}

void BM_ReadPlainFiles(benchmark::State& state) {
  Time(
      state, [] { DropFromCache(Folder("plain")); },
      [](TrainableModel& model, ProcessGroup& group) {
        ReadPlainFile(Folder("plain/") + std::to_string(group.rank()), BytesOfRank(model));
      });
}

void BM_Load(benchmark::State& state) {
  Time(
      state, [] { DropFromCache(Folder("state")); },
      [](TrainableModel& model, ProcessGroup&) { Check(LoadTrainingState(model, Folder("state"))); });
}

BENCHMARK(BM_WritePlainFiles)->Iterations(1)->Repetitions(3)->UseRealTime()->Unit(benchmark::kSecond);
BENCHMARK(BM_Save)->Iterations(1)->Repetitions(3)->UseRealTime()->Unit(benchmark::kSecond);
BENCHMARK(BM_ReadPlainFiles)->Iterations(1)->Repetitions(3)->UseRealTime()->Unit(benchmark::kSecond);
BENCHMARK(BM_Load)->Iterations(1)->Repetitions(3)->UseRealTime()->Unit(benchmark::kSecond);

}  // namespace
}  // namespace quartet
