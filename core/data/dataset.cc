#include "core/data/dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

// Draws in place of one row, before it is an error that none can be used.
constexpr int64_t kAttempts = 1000;

int64_t CheckedRows(const RowFile& rows, int64_t wanted) {
  return wanted == 0 ? rows.rows() : std::min(wanted, rows.rows());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(DatasetOptions options, const Use& check,
                                                       const RowProgress& progress) {
  std::unique_ptr<Dataset> dataset(new Dataset(std::move(options)));
  const DatasetOptions& o = dataset->options_;
  int64_t all = 0, done = 0;
  for (const std::string& path : o.paths) {
    File& file = dataset->files_.emplace_back();
    QUARTET_ASSIGN_OR_RETURN(file.rows, RowFile::Open({.path = path, .option = o.option}, o.keys, o.max_rows));
    const int64_t checked = CheckedRows(*file.rows, o.checked_rows);
    all += checked;
    if (checked == file.rows->rows()) continue;
    dataset->unchecked_ += file.rows->rows() - checked;
    const uint64_t hash = file.rows->hash();
    dataset->unchecked_hash_ =
        HashBytes({reinterpret_cast<const char*>(&hash), sizeof(hash)}, dataset->unchecked_hash_);
  }
  std::vector<int64_t> sizes;
  for (File& file : dataset->files_) {
    QUARTET_RETURN_IF_ERROR(
        dataset->Check(&file, check, [&] { return progress ? progress(++done, all) : absl::OkStatus(); }));
    sizes.push_back(file.size());
  }
  dataset->order_.emplace(o.seed, o.shuffle, std::move(sizes), o.weights);
  return dataset;
}

absl::Status Dataset::Check(File* file, const Use& check, const std::function<absl::Status()>& checked) {
  const int64_t count = CheckedRows(*file->rows, options_.checked_rows);
  const LeftOut before = left_out_;
  for (int64_t row = 0; row < count; ++row) {
    QUARTET_ASSIGN_OR_RETURN(const bool used, TryUse(*file, row, check));
    if (!used) file->dropped.push_back(row);
    QUARTET_RETURN_IF_ERROR(checked());
  }
  if (static_cast<int64_t>(file->dropped.size()) < count) return absl::OkStatus();
  const absl::Status& first =
      before.overlong < left_out_.overlong ? left_out_.first_overlong : left_out_.first_malformed;
  return absl::InvalidArgumentError(absl::StrCat(options_.option, ": ", file->rows->file().path, ": none of its first ",
                                                 count, count == 1 ? " row" : " rows", " can be used; ",
                                                 first.message()));
}

int64_t Dataset::File::Row(int64_t index) const {
  // The number of dropped rows d before it: the first for which dropped[d] - d > index.
  const auto before = std::partition_point(dropped.begin(), dropped.end(),
                                           [&](const int64_t& row) { return row - (&row - dropped.data()) <= index; });
  return index + (before - dropped.begin());
}

absl::StatusOr<bool> Dataset::TryUse(const File& file, int64_t row, const Use& use) {
  const absl::StatusOr<Record> record = file.rows->Read(row);
  absl::Status status = record.status();
  if (record.ok()) {
    status = use(*record);
    if (!status.ok()) status = file.rows->At(row, status);
  }
  if (status.ok()) return true;
  const bool overlong = absl::IsOutOfRange(status);
  if (!overlong && !absl::IsInvalidArgument(status)) return status;
  if (!(overlong ? options_.drop_overlong : options_.drop_malformed)) {
    return absl::InvalidArgumentError(status.message());
  }
  int64_t& count = overlong ? left_out_.overlong : left_out_.malformed;
  if (count++ == 0) (overlong ? left_out_.first_overlong : left_out_.first_malformed) = std::move(status);
  return false;
}

std::vector<Dataset::FileState> Dataset::files() const {
  std::vector<FileState> files;
  for (const File& file : files_) {
    files.push_back(
        {.file = file.rows->file(), .hash = file.rows->hash(), .blocks = file.rows->blocks(), .in_use = file.size()});
  }
  return files;
}

uint64_t Dataset::hash(uint64_t checked) const {
  if (unchecked_hash_ == 0) return checked;
  return HashBytes({reinterpret_cast<const char*>(&unchecked_hash_), sizeof(unchecked_hash_)}, checked);
}

absl::Status Dataset::Take(int64_t begin, int64_t count, const Use& use) {
  for (int64_t position = begin; position < begin + count; ++position) {
    RowPlace place = order_->At(position);
    for (int64_t attempt = 1;; ++attempt) {
      File& file = files_[place.file];
      const int64_t row = file.Row(place.row);
      if (!file.unusable.contains(row)) {
        QUARTET_ASSIGN_OR_RETURN(const bool used, TryUse(file, row, use));
        if (used) break;
        file.unusable.insert(row);
      }
      if (attempt > kAttempts) {
        return absl::InvalidArgumentError(absl::StrCat(options_.option, ": ", file.rows->file().path, ": none of ",
                                                       attempt, " rows drawn from it can be used"));
      }
      place = order_->InPlaceOf(position, attempt);
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
