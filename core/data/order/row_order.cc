#include "core/data/order/row_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/random.h"
#include "core/data/order/permutation.h"

namespace quartet {
namespace {

constexpr uint64_t kShufflePurpose = 1, kFilePurpose = 5, kReplacementPurpose = 6;

// Uniform in [0, 1).
double Unit(uint64_t random) { return static_cast<double>(random >> 11) * 0x1p-53; }

}  // namespace

RowOrder::RowOrder(uint64_t seed, bool shuffle, std::vector<int64_t> rows, std::vector<double> weights)
    : seed_(seed),
      shuffle_(shuffle),
      rows_(std::move(rows)),
      total_(std::accumulate(rows_.begin(), rows_.end(), int64_t{0})),
      ends_(std::move(weights)),
      draws_(rows_.size()) {
  if (ends_.empty()) return;
  const double sum = std::accumulate(ends_.begin(), ends_.end(), 0.0);
  std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  for (double& end : ends_) end /= sum;
  ends_.back() = 1;
}

int64_t RowOrder::Ordered(uint64_t list, int64_t n, int64_t rows) const {
  if (!shuffle_) return n % rows;
  const auto epoch = static_cast<uint64_t>(n / rows);
  return Permutation(Random::Of({seed_, kShufflePurpose, list, epoch}).Next(), rows)(n % rows);
}

int64_t RowOrder::DrawFile(int64_t position) const {
  const double point = Unit(Random::Of({seed_, kFilePurpose, static_cast<uint64_t>(position)}).Next());
  return std::upper_bound(ends_.begin(), ends_.end() - 1, point) - ends_.begin();
}

RowPlace RowOrder::At(int64_t position) {
  if (ends_.empty()) {
    RowPlace place = {.row = Ordered(0, position, total_)};
    while (place.row >= rows_[place.file]) place.row -= rows_[place.file++];
    return place;
  }
  if (position < counted_) {
    counted_ = 0;
    std::fill(draws_.begin(), draws_.end(), 0);
  }
  for (; counted_ < position; ++counted_) ++draws_[DrawFile(counted_)];
  const int64_t file = DrawFile(position);
  return {.file = file, .row = Ordered(static_cast<uint64_t>(file) + 1, draws_[file], rows_[file])};
}

RowPlace RowOrder::InPlaceOf(int64_t position, int64_t attempt) {
  RowPlace place = At(position);
  Random random =
      Random::Of({seed_, kReplacementPurpose, static_cast<uint64_t>(position), static_cast<uint64_t>(attempt)});
  place.row = static_cast<int64_t>(random.Below(static_cast<uint64_t>(rows_[place.file])));
  return place;
}

}  // namespace quartet
