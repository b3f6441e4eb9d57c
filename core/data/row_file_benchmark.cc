// Rows a second of a file in verl's form (a prompt of one message of about 100 bytes, a label, extra fields), as JSONL
// and as Parquet: opened (indexed, or written as lines), and read in random order. Argument: rows of the file, for
// which one has to be made, X standing for their number:
//
//   python3 tools/golden/make_parquet.py --rows=X /tmp/rows        (writes /tmp/rows/X.jsonl and X.parquet)
//   bazel build -c opt //core/data:row_file_benchmark && bazel-bin/core/data/row_file_benchmark
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/data/row_file.h"

namespace quartet {
namespace {

std::unique_ptr<RowFile> Open(benchmark::State& state, const std::string& ending) {
  const char* folder = std::getenv("ROWS");
  auto file = RowFile::Open(
      {.path = std::string(folder == nullptr ? "/tmp/rows" : folder) + "/" + std::to_string(state.range(0)) + ending,
       .option = "ROWS"},
      {{.name = "prompt", .option = "input_key", .list = true},
       {.name = "reward_model.ground_truth", .option = "label_key"},
       {.name = "data_source", .option = "source_key"}});
  if (file.ok()) return *std::move(file);
  state.SkipWithError(file.status().ToString().c_str());
  return nullptr;
}

void BM_Open(benchmark::State& state, const std::string& ending) {
  for (auto _ : state) {
    if (Open(state, ending) == nullptr) return;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void BM_Read(benchmark::State& state, const std::string& ending) {
  const std::unique_ptr<RowFile> file = Open(state, ending);
  if (file == nullptr) return;
  int64_t row = 0;
  for (auto _ : state) {
    row = (row + 1'000'003) % file->rows();
    const auto record = file->Read(row);
    if (!record.ok()) return state.SkipWithError(record.status().ToString().c_str());
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK_CAPTURE(BM_Open, jsonl, ".jsonl")->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Open, parquet, ".parquet")->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Read, jsonl, ".jsonl")->Arg(1'000'000);
BENCHMARK_CAPTURE(BM_Read, parquet, ".parquet")->Arg(1'000'000);

}  // namespace
}  // namespace quartet
