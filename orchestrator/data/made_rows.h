// Rows of data as what is made of each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status_macros.h"
#include "core/data/dataset.h"

namespace quartet {

// Rows are checked and taken as Dataset does. `HashItem(item, seed)` hashes an item. One thread.
template <typename Item>
class MadeRows {
 public:
  // Errors as Dataset::Use has them.
  using Make = std::function<absl::StatusOr<Item>(const Record&)>;

  // Errors and `progress` as Dataset::Open has them; a row is checked by making its item.
  static absl::StatusOr<std::unique_ptr<MadeRows>> Open(const DatasetOptions& options, Make make,
                                                        const RowProgress& progress) {
    std::unique_ptr<MadeRows> made(new MadeRows(std::move(make)));
    bool is_first = true;
    const auto check = [&](const Record& record) -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(Item item, made->make_(record));
      made->checked_hash_ = HashItem(item, made->checked_hash_);
      if (std::exchange(is_first, false)) made->first_ = std::move(item);
      return absl::OkStatus();
    };
    QUARTET_ASSIGN_OR_RETURN(made->dataset_, Dataset::Open(options, check, progress));
    return made;
  }

  const Dataset& rows() const { return *dataset_; }
  // Of what is made of the rows that were checked, and of the files of those that were not.
  uint64_t hash() const { return dataset_->hash(checked_hash_); }
  // Of the first row that is used.
  const Item& first() const { return first_; }
  // Those at the positions [begin, begin + count).
  absl::StatusOr<std::vector<Item>> Take(int64_t begin, int64_t count) {
    std::vector<Item> items;
    QUARTET_RETURN_IF_ERROR(dataset_->Take(begin, count, [&](const Record& record) -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(Item item, make_(record));
      items.push_back(std::move(item));
      return absl::OkStatus();
    }));
    return items;
  }

 private:
  explicit MadeRows(Make make) : make_(std::move(make)) {}

  const Make make_;
  std::unique_ptr<Dataset> dataset_;
  uint64_t checked_hash_ = 0;
  Item first_;
};

}  // namespace quartet
