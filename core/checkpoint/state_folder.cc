#include "core/checkpoint/state_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files/files.h"
#include "core/base/hash.h"
#include "core/base/hash_text.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/hashed_text.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/data/json.h"
#include "core/data/json_fields.h"
#include "core/safetensors/writer.h"
#include "core/weights/tensor_hash.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "quartet training state";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
constexpr int kMaxManifestDepth = 8;
// Hashed while still in the processor's cache.
constexpr int64_t kChunkBytes = 1 << 20;

std::string TensorName(const std::string& kind, const std::string& parameter) {
  return absl::StrCat(kind, ".", parameter);
}

std::string RangeName(int64_t begin, int64_t count) { return absl::StrCat("[", begin, ", ", begin + count, ")"); }

std::string ManifestText(const StateManifest& manifest) {
  Json content;
  content["format"] = kFormat;
  content["version"] = kVersion;
  content["dtype"] = std::string(DtypeName(manifest.dtype));
  content["optimizer"] = manifest.optimizer;
  content["optimizer_steps"] = manifest.optimizer_steps;
  if (manifest.base_hash.has_value()) content["base_hash"] = HashText(*manifest.base_hash);
  if (manifest.adapter_scale.has_value()) content["adapter_scale"] = *manifest.adapter_scale;
  content["kinds"] = manifest.kinds;
  content["parameters"] = Json::array();
  for (const StateParameter& parameter : manifest.parameters) {
    content["parameters"].push_back({{"name", parameter.name}, {"shape", parameter.shape}});
  }
  content["files"] = Json::array();
  for (const StateFile& file : manifest.files) {
    Json slices = Json::array();
    for (const StateSlice& slice : file.slices) {
      Json hashes = Json::array();
      for (const uint64_t hash : slice.hashes) hashes.push_back(HashText(hash));
      slices.push_back({{"parameter", manifest.parameters[slice.parameter].name},
                        {"begin", slice.begin},
                        {"count", slice.count},
                        {"hashes", std::move(hashes)}});
    }
    content["files"].push_back({{"name", file.name},
                                {"bytes", file.bytes},
                                {"header_hash", HashText(file.header_hash)},
                                {"slices", std::move(slices)}});
  }
  return WithOwnHash(absl::StrCat("{\"content\": ", content.dump(1), "}\n"));
}

// Every element of every parameter is in exactly one slice.
absl::Status CheckCoverage(const std::string& path, const StateManifest& manifest) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> ranges(manifest.parameters.size());
  for (const StateFile& file : manifest.files) {
    for (const StateSlice& slice : file.slices) {
      ranges[slice.parameter].push_back({slice.begin, slice.begin + slice.count});
    }
  }
  for (size_t p = 0; p < ranges.size(); ++p) {
    std::sort(ranges[p].begin(), ranges[p].end());
    int64_t end = 0;
    const int64_t numel = manifest.parameters[p].numel();
    ranges[p].push_back({numel, numel});
    for (const auto& [first, last] : ranges[p]) {
      if (first != end) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": elements ", RangeName(std::min(first, end), std::abs(first - end)), " of parameter ",
                         manifest.parameters[p].name, first > end ? " are in no file" : " are in more than one file"));
      }
      end = last;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StateManifest> ParseManifest(const std::string& path, const std::string& text) {
  if (!BeginsWithHash(text)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not the manifest of a training state"));
  }
  QUARTET_RETURN_IF_ERROR(CheckOwnHash(text, path));
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path, kMaxManifestDepth));
  JsonFields fields(path);
  const nlohmann::json& content = fields.Object(json, "content");
  if (const std::string format = fields.Text(content, "format"); format != kFormat) {
    fields.Fail(absl::StrCat("its format is \"", format, "\", not \"", kFormat, "\""));
  }
  if (const int64_t version = fields.Count(content, "version"); version != kVersion) {
    fields.Fail(absl::StrCat("its version is ", version, "; this program reads ", kVersion));
  }
  StateManifest manifest;
  const std::string dtype = fields.Text(content, "dtype");
  if (dtype != DtypeName(Dtype::kF32) && dtype != DtypeName(Dtype::kF64)) {
    fields.Fail(absl::StrCat("dtype \"", dtype, "\" is not known; allowed: F32, F64"));
  }
  manifest.dtype = dtype == DtypeName(Dtype::kF64) ? Dtype::kF64 : Dtype::kF32;
  if (content.contains("optimizer")) manifest.optimizer = fields.Text(content, "optimizer");
  manifest.optimizer_steps = fields.Count(content, "optimizer_steps");
  if (content.contains("base_hash")) manifest.base_hash = fields.Hash(content, "base_hash");
  if (content.contains("adapter_scale")) manifest.adapter_scale = fields.Number(content, "adapter_scale");
  for (const nlohmann::json& kind : fields.Array(content, "kinds")) {
    manifest.kinds.push_back(fields.AsText(kind, "kinds"));
  }
  std::map<std::string, int> parameters;
  for (const nlohmann::json& entry : fields.Array(content, "parameters")) {
    StateParameter& parameter = manifest.parameters.emplace_back();
    parameter.name = fields.Text(entry, "name");
    int64_t bytes = DtypeSize(manifest.dtype);
    for (const nlohmann::json& size : fields.Array(entry, "shape")) {
      parameter.shape.push_back(fields.AsCount(size, "shape"));
      if (__builtin_mul_overflow(bytes, parameter.shape.back(), &bytes)) {
        fields.Fail(absl::StrCat("the shape of parameter ", parameter.name, " overflows"));
      }
    }
    if (!parameters.emplace(parameter.name, parameters.size()).second) {
      fields.Fail(absl::StrCat("parameter ", parameter.name, " is there twice"));
    }
  }
  QUARTET_RETURN_IF_ERROR(fields.status());
  for (const nlohmann::json& entry : fields.Array(content, "files")) {
    StateFile& file = manifest.files.emplace_back();
    file.name = fields.Text(entry, "name");
    if (file.name.empty() || file.name == "." || file.name == ".." || absl::StrContains(file.name, '/')) {
      fields.Fail(absl::StrCat("\"", file.name, "\" is not the plain name of a file beside the manifest"));
    }
    file.bytes = fields.Count(entry, "bytes");
    file.header_hash = fields.Hash(entry, "header_hash");
    for (const nlohmann::json& part : fields.Array(entry, "slices")) {
      StateSlice& slice = file.slices.emplace_back();
      const std::string name = fields.Text(part, "parameter");
      const auto found = parameters.find(name);
      if (found == parameters.end()) {
        fields.Fail(absl::StrCat("parameter ", name, " of file ", file.name, " is not among the parameters"));
        break;
      }
      slice.parameter = found->second;
      slice.begin = fields.Count(part, "begin");
      slice.count = fields.Count(part, "count");
      const int64_t numel = manifest.parameters[slice.parameter].numel();
      if (slice.begin > numel || slice.count > numel - slice.begin) {
        fields.Fail(absl::StrCat("parameter ", name, " of file ", file.name, " has ", numel, " elements, not ",
                                 slice.count, " from ", slice.begin));
      }
      for (const nlohmann::json& value : fields.Array(part, "hashes"))
        slice.hashes.push_back(fields.AsHash(value, "hashes"));
      if (slice.hashes.size() != manifest.kinds.size()) {
        fields.Fail(absl::StrCat("parameter ", name, " of file ", file.name, " has ", slice.hashes.size(),
                                 " hashes for ", manifest.kinds.size(), " kinds"));
      }
    }
    QUARTET_RETURN_IF_ERROR(fields.status());
  }
  QUARTET_RETURN_IF_ERROR(fields.status());
  QUARTET_RETURN_IF_ERROR(CheckCoverage(path, manifest));
  return manifest;
}

}  // namespace

int64_t StateParameter::numel() const { return NumelOf(shape); }

std::string StateFileName(int file, int files) { return absl::StrFormat("part-%05d-of-%05d.safetensors", file, files); }

struct StateFileWriter::Impl {
  const StateManifest* manifest = nullptr;
  StateFile file;
  std::unique_ptr<SafetensorsWriter> writer;

  // Kind after kind: a reader of one kind reads on and on.
  int Entry(int slice, int kind) const { return kind * static_cast<int>(file.slices.size()) + slice; }
};

StateFileWriter::StateFileWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateFileWriter::~StateFileWriter() = default;

absl::StatusOr<std::unique_ptr<StateFileWriter>> StateFileWriter::Create(const std::string& folder,
                                                                         const StateManifest& manifest, int file) {
  auto impl = std::make_unique<Impl>();
  impl->manifest = &manifest;
  impl->file = manifest.files[file];
  std::vector<SafetensorsWriter::Entry> entries;
  for (const std::string& kind : manifest.kinds) {
    for (const StateSlice& slice : impl->file.slices) {
      entries.push_back({TensorName(kind, manifest.parameters[slice.parameter].name), manifest.dtype, {slice.count}});
    }
  }
  for (StateSlice& slice : impl->file.slices) slice.hashes.assign(manifest.kinds.size(), 0);
  QUARTET_ASSIGN_OR_RETURN(impl->writer,
                           SafetensorsWriter::Create(absl::StrCat(folder, "/", impl->file.name), std::move(entries)));
  impl->file.bytes = impl->writer->file_bytes();
  impl->file.header_hash = impl->writer->header_hash();
  return std::unique_ptr<StateFileWriter>(new StateFileWriter(std::move(impl)));
}

absl::Status StateFileWriter::Write(int slice, int kind, int64_t offset, const void* data, int64_t count) {
  const Dtype dtype = impl_->manifest->dtype;
  const int64_t size = DtypeSize(dtype), chunk = kChunkBytes / size;
  StateSlice& written = impl_->file.slices[slice];
  const char* from = static_cast<const char*>(data);
  for (int64_t done = 0; done < count; done += chunk) {
    const int64_t n = std::min(chunk, count - done);
    written.hashes[kind] += HashElements(from + done * size, dtype, written.begin + offset + done, n);
    QUARTET_RETURN_IF_ERROR(
        impl_->writer->Write(impl_->Entry(slice, kind), (offset + done) * size, from + done * size, n * size));
  }
  return absl::OkStatus();
}

absl::StatusOr<StateFile> StateFileWriter::Finish() {
  QUARTET_RETURN_IF_ERROR(impl_->writer->Close());
  return std::move(impl_->file);
}

absl::StatusOr<uint64_t> WriteStateManifest(const std::string& folder, const StateManifest& manifest) {
  const std::string text = ManifestText(manifest);
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(absl::StrCat(folder, "/", kStateManifestName), text));
  return HashBytes(text);
}

struct StateReader::Impl {
  std::string folder;
  StateManifest manifest;
  uint64_t manifest_hash = 0;
  struct Place {
    int file;
    int slice;  // counted over all files
    int64_t begin, end;
  };
  std::map<std::string, int> parameters;
  std::vector<std::vector<Place>> places;                // by parameter, in the order of their elements
  std::vector<std::unique_ptr<CheckpointReader>> files;  // those opened so far
  std::vector<uint64_t> sums;

  std::string Path(int file) const { return absl::StrCat(folder, "/", manifest.files[file].name); }

  // The file, opened and compared with the manifest.
  absl::StatusOr<const CheckpointReader*> File(int file) {
    if (files[file] != nullptr) return files[file].get();
    const StateFile& expected = manifest.files[file];
    const std::string path = Path(file);
    struct stat info;
    if (stat(path.c_str(), &info) != 0) {
      const int error = errno;
      return absl::ErrnoToStatus(error, absl::StrCat(path, ": is named in ", kStateManifestName, ", but"));
    }
    if (static_cast<uint64_t>(info.st_size) != expected.bytes) {
      return absl::DataLossError(absl::StrCat(path, ": is ", info.st_size, " bytes long, but ", kStateManifestName,
                                              " says ", expected.bytes,
                                              "; it was cut short or belongs to another checkpoint"));
    }
    absl::StatusOr<std::unique_ptr<CheckpointReader>> opened = CheckpointReader::OpenFile(path);
    if (absl::IsInvalidArgument(opened.status())) return absl::DataLossError(opened.status().message());
    QUARTET_RETURN_IF_ERROR(opened.status());
    if ((*opened)->header_hash(0) != expected.header_hash) {
      return absl::DataLossError(absl::StrCat(path, ": its header does not have the hash that ", kStateManifestName,
                                              " gives; it was altered or belongs to another checkpoint"));
    }
    files[file] = *std::move(opened);
    return files[file].get();
  }
};

StateReader::StateReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateReader::~StateReader() = default;

absl::StatusOr<std::unique_ptr<StateReader>> StateReader::Open(const std::string& folder) {
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  const std::string path = absl::StrCat(folder, "/", kStateManifestName);
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(folder, " is no training state that was finished: it has no ",
                                            kStateManifestName, HintOfStates(folder)));
  }
  QUARTET_RETURN_IF_ERROR(text.status());
  QUARTET_ASSIGN_OR_RETURN(impl->manifest, ParseManifest(path, *text));
  impl->manifest_hash = HashBytes(*text);
  const StateManifest& manifest = impl->manifest;
  for (const StateParameter& parameter : manifest.parameters) {
    impl->parameters.emplace(parameter.name, impl->parameters.size());
  }
  impl->places.resize(manifest.parameters.size());
  impl->files.resize(manifest.files.size());
  int slices = 0;
  for (size_t f = 0; f < manifest.files.size(); ++f) {
    for (const StateSlice& slice : manifest.files[f].slices) {
      impl->places[slice.parameter].push_back({static_cast<int>(f), slices++, slice.begin, slice.begin + slice.count});
    }
  }
  for (auto& places : impl->places) {
    std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
  impl->sums.assign(slices * manifest.kinds.size(), 0);
  return std::unique_ptr<StateReader>(new StateReader(std::move(impl)));
}

const StateManifest& StateReader::manifest() const { return impl_->manifest; }
uint64_t StateReader::manifest_hash() const { return impl_->manifest_hash; }
const std::vector<uint64_t>& StateReader::sums() const { return impl_->sums; }

int StateReader::FindKind(const std::string& name) const {
  const auto& kinds = impl_->manifest.kinds;
  const auto found = std::find(kinds.begin(), kinds.end(), name);
  return found == kinds.end() ? -1 : static_cast<int>(found - kinds.begin());
}

int StateReader::FindParameter(const std::string& name) const {
  const auto found = impl_->parameters.find(name);
  return found == impl_->parameters.end() ? -1 : found->second;
}

absl::Status StateReader::Read(int kind, int parameter, int64_t begin, int64_t count, void* out) {
  const StateManifest& manifest = impl_->manifest;
  const int64_t numel = manifest.parameters[parameter].numel();
  if (begin < 0 || count < 0 || begin > numel || count > numel - begin) {
    return absl::OutOfRangeError(absl::StrCat(impl_->folder, ": elements ", RangeName(begin, count), " of ",
                                              manifest.parameters[parameter].name, " asked for; it has ", numel));
  }
  const std::string name = TensorName(manifest.kinds[kind], manifest.parameters[parameter].name);
  const int64_t size = DtypeSize(manifest.dtype), chunk = kChunkBytes / size;
  const int64_t end = begin + count;
  char* to = static_cast<char*>(out);
  for (const Impl::Place& place : impl_->places[parameter]) {
    const int64_t first = std::max(begin, place.begin), last = std::min(end, place.end);
    if (first >= last) continue;
    QUARTET_ASSIGN_OR_RETURN(const CheckpointReader* file, impl_->File(place.file));
    uint64_t& sum = impl_->sums[place.slice * manifest.kinds.size() + kind];
    for (int64_t at = first; at < last; at += chunk) {
      const int64_t n = std::min(chunk, last - at);
      QUARTET_RETURN_IF_ERROR(file->ReadRange(name, at - place.begin, n, to + (at - begin) * size));
      sum += HashElements(to + (at - begin) * size, manifest.dtype, at, n);
    }
  }
  return absl::OkStatus();
}

absl::Status StateReader::Verify(const std::vector<uint64_t>& sums, const std::vector<int>& kinds) const {
  const StateManifest& manifest = impl_->manifest;
  size_t slice = 0;
  for (size_t f = 0; f < manifest.files.size(); ++f) {
    for (const StateSlice& expected : manifest.files[f].slices) {
      for (const int kind : kinds) {
        if (sums[slice * manifest.kinds.size() + kind] == expected.hashes[kind]) continue;
        return absl::DataLossError(
            absl::StrCat(impl_->Path(static_cast<int>(f)), ": tensor ",
                         TensorName(manifest.kinds[kind], manifest.parameters[expected.parameter].name),
                         ": its elements ", RangeName(expected.begin, expected.count), " do not have the hash that ",
                         kStateManifestName, " gives; the file was altered or belongs to another checkpoint"));
      }
      ++slice;
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyStateFolder(const std::string& folder, const std::function<absl::Status()>& proceed) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> reader, StateReader::Open(folder));
  const StateManifest& manifest = reader->manifest();
  std::vector<char> buffer(kChunkBytes);
  const int64_t chunk = kChunkBytes / DtypeSize(manifest.dtype);
  std::vector<int> kinds;
  for (int kind = 0; kind < static_cast<int>(manifest.kinds.size()); ++kind) {
    kinds.push_back(kind);
    for (int p = 0; p < static_cast<int>(manifest.parameters.size()); ++p) {
      const int64_t numel = manifest.parameters[p].numel();
      for (int64_t at = 0; at < numel; at += chunk) {
        if (proceed) QUARTET_RETURN_IF_ERROR(proceed());
        QUARTET_RETURN_IF_ERROR(reader->Read(kind, p, at, std::min(chunk, numel - at), buffer.data()));
      }
    }
  }
  return reader->Verify(reader->sums(), kinds);
}

}  // namespace quartet
