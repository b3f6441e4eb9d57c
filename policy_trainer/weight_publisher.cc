#include "policy_trainer/weight_publisher.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/weights/tensor_hash.h"
#include "core/weights/tensor_range.h"

namespace quartet {

std::vector<TensorEntry> ManifestTensors(const ParameterLayout& layout) {
  std::vector<TensorEntry> tensors;
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      TensorEntry& tensor = tensors.emplace_back();
      tensor.set_name(parameter.name);
      tensor.mutable_shape()->Assign(parameter.shape.begin(), parameter.shape.end());
    }
  }
  return tensors;
}

SnapshotMemory::Block SnapshotMemory::Take(int64_t size) {
  {
    const std::lock_guard lock(mutex_);
    const auto fits = std::find_if(free_.begin(), free_.end(), [&](const Block& block) { return block.size == size; });
    if (fits != free_.end()) {
      Block block = std::move(*fits);
      free_.erase(fits);
      return block;
    }
  }
  LedgerEntry memory = Count(size);
  return {std::make_unique_for_overwrite<char[]>(size), size, std::move(memory)};
}

LedgerEntry SnapshotMemory::Count(int64_t size) const {
  return LedgerEntry(ledger_, MemoryCategory::kCommunication, size, tier_);
}

void SnapshotMemory::AddVersion() {
  const std::lock_guard lock(mutex_);
  ++versions_;
}

void SnapshotMemory::EndVersion(std::vector<Block> blocks) {
  const std::lock_guard lock(mutex_);
  if (--versions_ == 0) free_ = std::move(blocks);
}

PublishedWeights::PublishedWeights(uint64_t version, Dtype dtype, std::shared_ptr<SnapshotMemory> memory)
    : version_(version), dtype_(dtype), memory_(std::move(memory)) {
  memory_->AddVersion();
}

PublishedWeights::~PublishedWeights() {
  std::vector<SnapshotMemory::Block> blocks;
  for (Piece& piece : pieces_) blocks.push_back(std::move(piece.block));
  memory_->EndVersion(std::move(blocks));
}

void* PublishedWeights::Add(int tensor, int64_t begin, int64_t count) {
  pieces_.push_back({tensor, begin, count, memory_->Take(count * DtypeSize(dtype_))});
  return pieces_.back().block.bytes.get();
}

void PublishedWeights::Count(int64_t count) { counted_.push_back(memory_->Count(count * DtypeSize(dtype_))); }

PublishedPart PublishedWeights::Describe(int num_tensors) const {
  PublishedPart part;
  for (const Piece& piece : pieces_) {
    QUARTET_CHECK(piece.tensor < num_tensors) << piece.tensor << " of " << num_tensors;
    TensorRange* range = part.add_ranges();
    range->set_tensor(piece.tensor);
    range->set_begin(piece.begin);
    range->set_count(piece.count);
  }
  QUARTET_CHECK(hashes_.empty() || hashes_.size() == static_cast<size_t>(num_tensors)) << hashes_.size();
  const std::vector<uint64_t> hashes = hashes_.empty() ? Hashes(num_tensors) : hashes_;
  part.mutable_hashes()->Assign(hashes.begin(), hashes.end());
  return part;
}

// A hash is a sum: by several threads, of a few megabytes at a time.
std::vector<uint64_t> PublishedWeights::Hashes(int num_tensors) const {
  struct Part {
    const Piece* piece;
    int64_t first, count;
  };
  constexpr int64_t kElements = int64_t{1} << 21;
  std::vector<Part> parts;
  for (const Piece& piece : pieces_) {
    for (int64_t first = 0; first < piece.count; first += kElements) {
      parts.push_back({&piece, first, std::min(kElements, piece.count - first)});
    }
  }
  std::vector<uint64_t> hashes(num_tensors, 0);
  std::mutex mutex;
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    std::vector<uint64_t> own(num_tensors, 0);
    for (size_t i = next++; i < parts.size(); i = next++) {
      const auto& [piece, first, count] = parts[i];
      own[piece->tensor] +=
          HashElements(piece->block.bytes.get() + first * DtypeSize(dtype_), dtype_, piece->begin + first, count);
    }
    const std::lock_guard lock(mutex);
    for (int i = 0; i < num_tensors; ++i) hashes[i] += own[i];
  };
  constexpr size_t kMostThreads = 8;
  const size_t threads = std::min({kMostThreads, parts.size(), size_t{std::thread::hardware_concurrency()}});
  std::vector<std::jthread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins them
  return hashes;
}

absl::StatusOr<const PublishedWeights::Piece*> PublishedWeights::FindPiece(const TensorRange& range) const {
  const StridedRange wanted = ElementsOf(range);
  std::string here;
  for (const Piece& piece : pieces_) {
    if (piece.tensor != range.tensor()) continue;
    absl::StrAppend(&here, here.empty() ? "" : ", ", "[", piece.begin, ", ", piece.begin + piece.count, ")");
    // Written so that no sum of what the client says can overflow.
    if (wanted.begin < piece.begin || wanted.count < 0 || wanted.count > piece.count) continue;
    const int64_t behind = piece.count - wanted.count - (wanted.begin - piece.begin);  // the first run
    if (behind < 0) continue;
    if (wanted.rows > 1 &&
        (wanted.stride < std::max<int64_t>(1, wanted.count) || wanted.rows - 1 > behind / wanted.stride)) {
      continue;
    }
    return &piece;
  }
  return absl::OutOfRangeError(absl::StrCat(
      range.count(), " elements of tensor ", range.tensor(), " from element ", range.begin(),
      wanted.rows == 1 ? ""
                       : absl::StrCat(", and ", wanted.rows - 1, " times more at a distance of ", wanted.stride, ","),
      " are not of this rank; it has ", here.empty() ? "nothing of that tensor" : here));
}

absl::StatusOr<const char*> PublishedWeights::Find(const TensorRange& range) const {
  QUARTET_ASSIGN_OR_RETURN(const Piece* piece, FindPiece(range));
  return piece->block.bytes.get() + (range.begin() - piece->begin) * DtypeSize(dtype_);
}

absl::StatusOr<std::string> PublishedWeights::Read(const TensorRange& range) const {
  QUARTET_ASSIGN_OR_RETURN(const char* from, Find(range));
  const StridedRange wanted = ElementsOf(range);
  const int64_t size = DtypeSize(dtype_);
  std::string bytes;
  bytes.reserve(wanted.numel() * size);
  for (int64_t row = 0; row < wanted.rows; ++row) bytes.append(from + row * wanted.stride * size, wanted.count * size);
  return bytes;
}

absl::StatusOr<WeightManifest> BuildManifest(uint64_t version, Dtype dtype, const ParameterLayout& layout,
                                             const std::vector<PublishedPart>& parts,
                                             const std::vector<std::string>& endpoints) {
  QUARTET_CHECK(parts.size() == endpoints.size()) << parts.size() << " parts, " << endpoints.size() << " endpoints";
  WeightManifest manifest;
  manifest.set_version(version);
  manifest.set_dtype(std::string(DtypeName(dtype)));
  for (TensorEntry& tensor : ManifestTensors(layout)) *manifest.add_tensors() = std::move(tensor);

  std::vector<std::vector<std::pair<int64_t, int64_t>>> covered(manifest.tensors_size());  // begin, end
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].hashes_size() != manifest.tensors_size()) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " hashed ", parts[rank].hashes_size(), " tensors of ", manifest.tensors_size()));
    }
    for (int i = 0; i < manifest.tensors_size(); ++i) {
      TensorEntry* tensor = manifest.mutable_tensors(i);
      tensor->set_hash(tensor->hash() + parts[rank].hashes(i));
    }
    for (const TensorRange& range : parts[rank].ranges()) {
      covered[range.tensor()].emplace_back(range.begin(), range.begin() + range.count());
    }
    if (parts[rank].ranges().empty()) continue;
    WeightSource* source = manifest.add_sources();
    source->set_endpoint(endpoints[rank]);
    *source->mutable_ranges() = parts[rank].ranges();
  }

  for (int i = 0; i < manifest.tensors_size(); ++i) {
    const int64_t numel = NumelOf(manifest.tensors(i).shape());
    std::sort(covered[i].begin(), covered[i].end());
    int64_t next = 0;
    bool once = true;
    for (const auto& [begin, end] : covered[i]) {
      once = once && begin == next;
      if (!once) break;
      next = end;
    }
    if (!once || next != numel) {
      return absl::InternalError(absl::StrCat("element ", next, " of ", manifest.tensors(i).name(), " (", numel,
                                              " elements) is not published by exactly one rank"));
    }
  }
  return manifest;
}

}  // namespace quartet
