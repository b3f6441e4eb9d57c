// The files of a training state: which elements are in which file, and how they are known to be whole. LibTorch-free.
//
//   part-00000-of-00002.safetensors   one a rank: what that rank owns
//   manifest.json                     written last: the files, their sizes, what is in them, hashes
//
// A file holds slices: elements [begin, begin + count) of one parameter, as one flat tensor "<kind>.<parameter>" for
// each kind ("master", "exp_avg", ...). The slices of all files cover every parameter exactly once, so that a rank of
// any other world size, mesh or compute type finds the ranges that it needs by parameter and element.
//
// Hashes of slices are those of core/weights/tensor_hash.h: a sum over elements, each mixed with its position. Ranks
// that read parts of a slice add up their sums and compare the total with the manifest: everything is verified by what
// is read anyway, at any world size. They find damage and mix-ups; they are no defence against forgery.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/safetensors/reader.h"

namespace quartet {

struct StateParameter {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const;
};

struct StateSlice {
  int parameter = 0;  // index into StateManifest::parameters
  int64_t begin = 0;  // element, row-major
  int64_t count = 0;
  std::vector<uint64_t> hashes;  // one a kind
};

struct StateFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t header_hash = 0;
  std::vector<StateSlice> slices;
};

struct StateManifest {
  Dtype dtype = Dtype::kF32;       // of every tensor
  std::string optimizer = "adam";  // as TrainerConfig.optim; that of manifests which do not name one
  int64_t optimizer_steps = 0;
  // Of adapters that are trained: AdapterConfig::base_hash of their model. Not in manifests of release 0.1.0.
  std::optional<uint64_t> base_hash = {};
  // Likewise: AdapterConfig::scale.
  std::optional<double> adapter_scale = {};
  std::vector<std::string> kinds;
  std::vector<StateParameter> parameters;
  std::vector<StateFile> files;
};

inline constexpr char kStateManifestName[] = "manifest.json";

// "part-00000-of-00002.safetensors"
std::string StateFileName(int file, int files);

// Writes one of the manifest's files. An error (RESOURCE_EXHAUSTED: the disk is full) names the path; the file is there
// whole after Finish, or not at all. Not thread safe.
class StateFileWriter {
 public:
  // `manifest` must outlive this; of file number `file` the name and the slices are set.
  static absl::StatusOr<std::unique_ptr<StateFileWriter>> Create(const std::string& folder,
                                                                 const StateManifest& manifest, int file);
  ~StateFileWriter();

  // `count` elements of a kind of the file's slice number `slice`, from the slice's element `offset`.
  absl::Status Write(int slice, int kind, int64_t offset, const void* data, int64_t count);
  // Syncs the file and returns the manifest's entry, complete.
  absl::StatusOr<StateFile> Finish();

 private:
  struct Impl;
  explicit StateFileWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes `folder`/manifest.json, durably. Returns its hash.
absl::StatusOr<uint64_t> WriteStateManifest(const std::string& folder, const StateManifest& manifest);

// Reads parts of a state, opening only the files that they are in. Errors name the file and what is wrong with it:
// NOT_FOUND, INVALID_ARGUMENT (no state at all), DATA_LOSS (cut short, altered, of another state). Not thread safe.
class StateReader {
 public:
  // Checks the manifest: its own hash, and that the slices cover every parameter exactly once.
  static absl::StatusOr<std::unique_ptr<StateReader>> Open(const std::string& folder);
  ~StateReader();

  const StateManifest& manifest() const;
  // Of the manifest's text: two states are the same if these are.
  uint64_t manifest_hash() const;
  // Indices into the manifest's kinds and parameters; -1 if there is none of that name.
  int FindKind(const std::string& name) const;
  int FindParameter(const std::string& name) const;

  // Elements [begin, begin + count) of one kind of a parameter.
  absl::Status Read(int kind, int parameter, int64_t begin, int64_t count, void* out);

  // Hashes of what was read so far, by slice (in the order of files), then kind. Those of readers whose parts do not
  // overlap add up, modulo 2^64.
  const std::vector<uint64_t>& sums() const;
  // Compares the sums of readers that together have read everything of `kinds`, once. DATA_LOSS names the file and the
  // tensor that differs.
  absl::Status Verify(const std::vector<uint64_t>& sums, const std::vector<int>& kinds) const;

 private:
  struct Impl;
  explicit StateReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads every file of a state and verifies it, in one process and little memory. `proceed`, if given, is asked before
// each part that is read; its error is the result.
absl::Status VerifyStateFolder(const std::string& folder, const std::function<absl::Status()>& proceed = nullptr);

}  // namespace quartet
