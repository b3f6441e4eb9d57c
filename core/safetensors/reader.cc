#include "core/safetensors/reader.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files/input_file.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr uint64_t kLengthBytes = 8;
constexpr int kMaxHeaderDepth = 4;  // header, tensor, array; one to spare
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  int64_t size;
};
constexpr DtypeRow kDtypes[] = {
    {Dtype::kF32, "F32", 4}, {Dtype::kF16, "F16", 2},   {Dtype::kBF16, "BF16", 2}, {Dtype::kF64, "F64", 8},
    {Dtype::kI64, "I64", 8}, {Dtype::kI32, "I32", 4},   {Dtype::kI16, "I16", 2},   {Dtype::kI8, "I8", 1},
    {Dtype::kU8, "U8", 1},   {Dtype::kBool, "BOOL", 1},
};

// Fills `out`; an error says `what` was being read.
absl::Status ReadAll(const InputFile& file, uint64_t offset, uint64_t bytes, void* out, const std::string& what) {
  absl::StatusOr<size_t> got = file.ReadAt(offset, bytes, out);
  if (!got.ok()) return absl::Status(got.status().code(), absl::StrCat(got.status().message(), ", reading ", what));
  if (*got == bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(file.path(), ": ended at byte ", offset + *got, " while reading ", what,
                                          "; it was ", file.bytes(), " bytes long when it was opened"));
}

std::optional<uint64_t> AsUnsigned(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

absl::Status TensorError(const std::string& path, std::string_view name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", Quoted(name), ": ", what));
}

// One entry of the header, checked by itself. Offsets are still relative to the end of the header.
absl::StatusOr<TensorInfo> ParseTensor(const std::string& path, const std::string& name, const json& entry,
                                       uint64_t data_bytes) {
  if (!entry.is_object()) return TensorError(path, name, "its entry in the header is not an object");
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return TensorError(path, name, absl::StrCat("unknown key ", Quoted(key), " in the header"));
    }
  }
  TensorInfo info;
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return TensorError(path, name, "\"dtype\" is not a string");
  const auto& dtype_name = dtype->get_ref<const std::string&>();
  const auto row = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                [&](const DtypeRow& candidate) { return candidate.name == dtype_name; });
  if (row == std::end(kDtypes)) {
    return TensorError(path, name, absl::StrCat("the type ", Quoted(dtype_name), " is not supported"));
  }
  info.dtype = row->dtype;

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) return TensorError(path, name, "\"shape\" is not a list");
  // The product of the non-zero dimensions must not overflow either: a later zero must not hide it.
  int64_t product = row->size;
  bool is_empty = false;
  for (const json& dimension : *shape) {
    const std::optional<uint64_t> size = AsUnsigned(dimension);
    if (!size || *size > std::numeric_limits<int64_t>::max()) {
      return TensorError(path, name, absl::StrCat("dimension ", Cut(dimension.dump()), " of the shape is not a size"));
    }
    info.shape.push_back(static_cast<int64_t>(*size));
    if (*size == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(product, info.shape.back(), &product)) {
      return TensorError(path, name, absl::StrCat("the shape ", Cut(shape->dump()), " overflows"));
    }
  }
  info.bytes = is_empty ? 0 : product;

  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !AsUnsigned((*offsets)[0]) ||
      !AsUnsigned((*offsets)[1])) {
    return TensorError(path, name, "\"data_offsets\" is not a pair of byte offsets");
  }
  const uint64_t begin = *AsUnsigned((*offsets)[0]);
  const uint64_t end = *AsUnsigned((*offsets)[1]);
  if (begin > end || end > data_bytes) {
    return TensorError(path, name,
                       absl::StrCat("bytes ", begin, " to ", end, " are not within the ", data_bytes,
                                    " bytes that follow the header; is the file cut short?"));
  }
  if (end - begin != info.bytes) {
    return TensorError(path, name,
                       absl::StrCat("has ", end - begin, " bytes, but shape ", Cut(shape->dump()), " of ",
                                    std::string(row->name), " takes ", info.bytes));
  }
  info.offset = begin;
  return info;
}

// The tensors of one file, with offsets from the file's begin, and the hash of its header.
absl::StatusOr<std::map<std::string, TensorInfo>> ParseFile(const InputFile& file, uint64_t* header_hash) {
  const std::string& path = file.path();
  if (file.bytes() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", file.bytes(), " bytes long, too short for a safetensors file"));
  }
  uint64_t header_bytes;
  QUARTET_RETURN_IF_ERROR(ReadAll(file, 0, kLengthBytes, &header_bytes, "the header's length"));
  if (header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": claims a header of ", header_bytes, " bytes; at most ", kMaxHeaderBytes, " are allowed"));
  }
  if (header_bytes > file.bytes() - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": claims a header of ", header_bytes,
                                                   " bytes, but the file is ", file.bytes(),
                                                   " bytes long; is it cut short?"));
  }
  std::string text(header_bytes, '\0');
  QUARTET_RETURN_IF_ERROR(ReadAll(file, kLengthBytes, header_bytes, text.data(), "the header"));
  *header_hash = HashBytes(text);
  QUARTET_ASSIGN_OR_RETURN(const json header, ParseJson(text, absl::StrCat(path, ": header"), kMaxHeaderDepth));
  if (!header.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": the header is not an object"));

  const uint64_t data_begin = kLengthBytes + header_bytes;
  const uint64_t data_bytes = file.bytes() - data_begin;
  std::map<std::string, TensorInfo> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": __metadata__ is not an object"));
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) {
          return absl::InvalidArgumentError(absl::StrCat(path, ": __metadata__ ", Quoted(key), " is not a string"));
        }
      }
      continue;
    }
    QUARTET_ASSIGN_OR_RETURN(tensors[name], ParseTensor(path, name, entry, data_bytes));
  }

  // Laid end to end in the order of their offsets, they must fill the file without holes or overlaps.
  std::vector<std::pair<const std::string, TensorInfo>*> in_order;
  for (auto& item : tensors) in_order.push_back(&item);
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
  });
  uint64_t expected = 0;
  for (auto* item : in_order) {
    if (item->second.offset != expected) {
      return TensorError(path, item->first,
                         absl::StrCat("begins at byte ", item->second.offset, " of the data, ",
                                      item->second.offset < expected ? "inside the tensor before it"
                                                                     : "leaving a hole after the tensor before it",
                                      ", which ends at ", expected));
    }
    expected += item->second.bytes;
    item->second.offset += data_begin;
  }
  if (expected != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", data_bytes, " bytes follow the header, but its tensors take ", expected));
  }
  return tensors;
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

// Tensor name -> file name, out of the index.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  QUARTET_ASSIGN_OR_RETURN(const json index, ReadJsonFile(path, kMaxIndexBytes, /*max_depth=*/8));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no object \"weight_map\""));
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the file of tensor ", Quoted(name), " is not a string"));
    }
    const auto& file_name = file.get_ref<const std::string&>();
    if (file_name.empty() || file_name == "." || file_name == ".." ||
        file_name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", Quoted(name), " is said to be in ",
                                                     Quoted(file_name),
                                                     "; only a plain name of a file beside the index is allowed"));
    }
    files[name] = file_name;
  }
  return files;
}

}  // namespace

int64_t DtypeSize(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].size; }
std::string_view DtypeName(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].name; }

std::string ShapeText(absl::Span<const int64_t> shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

int64_t NumelOf(absl::Span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t TensorInfo::numel() const { return static_cast<int64_t>(bytes) / DtypeSize(dtype); }

struct CheckpointReader::Impl {
  std::vector<InputFile> files;
  std::vector<uint64_t> header_hashes;
  mutable std::atomic<int64_t> bytes_read{0};
};

CheckpointReader::CheckpointReader() : impl_(std::make_unique<Impl>()) {}
CheckpointReader::~CheckpointReader() = default;

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(const std::string& folder) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader);
  const std::string single = absl::StrCat(folder, "/", kSingleFile);
  const std::string index = absl::StrCat(folder, "/", kIndexFile);

  std::map<std::string, std::string> file_of_tensor;  // empty: one file, which says by itself what it holds
  std::set<std::string> names;
  if (Exists(single)) {
    names.insert(kSingleFile);
  } else if (Exists(index)) {
    QUARTET_ASSIGN_OR_RETURN(file_of_tensor, ReadIndex(index));
    for (const auto& [tensor, file] : file_of_tensor) names.insert(file);
    if (names.empty()) return absl::InvalidArgumentError(absl::StrCat(index, ": \"weight_map\" is empty"));
  } else if (!Exists(folder)) {
    return absl::NotFoundError(absl::StrCat("the model folder ", folder, " does not exist"));
  } else {
    const bool pickled = Exists(folder + "/pytorch_model.bin") || Exists(folder + "/pytorch_model.bin.index.json");
    return absl::NotFoundError(absl::StrCat(
        "the model folder ", folder, " has neither ", kSingleFile, " nor ", kIndexFile,
        !pickled ? ""
                 : absl::StrCat("; its pytorch_model.bin is a pickle, which is code and is not read: convert it with "
                                "transformers, model = AutoModelForCausalLM.from_pretrained(\"",
                                folder, "\"); model.save_pretrained(\"", folder, "\", safe_serialization=True)")));
  }

  for (const std::string& name : names) {
    absl::StatusOr<InputFile> file = InputFile::Open(absl::StrCat(folder, "/", name));
    if (!file.ok()) {
      if (file_of_tensor.empty()) return file.status();
      return absl::Status(file.status().code(),
                          absl::StrCat(std::string(file.status().message()), " (named in ", index, ")"));
    }
    QUARTET_ASSIGN_OR_RETURN(auto tensors, ParseFile(*file, &reader->impl_->header_hashes.emplace_back()));
    const int file_index = static_cast<int>(reader->files_.size());
    for (auto& [tensor, info] : tensors) {
      if (!file_of_tensor.empty()) {
        const auto mapped = file_of_tensor.find(tensor);
        if (mapped == file_of_tensor.end()) {
          return TensorError(file->path(), tensor, absl::StrCat("is not named in ", index));
        }
        if (mapped->second != name) {
          return TensorError(file->path(), tensor, absl::StrCat("is in ", Quoted(mapped->second), " by ", index));
        }
      }
      info.file = file_index;
      reader->tensors_.emplace(tensor, std::move(info));
    }
    reader->files_.push_back(file->path());
    reader->impl_->files.push_back(*std::move(file));
  }
  for (const auto& [tensor, file] : file_of_tensor) {
    if (!reader->tensors_.contains(tensor)) {
      return TensorError(absl::StrCat(folder, "/", file), tensor,
                         absl::StrCat("is not there, though ", index, " says so"));
    }
  }
  return reader;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::OpenFile(const std::string& path) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader);
  QUARTET_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  QUARTET_ASSIGN_OR_RETURN(reader->tensors_, ParseFile(file, &reader->impl_->header_hashes.emplace_back()));
  reader->files_.push_back(path);
  reader->impl_->files.push_back(std::move(file));
  return reader;
}

uint64_t CheckpointReader::header_hash(int file) const { return impl_->header_hashes[file]; }

absl::Status CheckpointReader::ReadRange(const std::string& tensor, int64_t begin, int64_t count, void* out) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(files_.front(), files_.size() > 1 ? " and the files beside it: " : ": ",
                                            "no tensor ", Quoted(tensor)));
  }
  const TensorInfo& info = found->second;
  const int64_t numel = info.numel();
  if (begin < 0 || count < 0 || begin > numel || count > numel - begin) {
    return absl::OutOfRangeError(absl::StrCat(files_[info.file], ": elements ", begin, " and ", count, " on of tensor ",
                                              Quoted(tensor), " asked for; it has ", numel));
  }
  const uint64_t size = DtypeSize(info.dtype);
  QUARTET_RETURN_IF_ERROR(ReadAll(impl_->files[info.file], info.offset + begin * size, count * size, out,
                                  absl::StrCat("tensor ", Quoted(tensor))));
  impl_->bytes_read.fetch_add(static_cast<int64_t>(count * size), std::memory_order_relaxed);
  return absl::OkStatus();
}

int64_t CheckpointReader::bytes_read() const { return impl_->bytes_read.load(std::memory_order_relaxed); }

}  // namespace quartet
