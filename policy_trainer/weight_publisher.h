// Frozen weights, as other services pull them (proto/weights.proto, docs/weight_sync.md). LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/memory/ledger.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/reader.h"
#include "policy_trainer/policy_rank.pb.h"
#include "proto/weights.pb.h"

namespace quartet {

// Longest WeightChunk::data, in bytes.
inline constexpr int64_t kWeightChunkBytes = int64_t{1} << 20;

// The tensors of a manifest, in the order of the layout: hashes are left 0.
std::vector<TensorEntry> ManifestTensors(const ParameterLayout& layout);

// Memory of published weights that nobody reads any more, for the next version: pages that are touched already cost far
// less to write than new ones. It counts as communication memory in the ledger. Thread safe.
class SnapshotMemory {
 public:
  // `tier` is what the process's memory is to the ledger, which must outlive the filling of snapshots.
  explicit SnapshotMemory(Ledger* ledger, MemoryTier tier = MemoryTier::kDevice) : ledger_(ledger), tier_(tier) {}

 private:
  friend class PublishedWeights;
  struct Block {
    std::unique_ptr<char[]> bytes;
    int64_t size = 0;
    LedgerEntry memory;
  };
  // Throws MemoryBudgetError or std::bad_alloc.
  Block Take(int64_t size);
  LedgerEntry Count(int64_t size) const;
  void AddVersion();
  // Keeps what the version had, unless there is another: then that one's memory is enough for the next.
  void EndVersion(std::vector<Block> blocks);

  Ledger* const ledger_;
  const MemoryTier tier_;
  std::mutex mutex_;
  int versions_ = 0;  // that somebody may read
  std::vector<Block> free_;
};

// What one rank has frozen of one version. Filled by one thread; immutable, and so thread safe, from then on. The bytes
// live in the process's memory; when the last reader lets go, `memory` has them again.
class PublishedWeights {
 public:
  // `dtype` is kBF16 or kF32.
  PublishedWeights(uint64_t version, Dtype dtype, std::shared_ptr<SnapshotMemory> memory);
  PublishedWeights(const PublishedWeights&) = delete;
  PublishedWeights& operator=(const PublishedWeights&) = delete;
  ~PublishedWeights();

  // Room for elements [begin, begin + count) of tensor `tensor`, to be written before anybody reads. Throws
  // MemoryBudgetError or std::bad_alloc.
  void* Add(int tensor, int64_t begin, int64_t count);

  // What HashElements gives for what is here of each tensor, where something else has computed it. Without, Describe
  // does.
  void SetHashes(std::vector<uint64_t> hashes) { hashes_ = std::move(hashes); }

  // Counts `count` elements that there will be no room for: on the meta device.
  void Count(int64_t count);

  uint64_t version() const { return version_; }
  Dtype dtype() const { return dtype_; }

  // Ranges and, for each of `num_tensors` tensors, the hash of what is here of it.
  PublishedPart Describe(int num_tensors) const;

  // Where the first run of `range` lies, which must lie within one added range. OUT_OF_RANGE names what is asked for
  // and what is here.
  absl::StatusOr<const char*> Find(const TensorRange& range) const;
  // The bytes of all its runs.
  absl::StatusOr<std::string> Read(const TensorRange& range) const;

 private:
  struct Piece {
    int tensor;
    int64_t begin;
    int64_t count;
    SnapshotMemory::Block block;
  };
  absl::StatusOr<const Piece*> FindPiece(const TensorRange& range) const;
  std::vector<uint64_t> Hashes(int num_tensors) const;

  const uint64_t version_;
  const Dtype dtype_;
  const std::shared_ptr<SnapshotMemory> memory_;
  std::vector<Piece> pieces_;
  std::vector<LedgerEntry> counted_;
  std::vector<uint64_t> hashes_;  // none: from the pieces
};

// One manifest of what all ranks have frozen: part i is that of the rank at endpoints[i]. INTERNAL where the parts
// together do not cover each element exactly once, naming tensor and element.
absl::StatusOr<WeightManifest> BuildManifest(uint64_t version, Dtype dtype, const ParameterLayout& layout,
                                             const std::vector<PublishedPart>& parts,
                                             const std::vector<std::string>& endpoints);

}  // namespace quartet
