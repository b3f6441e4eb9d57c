// What a training step's tensors cost the process: the large blocks that two ranks of SmolLM2-135M's shape take, fp32,
// activations kept, micro-batches of 1,024 tokens at stage 3, as core/zero/trainable_model.h takes them (gathered
// groups one ahead, what a block saves for its backward pass, temporaries, gradients before they are reduced). Each is
// taken, a byte of each of its pages written, and freed; nothing is computed.
//
//   bazel run -c opt //core/memory:block_cache_benchmark
//
// What is freed is kept until the two steps, an iteration and a call, are done; or given back to the system at once; or
// left to the C library's malloc. `faults` and `system_s` are of an iteration; `in_use` and `held` at most, in MiB.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "core/memory/block_cache.h"

namespace quartet {
namespace {

constexpr int64_t kLayers = 30, kHidden = 576, kIntermediate = 1536, kKeysAndValues = 192, kVocabulary = 49152;
constexpr int64_t kTokens = 1024;      // of a micro-batch
constexpr int64_t kLogitTokens = 256;  // of which logits are there at once
constexpr int kMicroBatches = 2, kSteps = 2, kRanks = 2;

// Takes block `block` where bytes are above 0, else frees it.
struct Event {
  int64_t block;
  size_t bytes;
};

// What one rank takes and frees, in its order. Blocks are numbered from `first`, each `stride` more.
class RankTrace {
 public:
  RankTrace(int64_t first, int64_t stride) : next_(first), stride_(stride) {
    // Weights, gradients and moments of its half.
    const int64_t parameters = kVocabulary * kHidden + kLayers * kBlockWeights;
    for (int i = 0; i < 4; ++i) Take(parameters / kRanks);
    for (int m = 0; m < kSteps * kMicroBatches; ++m) MicroBatch();
  }
  const std::vector<Event>& events() const { return events_; }

 private:
  using Blocks = std::vector<int64_t>;
  static constexpr int64_t kBlockWeights = kHidden * (2 * kHidden + 2 * kKeysAndValues) + 3 * kHidden * kIntermediate;

  int64_t Take(int64_t numel) {
    events_.push_back({next_, static_cast<size_t>(numel) * sizeof(float)});
    return std::exchange(next_, next_ + stride_);
  }
  Blocks Take(const std::vector<int64_t>& columns, int64_t rows = kTokens) {
    Blocks blocks;
    for (const int64_t width : columns) blocks.push_back(Take(rows * width));
    return blocks;
  }
  void Free(int64_t block) { events_.push_back({block, 0}); }
  void Free(const Blocks& blocks) {
    for (const int64_t block : blocks) Free(block);
  }

  void MicroBatch() {
    const int64_t embedding = Take(kVocabulary * kHidden);
    int64_t hidden = Take(kTokens * kHidden);
    int64_t gathered = Take(kBlockWeights);
    Free(embedding);
    std::vector<Blocks> saved;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t next = Take(layer + 1 < kLayers ? kBlockWeights : kVocabulary * kHidden);
      // Norm, queries, keys, values, attention; norm, gate, up, product. Sums and rotated copies are temporaries.
      Blocks kept = Take({kHidden, kHidden, kKeysAndValues, kKeysAndValues, kHidden});
      Free(Take({kHidden, kKeysAndValues}));
      const int64_t middle = Take(kTokens * kHidden);
      for (const int64_t block : Take({kHidden, kIntermediate, kIntermediate, kIntermediate})) kept.push_back(block);
      kept.push_back(middle);
      kept.push_back(std::exchange(hidden, Take(kTokens * kHidden)));
      saved.push_back(std::move(kept));
      Free(gathered);
      gathered = next;
    }
    // The head: logits and their gradient, some tokens at a time, and that of the weight.
    const int64_t of_head = Take(kVocabulary * kHidden);
    for (int64_t done = 0; done < kTokens; done += kLogitTokens) {
      Free(Take({kVocabulary, kVocabulary}, kLogitTokens));
    }
    int64_t gradient = Take(kTokens * kHidden);
    Free(hidden);
    Reduce(of_head, kVocabulary * kHidden);
    Free(gathered);
    gathered = Take(kBlockWeights);
    for (int64_t layer = kLayers; layer-- > 0;) {
      const int64_t next = layer > 0 ? Take(kBlockWeights) : -1;
      const int64_t of_weights = Take(kBlockWeights);
      Free(Take({kIntermediate, kIntermediate, kIntermediate, kHidden}));
      Free(Take({kHidden, kKeysAndValues, kKeysAndValues, kHidden}));
      Free(saved.back());
      saved.pop_back();
      Free(std::exchange(gradient, Take(kTokens * kHidden)));
      Free(gathered);
      gathered = next;
      Reduce(of_weights, kBlockWeights);
    }
    Free(gradient);
  }
  // A reduce-scatter receives this rank's part.
  void Reduce(int64_t gradient, int64_t numel) {
    const int64_t part = Take(numel / kRanks);
    Free(gradient);
    Free(part);
  }

  int64_t next_;
  const int64_t stride_;
  std::vector<Event> events_;
};

// The ranks' events in turns, as threads that keep pace.
const std::vector<Event>& Trace() {
  static const auto* trace = [] {
    auto* merged = new std::vector<Event>;
    std::vector<RankTrace> ranks;
    for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(rank, kRanks);
    for (size_t i = 0; i < ranks[0].events().size(); ++i) {
      for (const RankTrace& rank : ranks) merged->push_back(rank.events()[i]);
    }
    return merged;
  }();
  return *trace;
}

double Seconds(const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; }

template <typename Take, typename Free>
void Replay(const Take& take, const Free& free) {
  std::vector<char*> blocks;
  for (const auto& [block, bytes] : Trace()) {
    if (block >= std::ssize(blocks)) blocks.resize(block + 1);
    char*& memory = blocks[block];
    if (bytes == 0) {
      free(std::exchange(memory, nullptr));
      continue;
    }
    memory = static_cast<char*>(take(bytes));
    for (size_t at = 0; at < bytes; at += 4096) memory[at] = 1;
  }
  for (char* memory : blocks) {
    if (memory != nullptr) free(memory);
  }
}

// Once before it is measured: a virtual machine gets its memory when that is first touched.
void Measure(benchmark::State& state, const std::function<void()>& replay) {
  replay();
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  for ([[maybe_unused]] auto iteration : state) replay();
  getrusage(RUSAGE_SELF, &after);
  const auto each = [&](double value) { return benchmark::Counter(value, benchmark::Counter::kAvgIterations); };
  state.counters["faults"] = each(static_cast<double>(after.ru_minflt - before.ru_minflt));
  state.counters["system_s"] = each(Seconds(after.ru_stime) - Seconds(before.ru_stime));
  state.counters["requests"] = static_cast<double>(Trace().size());
}

void MeasureCache(benchmark::State& state, bool in_a_call) {
  BlockCache cache;
  Measure(state, [&] {
    if (in_a_call) cache.BeginCall();
    Replay([&](size_t bytes) { return cache.Allocate(bytes); }, [&](void* block) { cache.Free(block); });
    if (in_a_call) cache.EndCall();
  });
  const BlockCache::Stats stats = cache.stats();
  state.counters["in_use"] = static_cast<double>(stats.peak_in_use >> 20);
  state.counters["held"] = static_cast<double>(stats.peak_held >> 20);
}

void KeptForTheCall(benchmark::State& state) { MeasureCache(state, /*in_a_call=*/true); }
void GivenBackAtOnce(benchmark::State& state) { MeasureCache(state, /*in_a_call=*/false); }
void CLibrary(benchmark::State& state) {
  Measure(state, [] { Replay([](size_t bytes) { return malloc(bytes); }, [](void* block) { free(block); }); });
}
BENCHMARK(KeptForTheCall)->Iterations(3)->Unit(benchmark::kSecond);
BENCHMARK(GivenBackAtOnce)->Iterations(3)->Unit(benchmark::kSecond);
BENCHMARK(CLibrary)->Iterations(3)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace quartet
