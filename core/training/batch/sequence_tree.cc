#include "core/training/batch/sequence_tree.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/division.h"
#include "core/kernels/cpu/attention/sequence_rows.h"
#include "core/rl/options/token_arrays.h"

namespace quartet {
namespace {

// Of attention's cache (PagedCacheLayout).
constexpr int64_t kBlockTokens = 16;
// So many actions of rows that are there once take no more memory than a token: some numbers each.
constexpr int64_t kActionsOfAToken = 16;
// Sequences stay together where at least one in so many tokens is shared.
constexpr int64_t kWorthSharing = 8;
// Ranks that wait no more than this leaves are not worth sharing less.
constexpr double kBalanceEnough = 0.95;
// How near to the least cost of the costliest piece, as a share of it, cuts of the tree come.
constexpr double kCutExactly = 1e-3;

// What a micro-batch of sequences comes to, which are added in the order of the tree.
class Together {
 public:
  explicit Together(const SequenceCost& cost) : cost_(cost) {}

  void Add(const TokenSequence& sequence, int64_t shared) {
    const int64_t tokens = sequence.ids_size(), own = tokens - shared;
    rows_ += own;
    actions_ += CountActions(sequence);
    // A token is spoken of by the one before it.
    int64_t head_rows = 0;
    for (int64_t t = shared + 1; t < tokens; ++t) head_rows += sequence.action_mask(static_cast<int>(t)) ? 1 : 0;
    if (own > 0) keys_ += shared == 0 ? own : KeysOf(shared, own);
    item_.cost += cost_.Of(tokens, head_rows) - cost_.Of(shared, 0);
    ++sequences_;
  }

  BatchItem item() const {
    BatchItem item = item_;
    item.sequences = sequences_;
    // Memory is planned for at most one action and kMostKeysOfARow keys a token: many equal answers have more of the
    // one, very short ones more of the other.
    item.tokens = std::max({rows_, actions_ / kActionsOfAToken, CeilDivide(keys_, kMostKeysOfARow)});
    return item;
  }

 private:
  // Of `own` tokens behind `shared` ones, copies among them.
  int64_t KeysOf(int64_t shared, int64_t own) const {
    return cost_.sharing == Sharing::kKeyCopies ? shared + own : RoundUp(shared % kBlockTokens + own, kBlockTokens);
  }

  const SequenceCost& cost_;
  BatchItem item_;
  int64_t rows_ = 0, actions_ = 0, keys_ = 0, sequences_ = 0;
};

struct Bundle {
  std::vector<size_t> members;
  BatchItem item;
};

bool Fits(const BatchItem& item, const MicroBatchLimit& limit) {
  return (limit.sequences == 0 || item.sequences <= limit.sequences) &&
         (limit.tokens == 0 || item.tokens <= limit.tokens);
}

// Neighbours in the tree, as many as keep to the limit and cost no more than `most_cost`; each sequence in one bundle.
// With `alike`, of sequences that share enough with the one before.
std::vector<Bundle> MakeBundles(const std::vector<const TokenSequence*>& sequences,
                                const std::vector<PlaceInTree>& places, const MicroBatchLimit& limit,
                                const SequenceCost& cost, double most_cost, bool alike) {
  std::vector<Bundle> bundles;
  std::optional<Together> last;
  for (const PlaceInTree& place : places) {
    const TokenSequence& sequence = *sequences[place.index];
    if (last.has_value() && (!alike || kWorthSharing * place.shared >= sequence.ids_size())) {
      Together more = *last;
      more.Add(sequence, place.shared);
      if (Fits(more.item(), limit) && more.item().cost <= most_cost) {
        last.emplace(more);
        bundles.back().members.push_back(place.index);
        bundles.back().item = more.item();
        continue;
      }
    }
    last.emplace(cost).Add(sequence, 0);
    bundles.push_back({{place.index}, last->item()});
  }
  return bundles;
}

// Of bundles, as one of their members.
BatchSplit Unbundled(BatchSplit split, const std::vector<Bundle>& bundles) {
  for (size_t rank = 0; rank < split.items.size(); ++rank) {
    std::vector<size_t> members;
    const size_t* next = split.items[rank].data();
    for (uint32_t& size : split.micro_batch_sizes[rank]) {
      const size_t before = members.size();
      for (const size_t* end = next + size; next != end; ++next) {
        members.insert(members.end(), bundles[*next].members.begin(), bundles[*next].members.end());
      }
      size = static_cast<uint32_t>(members.size() - before);
    }
    split.items[rank] = std::move(members);
  }
  return split;
}

}  // namespace

std::vector<PlaceInTree> PlacesInTree(const std::vector<const TokenSequence*>& sequences, bool share) {
  std::vector<PlaceInTree> places(sequences.size());
  for (size_t i = 0; i < places.size(); ++i) places[i].index = i;
  if (!share) return places;
  const auto ids = [&sequences](const PlaceInTree& place) -> const auto& { return sequences[place.index]->ids(); };
  std::stable_sort(places.begin(), places.end(), [&](const PlaceInTree& a, const PlaceInTree& b) {
    return std::lexicographical_compare(ids(a).begin(), ids(a).end(), ids(b).begin(), ids(b).end());
  });
  for (size_t i = 1; i < places.size(); ++i) {
    const auto &before = ids(places[i - 1]), &own = ids(places[i]);
    places[i].shared = std::mismatch(before.begin(), before.end(), own.begin(), own.end()).second - own.begin();
  }
  return places;
}

BatchItem TogetherOf(const std::vector<const TokenSequence*>& sequences, const SequenceCost& cost) {
  Together together(cost);
  for (const PlaceInTree& place : PlacesInTree(sequences, cost.sharing != Sharing::kNone))
    together.Add(*sequences[place.index], place.shared);
  return together.item();
}

BatchSplit SplitTree(const std::vector<const TokenSequence*>& sequences, int ranks, const MicroBatchLimit& limit,
                     const SequenceCost& cost) {
  const bool share = cost.sharing != Sharing::kNone;
  const std::vector<PlaceInTree> places = PlacesInTree(sequences, share);
  constexpr double kAnyCost = std::numeric_limits<double>::infinity();
  const auto split = [&](const std::vector<Bundle>& bundles) {
    std::vector<BatchItem> items;
    for (const Bundle& bundle : bundles) items.push_back(bundle.item);
    return Unbundled(SplitBatch(items, ranks, limit), bundles);
  };
  BatchSplit best = split(MakeBundles(sequences, places, limit, cost, kAnyCost, /*alike=*/true));
  if (best.balance > kBalanceEnough || !share) return best;
  // The tree cut in as many pieces as there are micro-batches, as even as they can be: more even ranks, which share
  // less.
  const size_t count = best.micro_batches() * ranks;
  double too_little = 0, enough = best.paced_cost * ranks;
  std::vector<Bundle> pieces = MakeBundles(sequences, places, limit, cost, kAnyCost, /*alike=*/false);
  if (pieces.size() > count) return best;
  while (enough - too_little > kCutExactly * enough) {
    const double most_cost = (too_little + enough) / 2;
    std::vector<Bundle> smaller = MakeBundles(sequences, places, limit, cost, most_cost, /*alike=*/false);
    if (smaller.size() > count) {
      too_little = most_cost;
    } else {
      enough = most_cost;
      pieces = std::move(smaller);
    }
  }
  BatchSplit other = split(pieces);
  if (std::pair(other.micro_batches(), other.paced_cost) < std::pair(best.micro_batches(), best.paced_cost)) {
    best = std::move(other);
  }
  return best;
}

}  // namespace quartet
