#include "core/zero/state/training_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/fail_point.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/base/time/loading.h"
#include "core/checkpoint/state_folder.h"
#include "core/checkpoint/state_use.h"
#include "core/comm/agreement.h"
#include "core/memory/catch_exceptions.h"
#include "core/safetensors/reader.h"
#include "core/zero/sharded/flat_layout.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

// What is copied at a time between a file and memory that is not the host's.
constexpr int64_t kBounceElements = 1 << 20;

Dtype DtypeOf(const at::Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? Dtype::kF64 : Dtype::kF32; }

// Where a rank's slices lie in its state tensors.
struct Piece {
  int group;
  int64_t offset;  // element of the group's state tensors
  int64_t count;
  int64_t begin;  // element of the parameter
  int parameter;  // of the manifest: groups' parameters one after the other
};

// What each rank writes and reads: what it owns.
class Partition {
 public:
  explicit Partition(TrainableModel& model) : model_(model.trained()) {
    const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(model_.options().compute_dtype));
    for (const ParameterGroup& group : model_.layout().groups) {
      flat_.push_back(MakeFlatGroup(group, element_bytes, /*shards=*/1));
    }
  }

  std::vector<Piece> PiecesOf(int rank) const {
    std::vector<Piece> pieces;
    int parameters = 0;
    const auto& groups = model_.layout().groups;
    for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
      const OwnedRange own = model_.owned(g, rank);
      for (const FlatPiece& piece : PiecesWithin(groups[g], flat_[g], own.begin, own.count)) {
        pieces.push_back({g, own.offset + piece.offset, piece.count, piece.begin, parameters + piece.parameter});
      }
      parameters += static_cast<int>(groups[g].parameters.size());
    }
    return pieces;
  }

 private:
  ShardedModel& model_;
  std::vector<FlatGroup> flat_;  // for their offsets, which are the same at every world size
};

// The manifest but for sizes and hashes; the same on every rank.
StateManifest Describe(TrainableModel& model, const Partition& partition) {
  StateManifest manifest;
  const std::vector<NamedState> state = model.state(0);
  manifest.dtype = DtypeOf(state[0].values);
  manifest.optimizer = std::string(model.optimizer().name());
  manifest.optimizer_steps = model.steps();
  if (const auto& adapters = model.model().config().lora; adapters.has_value()) {
    manifest.base_hash = adapters->base_hash;
    manifest.adapter_scale = adapters->scale;
  }
  for (const NamedState& part : state) manifest.kinds.push_back(part.name);
  for (const ParameterGroup& group : model.trained().layout().groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      manifest.parameters.push_back({parameter.name, parameter.shape});
    }
  }
  const int ranks = model.model().process_group().size();
  for (int rank = 0; rank < ranks; ++rank) {
    StateFile& file = manifest.files.emplace_back();
    file.name = StateFileName(rank, ranks);
    for (const Piece& piece : partition.PiecesOf(rank)) {
      file.slices.push_back({piece.parameter, piece.begin, piece.count, {}});
    }
  }
  return manifest;
}

// Sums `values` over ranks modulo 2^64. In halves, so that no signed sum overflows.
void SumOverRanks(ProcessGroup& group, at::Device device, std::vector<uint64_t>* values) {
  if (group.size() == 1 || values->empty()) return;
  at::Tensor halves = at::empty({static_cast<int64_t>(2 * values->size())}, at::TensorOptions(at::kLong));
  int64_t* data = halves.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < values->size(); ++i) {
    data[2 * i] = static_cast<int64_t>((*values)[i] & 0xffffffff);
    data[2 * i + 1] = static_cast<int64_t>((*values)[i] >> 32);
  }
  halves = halves.to(device);
  group.AllReduceSum(halves)->Wait();
  halves = halves.cpu();
  data = halves.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < values->size(); ++i) {
    (*values)[i] = static_cast<uint64_t>(data[2 * i]) + (static_cast<uint64_t>(data[2 * i + 1]) << 32);
  }
}

absl::Status WritePart(TrainableModel& model, const std::vector<Piece>& pieces, const std::string& folder,
                       const StateManifest& manifest, int rank, StateFile* written) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<StateFileWriter> writer,
                           StateFileWriter::Create(folder, manifest, rank));
  QUARTET_RETURN_IF_ERROR(FailPoint("training_state.write"));
  for (int kind = 0; kind < static_cast<int>(manifest.kinds.size()); ++kind) {
    for (int p = 0; p < static_cast<int>(pieces.size()); ++p) {
      const at::Tensor values = model.state(pieces[p].group)[kind].values.narrow(0, pieces[p].offset, pieces[p].count);
      const int64_t step = values.device().is_cpu() ? pieces[p].count : kBounceElements;
      for (int64_t done = 0; done < pieces[p].count; done += step) {
        const int64_t count = std::min(step, pieces[p].count - done);
        const at::Tensor part = values.narrow(0, done, count).cpu();
        QUARTET_RETURN_IF_ERROR(writer->Write(p, kind, done, part.const_data_ptr(), count));
      }
    }
  }
  QUARTET_ASSIGN_OR_RETURN(*written, writer->Finish());
  return absl::OkStatus();
}

// The files of all ranks are there as their ranks wrote them.
absl::Status CheckFilesVisible(const std::string& folder, const StateManifest& manifest) {
  for (const StateFile& file : manifest.files) {
    const std::string path = absl::StrCat(folder, "/", file.name);
    std::error_code error;
    const uintmax_t bytes = fs::file_size(path, error);
    if (error || bytes != file.bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": another rank has written ", file.bytes, " bytes, but rank 0 sees ",
                       error ? error.message() : absl::StrCat(bytes),
                       "; a checkpoint's folder must be on a file system that all ranks share"));
    }
  }
  return absl::OkStatus();
}

absl::Status MakeTemporary(const std::string& folder, const std::string& temporary) {
  std::error_code error;
  if (fs::exists(folder, error)) {
    return absl::AlreadyExistsError(absl::StrCat("cannot save a training state to ", folder, ": it exists already"));
  }
  fs::remove_all(temporary, error);  // of a save that was killed; what cannot be removed fails below
  return MakeDirs(temporary);
}

absl::Status Publish(const std::string& temporary, const std::string& folder, const StateManifest& manifest,
                     uint64_t* manifest_hash) {
  QUARTET_RETURN_IF_ERROR(CheckFilesVisible(temporary, manifest));
  QUARTET_ASSIGN_OR_RETURN(*manifest_hash, WriteStateManifest(temporary, manifest));
  std::error_code error;
  fs::rename(temporary, folder, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("renaming ", temporary, " to ", folder));
  }
  return SyncFolder(fs::absolute(folder).parent_path().string());
}

absl::Status CheckFits(TrainableModel& model, const std::string& folder, const StateReader& reader,
                       const std::string& section) {
  const StateManifest& manifest = reader.manifest();
  const auto refuse = [&folder](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " is not of this model: ", what));
  };
  QUARTET_RETURN_IF_ERROR(CheckStateOfSameAdapters(manifest, folder, model.model().config().lora, section));
  int64_t parameters = 0;
  for (const ParameterGroup& group : model.trained().layout().groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      ++parameters;
      const int found = reader.FindParameter(parameter.name);
      if (found < 0) return refuse(absl::StrCat("it has no parameter ", parameter.name));
      if (manifest.parameters[found].shape != parameter.shape) {
        return refuse(absl::StrCat("its ", parameter.name, " has shape ", ShapeText(manifest.parameters[found].shape),
                                   ", the model's has ", ShapeText(parameter.shape)));
      }
    }
  }
  if (parameters != static_cast<int64_t>(manifest.parameters.size())) {
    return refuse(absl::StrCat("it has ", manifest.parameters.size(), " parameters, the model has ", parameters));
  }
  const std::vector<NamedState> state = model.state(0);
  const bool has_average =
      std::any_of(state.begin(), state.end(), [](const NamedState& part) { return part.name == kAverageKind; });
  QUARTET_RETURN_IF_ERROR(CheckGoesOnFrom(manifest, folder, model.optimizer().name(), has_average, section));
  for (const NamedState& part : state) {
    if (reader.FindKind(part.name) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder, " has no \"", part.name, "\", which the model keeps; it has ", absl::StrJoin(manifest.kinds, ", ")));
    }
    if (DtypeOf(part.values) != manifest.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(folder, " is of type ", std::string(DtypeName(manifest.dtype)),
                                                     ", the model's state of ",
                                                     std::string(DtypeName(DtypeOf(part.values)))));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadPieces(TrainableModel& model, const std::vector<Piece>& pieces, StateReader& reader, bool logs) {
  std::vector<int> parameters;  // of the file, by the model's order
  for (const ParameterGroup& group : model.trained().layout().groups) {
    for (const ParameterSpec& parameter : group.parameters) parameters.push_back(reader.FindParameter(parameter.name));
  }
  const int kinds = static_cast<int>(model.state(0).size());
  int64_t begun = 0;
  for (int k = 0; k < kinds; ++k) {
    for (const Piece& piece : pieces) {
      const auto all = static_cast<int64_t>(pieces.size()) * kinds;
      if (logs) ReportLoading("reading the training state", ++begun, all);
      const NamedState part = model.state(piece.group)[k];
      const int kind = reader.FindKind(part.name);
      const at::Tensor values = part.values.narrow(0, piece.offset, piece.count);
      if (values.device().is_cpu()) {
        QUARTET_RETURN_IF_ERROR(
            reader.Read(kind, parameters[piece.parameter], piece.begin, piece.count, values.mutable_data_ptr()));
        continue;
      }
      for (int64_t done = 0; done < piece.count; done += kBounceElements) {
        const int64_t count = std::min(kBounceElements, piece.count - done);
        const at::Tensor bounce = at::empty({count}, at::TensorOptions(values.scalar_type()));
        QUARTET_RETURN_IF_ERROR(
            reader.Read(kind, parameters[piece.parameter], piece.begin + done, count, bounce.mutable_data_ptr()));
        values.narrow(0, done, count).copy_(bounce);
      }
    }
  }
  return absl::OkStatus();
}

// All ranks have read the same manifest: what follows is laid out by it.
absl::Status CheckSameManifest(ProcessGroup& group, at::Device device, const std::string& folder, uint64_t hash) {
  at::Tensor hashes = at::zeros({group.size()}, at::TensorOptions(at::kLong));
  hashes.mutable_data_ptr<int64_t>()[group.rank()] = static_cast<int64_t>(hash);
  hashes = hashes.to(device);
  group.AllGatherInPlace(hashes)->Wait();
  hashes = hashes.cpu();
  for (int rank = 0; rank < group.size(); ++rank) {
    if (static_cast<uint64_t>(hashes.const_data_ptr<int64_t>()[rank]) == hash) continue;
    return absl::FailedPreconditionError(absl::StrCat(folder, ": rank ", rank, " and rank ", group.rank(),
                                                      " see different manifests; all ranks must see the same folder"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SavedState> SaveTrainingState(TrainableModel& model, const std::string& target) {
  at::NoGradGuard no_grad;
  ProcessGroup& group = model.model().process_group();
  const at::Device device = model.model().options().device;
  const std::string folder = fs::path(target).lexically_normal().string();
  const Ledger& ledger = model.model().ledger();
  const std::string what = absl::StrCat("saving ", folder);
  const std::string temporary = folder + ".partial";
  const bool first = group.rank() == 0;
  const auto clean_up = [&] {
    std::error_code ignored;  // nothing more can be done about what cannot be removed
    if (first) fs::remove_all(temporary, ignored);
  };
  const auto try_out = [&](const std::function<absl::Status()>& work) {
    return WithoutDeadline(group, device, what, [&] { return CatchExceptions(what, ledger, work); });
  };
  // Tells all ranks of an error of any of them, and waits until nothing is left of the save.
  const auto agree = [&](const std::function<absl::Status()>& work) -> absl::Status {
    const absl::Status all = AgreeOnStatus(group, try_out(work), device);
    if (all.ok()) return all;
    clean_up();
    group.Barrier();
    return all;
  };
  try {
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(
        group, try_out([&] { return first ? MakeTemporary(folder, temporary) : absl::OkStatus(); }), device));
    const Partition partition(model);
    StateManifest manifest = Describe(model, partition);
    StateFile& own = manifest.files[group.rank()];
    QUARTET_RETURN_IF_ERROR(agree(
        [&] { return WritePart(model, partition.PiecesOf(group.rank()), temporary, manifest, group.rank(), &own); }));

    // Every rank's sizes and hashes, for the manifest.
    std::vector<uint64_t> numbers;
    for (int rank = 0; rank < group.size(); ++rank) {
      StateFile& file = manifest.files[rank];
      for (StateSlice& slice : file.slices) {
        slice.hashes.resize(manifest.kinds.size());
        numbers.insert(numbers.end(), slice.hashes.begin(), slice.hashes.end());
      }
      numbers.push_back(file.bytes);
      numbers.push_back(file.header_hash);
    }
    SumOverRanks(group, device, &numbers);
    SavedState saved;
    size_t next = 0;
    for (StateFile& file : manifest.files) {
      for (StateSlice& slice : file.slices) {
        for (uint64_t& hash : slice.hashes) hash = numbers[next++];
      }
      file.bytes = numbers[next++];
      file.header_hash = numbers[next++];
      saved.bytes += static_cast<int64_t>(file.bytes);
    }
    std::vector<uint64_t> hash(1);
    QUARTET_RETURN_IF_ERROR(
        agree([&] { return first ? Publish(temporary, folder, manifest, &hash[0]) : absl::OkStatus(); }));
    SumOverRanks(group, device, &hash);
    saved.manifest_hash = hash[0];
    return saved;
  } catch (const std::exception& error) {
    clean_up();
    return absl::UnavailableError(absl::StrCat(what, ": ", error.what()));
  }
}

absl::Status LoadTrainingState(TrainableModel& model, const std::string& folder, const std::string& section) {
  at::NoGradGuard no_grad;
  ProcessGroup& group = model.model().process_group();
  const at::Device device = model.model().options().device;
  const Ledger& ledger = model.model().ledger();
  const std::string what = absl::StrCat("loading ", folder);
  try {
    const Partition partition(model);
    const auto agree = [&](const std::function<absl::Status()>& work) {
      return AgreeOnStatus(
          group, WithoutDeadline(group, device, what, [&] { return CatchExceptions(what, ledger, work); }), device);
    };
    std::unique_ptr<StateReader> reader;
    QUARTET_RETURN_IF_ERROR(agree([&]() -> absl::Status {
      QUARTET_ASSIGN_OR_RETURN(reader, StateReader::Open(folder));
      return CheckFits(model, folder, *reader, section);
    }));
    QUARTET_RETURN_IF_ERROR(CheckSameManifest(group, device, folder, reader->manifest_hash()));
    QUARTET_RETURN_IF_ERROR(
        agree([&] { return ReadPieces(model, partition.PiecesOf(group.rank()), *reader, group.rank() == 0); }));
    std::vector<uint64_t> sums = reader->sums();
    SumOverRanks(group, device, &sums);
    std::vector<int> kinds;
    for (const NamedState& part : model.state(0)) kinds.push_back(reader->FindKind(part.name));
    QUARTET_RETURN_IF_ERROR(reader->Verify(sums, kinds));

    const int groups = static_cast<int>(model.trained().layout().groups.size());
    for (int g = 0; g < groups; ++g) {
      for (const NamedState& part : model.state(g)) model.trained().CompleteFromOwners(g, part.values);
    }
    model.Restore(reader->manifest().optimizer_steps);
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace quartet
