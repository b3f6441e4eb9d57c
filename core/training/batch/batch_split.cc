#include "core/training/batch/batch_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/division.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

// Costs that differ by less are not worth an exchange.
constexpr double kEvenEnough = 1e-3;

struct MicroBatch {
  std::vector<size_t> items;
  int64_t tokens = 0;
  int64_t sequences = 0;
  double cost = 0;
};

class Packer {
 public:
  Packer(const std::vector<BatchItem>& batch, const MicroBatchLimit& limit)
      : batch_(batch),
        most_sequences_(limit.sequences > 0 ? limit.sequences : std::numeric_limits<int64_t>::max()),
        most_tokens_(limit.tokens > 0 ? limit.tokens : std::numeric_limits<int64_t>::max()) {}

  // Few micro-batches: each sequence, longest first, goes to the fullest one that has room, or to a new one.
  std::vector<MicroBatch> BestFit() const {
    std::vector<MicroBatch> bins;
    std::set<std::pair<int64_t, size_t>> open;  // room in tokens, index
    for (size_t item : Sorted([this](size_t i) { return static_cast<double>(batch_[i].tokens); })) {
      auto place = open.lower_bound({batch_[item].tokens, 0});
      while (place != open.end() && !Fits(item, bins[place->second])) ++place;
      size_t bin = bins.size();
      if (place == open.end()) {
        bins.emplace_back();
      } else {
        bin = place->second;
        open.erase(place);
      }
      Put(item, &bins[bin]);
      if (bins[bin].sequences < most_sequences_) open.insert({most_tokens_ - bins[bin].tokens, bin});
    }
    return bins;
  }

  // `count` micro-batches of about the same cost: each sequence, costliest first, goes to the one that costs least so
  // far. Nothing where a sequence finds no room.
  std::vector<MicroBatch> LeastLoaded(size_t count) const {
    std::vector<MicroBatch> bins(count);
    std::set<std::pair<double, size_t>> by_cost;
    for (size_t bin = 0; bin < count; ++bin) by_cost.insert({0, bin});
    for (size_t item : Sorted([this](size_t i) { return batch_[i].cost; })) {
      const auto place = std::find_if(by_cost.begin(), by_cost.end(),
                                      [&](const auto& entry) { return Fits(item, bins[entry.second]); });
      if (place == by_cost.end()) return {};
      const size_t bin = place->second;
      by_cost.erase(place);
      Put(item, &bins[bin]);
      by_cost.insert({bins[bin].cost, bin});
    }
    return bins;
  }

  // Lets the heaviest give to the lightest, or exchange with it, for as long as that brings them closer.
  void Even(std::vector<MicroBatch>& bins) const {
    std::set<std::pair<double, size_t>> by_cost;
    for (size_t bin = 0; bin < bins.size(); ++bin) by_cost.insert({bins[bin].cost, bin});
    while (by_cost.size() > 1) {
      const auto light = *by_cost.begin(), heavy = *by_cost.rbegin();
      if (heavy.first - light.first <= kEvenEnough * heavy.first) return;
      by_cost.erase(heavy);
      // One that cannot get rid of anything stays as it is.
      if (!Exchange(&bins[heavy.second], &bins[light.second])) continue;
      by_cost.erase(light);
      for (size_t bin : {light.second, heavy.second}) by_cost.insert({bins[bin].cost, bin});
    }
  }

 private:
  template <typename Key>
  std::vector<size_t> Sorted(const Key& key) const {
    std::vector<size_t> order(batch_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
    return order;
  }

  bool Fits(size_t item, const MicroBatch& bin) const {
    return bin.sequences <= most_sequences_ - batch_[item].sequences &&
           bin.tokens <= most_tokens_ - batch_[item].tokens;
  }

  void Put(size_t item, MicroBatch* bin) const {
    bin->items.push_back(item);
    bin->tokens += batch_[item].tokens;
    bin->sequences += batch_[item].sequences;
    bin->cost += batch_[item].cost;
  }

  void Take(size_t position, MicroBatch* bin) const {
    const size_t item = bin->items[position];
    bin->items.erase(bin->items.begin() + static_cast<std::ptrdiff_t>(position));
    bin->tokens -= batch_[item].tokens;
    bin->sequences -= batch_[item].sequences;
    // Summed anew, so that nothing is left of an empty one.
    bin->cost = 0;
    for (size_t other : bin->items) bin->cost += batch_[other].cost;
  }

  // The move or exchange after which the two differ least. False where none takes a tenth off the difference: each
  // exchange counts, so that there is an end of them.
  bool Exchange(MicroBatch* heavy, MicroBatch* light) const {
    const double gap = heavy->cost - light->cost;
    const size_t none = light->items.size();
    double best = 0.9 * gap;
    std::pair<size_t, size_t> found = {heavy->items.size(), none};
    for (size_t h = 0; h < heavy->items.size(); ++h) {
      const BatchItem& given = batch_[heavy->items[h]];
      for (size_t l = 0; l <= none; ++l) {
        const BatchItem taken = l == none ? BatchItem{.sequences = 0} : batch_[light->items[l]];
        const double left = std::abs(gap - 2 * (given.cost - taken.cost));
        if (left >= best) continue;
        const int64_t tokens = given.tokens - taken.tokens;
        const int64_t sequences = given.sequences - taken.sequences;
        if (light->tokens + tokens > most_tokens_ || heavy->tokens - tokens > most_tokens_ ||
            light->sequences + sequences > most_sequences_ || heavy->sequences - sequences > most_sequences_) {
          continue;
        }
        best = left;
        found = {h, l};
      }
    }
    if (found.first == heavy->items.size()) return false;
    const size_t given = heavy->items[found.first];
    Take(found.first, heavy);
    if (found.second != none) {
      Put(light->items[found.second], heavy);
      Take(found.second, light);
    }
    Put(given, light);
    return true;
  }

  const std::vector<BatchItem>& batch_;
  const int64_t most_sequences_;
  const int64_t most_tokens_;
};

}  // namespace

BatchSplit SplitBatch(const std::vector<BatchItem>& batch, int ranks, const MicroBatchLimit& limit) {
  QUARTET_CHECK(ranks >= 1 && (limit.sequences > 0 || limit.tokens > 0))
      << ranks << " ranks, micro-batches of " << limit.sequences << " sequences or " << limit.tokens << " tokens";
  for (const BatchItem& item : batch) {
    QUARTET_CHECK(item.tokens >= 0 && item.cost >= 0 && (limit.tokens == 0 || item.tokens <= limit.tokens) &&
                  (limit.sequences == 0 || item.sequences <= limit.sequences))
        << item.sequences << " sequences of " << item.tokens << " tokens in micro-batches of " << limit.sequences
        << " and " << limit.tokens << ", cost " << item.cost;
  }

  const Packer packer(batch, limit);
  std::vector<MicroBatch> few = packer.BestFit();
  const size_t micro_batches = CeilDivide(few.size(), ranks);
  const size_t count = micro_batches * ranks;
  std::vector<MicroBatch> bins = packer.LeastLoaded(count);
  if (bins.empty()) {
    bins = std::move(few);
    bins.resize(count);
  }
  packer.Even(bins);
  std::stable_sort(bins.begin(), bins.end(), [](const MicroBatch& a, const MicroBatch& b) {
    return std::pair(a.cost, a.items.size()) > std::pair(b.cost, b.items.size());
  });

  BatchSplit split;
  split.items.resize(ranks);
  split.micro_batch_sizes.resize(ranks);
  std::vector<double> load(ranks, 0);
  double total = 0, paced = 0;
  for (size_t m = 0; m < micro_batches; ++m) {
    // The heaviest goes to the rank that has done least.
    std::vector<int> least_first(ranks);
    std::iota(least_first.begin(), least_first.end(), 0);
    std::stable_sort(least_first.begin(), least_first.end(), [&](int a, int b) { return load[a] < load[b]; });
    for (int i = 0; i < ranks; ++i) {
      MicroBatch& bin = bins[m * ranks + i];
      std::sort(bin.items.begin(), bin.items.end(),
                [&](size_t a, size_t b) { return std::pair(-batch[a].tokens, a) < std::pair(-batch[b].tokens, b); });
      const int rank = least_first[i];
      split.items[rank].insert(split.items[rank].end(), bin.items.begin(), bin.items.end());
      split.micro_batch_sizes[rank].push_back(static_cast<uint32_t>(bin.items.size()));
      load[rank] += bin.cost;
      total += bin.cost;
    }
    paced += bins[m * ranks].cost;
  }
  split.paced_cost = paced;
  if (paced > 0) split.balance = total / (paced * ranks);
  return split;
}

}  // namespace quartet
