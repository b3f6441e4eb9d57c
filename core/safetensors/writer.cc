#include "core/safetensors/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/files/fd.h"
#include "core/base/files/files.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

absl::Status FileError(const std::string& path, const std::string& what, int error) {
  const std::string message = absl::StrCat(path, ": ", what, ": ", strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status WriteAt(int fd, uint64_t offset, const void* data, uint64_t bytes, const std::string& path,
                     const std::string& what) {
  if (WriteAllAt(fd, offset, {static_cast<const char*>(data), bytes})) return absl::OkStatus();
  return FileError(path, absl::StrCat("writing ", what), errno);
}

// What the system may keep to itself before it is told to write: syncing in the end is then no matter of minutes.
constexpr uint64_t kWriteBackBytes = 64 << 20;

// The byte ranges of one tensor that were written, merged where they touch.
class Coverage {
 public:
  // False if some of the range was there before.
  bool Add(uint64_t begin, uint64_t end) {
    if (begin == end) return true;
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first < end) return false;
    auto merged = ranges_.end();
    if (next != ranges_.begin()) {
      auto previous = std::prev(next);
      if (previous->second > begin) return false;
      if (previous->second == begin) {
        previous->second = end;
        merged = previous;
      }
    }
    if (merged == ranges_.end()) merged = ranges_.emplace(begin, end).first;
    if (next != ranges_.end() && next->first == end) {
      merged->second = next->second;
      ranges_.erase(next);
    }
    return true;
  }
  // The first byte below `bytes` that is missing, or `bytes`.
  uint64_t FirstMissing() const { return ranges_.empty() || ranges_.begin()->first != 0 ? 0 : ranges_.begin()->second; }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end
};

struct Slot {
  std::string name;
  uint64_t offset = 0;  // from the file's begin
  uint64_t bytes = 0;
  Coverage written;
};

}  // namespace

struct SafetensorsWriter::Impl {
  std::string path;
  std::string partial_path;
  Fd file;
  uint64_t file_bytes = 0;
  uint64_t header_hash = 0;
  uint64_t kept_back = 0;  // bytes written since the system was told to write
  std::vector<Slot> slots;

  ~Impl() {
    if (file.is_open()) unlink(partial_path.c_str());
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsWriter::~SafetensorsWriter() = default;

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& path,
                                                                             std::vector<Entry> entries) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->partial_path = path + ".partial";
  impl->slots.resize(entries.size());
  std::set<std::string> names;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const std::string place = absl::StrCat(path, ": tensor \"", entry.name, "\": ");
    if (!names.insert(entry.name).second) return absl::InvalidArgumentError(absl::StrCat(place, "declared twice"));
    if (entry.name == "__metadata__") return absl::InvalidArgumentError(absl::StrCat(place, "the name is reserved"));
    int64_t bytes = DtypeSize(entry.dtype);
    for (const int64_t dimension : entry.shape) {
      if (dimension < 0 || __builtin_mul_overflow(bytes, dimension, &bytes)) {
        return absl::InvalidArgumentError(absl::StrCat(place, "dimension ", dimension, " is negative or overflows"));
      }
    }
    impl->slots[i].name = entry.name;
    impl->slots[i].bytes = bytes;
  }

  // Wider types first, so that each tensor is aligned to its own type.
  std::vector<int> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return DtypeSize(entries[a].dtype) > DtypeSize(entries[b].dtype); });
  // Loaders of Hugging Face ask for the metadata's format.
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t data_bytes = 0;
  for (const int i : order) {
    Slot& slot = impl->slots[i];
    slot.offset = data_bytes;
    if (__builtin_add_overflow(data_bytes, slot.bytes, &data_bytes) ||
        data_bytes > std::numeric_limits<int64_t>::max() / 2) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the tensors' bytes overflow"));
    }
    header[slot.name] = {{"dtype", std::string(DtypeName(entries[i].dtype))},
                         {"shape", entries[i].shape},
                         {"data_offsets", {slot.offset, data_bytes}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a tensor's name is not UTF-8: ", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the format's padding, so that the data is aligned
  const uint64_t header_bytes = text.size();
  const uint64_t data_begin = sizeof(header_bytes) + header_bytes;
  for (Slot& slot : impl->slots) slot.offset += data_begin;
  impl->file_bytes = data_begin + data_bytes;
  impl->header_hash = HashBytes(text);

  impl->file.Reset(open(impl->partial_path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!impl->file.is_open()) return FileError(impl->partial_path, "cannot be created", errno);
  // A disk that is too full says so now, not after an hour of writing. Not every file system can reserve.
  if (fallocate(impl->file.get(), 0, 0, impl->file_bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
      errno != EINTR) {
    return FileError(impl->partial_path, absl::StrCat("reserving ", impl->file_bytes, " bytes"), errno);
  }
  QUARTET_RETURN_IF_ERROR(
      WriteAt(impl->file.get(), 0, &header_bytes, sizeof(header_bytes), impl->partial_path, "the header's length"));
  QUARTET_RETURN_IF_ERROR(
      WriteAt(impl->file.get(), sizeof(header_bytes), text.data(), text.size(), impl->partial_path, "the header"));
  return std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter(std::move(impl)));
}

absl::Status SafetensorsWriter::Write(int entry, uint64_t offset, const void* data, uint64_t bytes) {
  if (!impl_->file.is_open()) return absl::FailedPreconditionError(absl::StrCat(impl_->path, ": is closed already"));
  if (entry < 0 || entry >= impl_->slots.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(impl_->path, ": there is no tensor ", entry, "; ", impl_->slots.size(), " were declared"));
  }
  Slot& slot = impl_->slots[entry];
  if (offset > slot.bytes || bytes > slot.bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat(impl_->path, ": ", bytes, " bytes at byte ", offset, " of tensor \"",
                                              slot.name, "\" are too many; it has ", slot.bytes));
  }
  QUARTET_RETURN_IF_ERROR(WriteAt(impl_->file.get(), slot.offset + offset, data, bytes, impl_->partial_path,
                                  absl::StrCat("tensor \"", slot.name, "\"")));
  impl_->kept_back += bytes;
  if (impl_->kept_back >= kWriteBackBytes) {
    // Only begins; what goes wrong, fsync says.
    sync_file_range(impl_->file.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    impl_->kept_back = 0;
  }
  if (!slot.written.Add(offset, offset + bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(impl_->path, ": bytes ", offset, " to ", offset + bytes,
                                                   " of tensor \"", slot.name, "\" were written before"));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Close() {
  if (!impl_->file.is_open()) return absl::FailedPreconditionError(absl::StrCat(impl_->path, ": is closed already"));
  for (const Slot& slot : impl_->slots) {
    const uint64_t missing = slot.written.FirstMissing();
    if (missing < slot.bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat(impl_->path, ": byte ", missing, " of tensor \"", slot.name, "\" was never written"));
    }
  }
  if (fsync(impl_->file.get()) != 0) return FileError(impl_->partial_path, "fsync", errno);
  if (rename(impl_->partial_path.c_str(), impl_->path.c_str()) != 0) {
    return FileError(impl_->path, "rename into place", errno);
  }
  if (close(impl_->file.Release()) != 0) return FileError(impl_->path, "close", errno);
  // The name itself reaches the disk with its folder.
  return SyncFolderOf(impl_->path);
}

uint64_t SafetensorsWriter::file_bytes() const { return impl_->file_bytes; }
uint64_t SafetensorsWriter::header_hash() const { return impl_->header_hash; }

}  // namespace quartet
