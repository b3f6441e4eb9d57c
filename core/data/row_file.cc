#include "core/data/row_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/fd.h"
#include "core/base/files/files.h"
#include "core/base/files/input_file.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/data/parquet.h"

namespace quartet {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
// Of one row, whose JSON takes a multiple of it in memory.
constexpr uint64_t kMaxRowBytes = uint64_t{64} << 20;

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

std::string ScratchFolder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

// A file for reading and writing that has no name, and so goes when it is closed.
absl::StatusOr<Fd> MakeScratchFile(const std::string& folder) {
  std::string path = folder + "/quartet_rows_XXXXXX";
  Fd file(mkostemp(path.data(), O_CLOEXEC));
  if (!file.is_open()) {
    return absl::UnavailableError(absl::StrCat("no file can be made in ", folder, ", where its rows are kept: ",
                                               strerror(errno), "; TMPDIR names another folder"));
  }
  unlink(path.c_str());
  return file;
}

absl::Status Keep(int fd, std::string_view bytes, const std::string& folder) {
  if (WriteAll(fd, bytes)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("its rows cannot be kept in ", folder, ": ", strerror(errno), "; TMPDIR names another folder"));
}

// The columns that a key may lie in.
bool MayHold(const std::string& column, const std::string& key) {
  return key == column || absl::StartsWith(key, column + ".");
}

}  // namespace

RowFile::RowFile(DataFile file, std::vector<RowKey> keys)
    : file_(std::move(file)),
      keys_(std::move(keys)),
      source_(std::filesystem::path(file_.path).stem()),
      is_parquet_(absl::EndsWith(file_.path, ".parquet")) {}

absl::StatusOr<std::unique_ptr<RowFile>> RowFile::Open(const DataFile& file, const std::vector<RowKey>& keys,
                                                       int64_t max_rows) {
  std::unique_ptr<RowFile> rows(new RowFile(file, keys));
  absl::Status status;
  if (rows->is_parquet_) {
    status = rows->WriteRows(max_rows);
  } else if (absl::StatusOr<InputFile> opened = InputFile::Open(file.path); opened.ok()) {
    rows->rows_file_ = *std::move(opened);
    status = rows->IndexLines(max_rows);
  } else {
    status = opened.status();
  }
  if (status.ok()) return rows;
  return absl::Status(
      status.code(),
      absl::StrCat(file.option, ": ", status.message(),
                   absl::IsNotFound(status) ? absl::StrCat("; relative paths start at ", ResolveUserPath(".")) : ""));
}

absl::Status RowFile::IndexLines(int64_t max_rows) {
  const auto wanted = max_rows > 0 ? static_cast<size_t>(max_rows) : SIZE_MAX;
  std::string chunk(kChunkBytes, '\0');
  uint64_t offset = 0;     // of the chunk in the file
  uint64_t row_begin = 0;  // of the line that is read
  bool blank = true;       // it is, as far as it is read
  RowHash row;
  // Blank lines are rows only once another one follows.
  std::vector<uint64_t> blanks;
  const auto end_line = [&](uint64_t end) {
    const uint64_t hash = row.Take();
    if (blank) {
      blanks.push_back(row_begin);
    } else {
      begins_.insert(begins_.end(), blanks.begin(), blanks.end());
      for (size_t i = 0; i < blanks.size(); ++i) blocks_.Add(0);
      blanks.clear();
      begins_.push_back(row_begin);
      blocks_.Add(hash);
    }
    row_begin = end;
    blank = true;
  };
  uint64_t rows_end = 0;
  while (begins_.size() < wanted) {
    QUARTET_ASSIGN_OR_RETURN(const size_t n, rows_file_.ReadAt(offset, chunk.size(), chunk.data()));
    const std::string_view text(chunk.data(), n);
    size_t used = 0;
    while (used < text.size() && begins_.size() < wanted) {
      const size_t newline = text.find('\n', used);
      const size_t end = newline == std::string_view::npos ? text.size() : newline + 1;
      if (blank) blank = IsBlank(text.substr(used, end - used));
      row.Add(text.substr(used, end - used));
      used = end;
      if (newline == std::string_view::npos) break;
      const size_t before = begins_.size();
      end_line(offset + end);
      if (begins_.size() > before) rows_end = offset + end;
    }
    hash_ = HashBytes(text.substr(0, used), hash_);
    offset += text.size();
    if (n < chunk.size()) {  // the end of the file
      if (!blank && begins_.size() < wanted) {
        end_line(offset);
        rows_end = offset;
      }
      break;
    }
  }
  if (begins_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_.path,
        offset == 0 ? " is empty (0 bytes)" : absl::StrCat(" has nothing but white space (", offset, " bytes)"),
        "; it needs at least one line, a JSON object"));
  }
  if (begins_.size() > wanted) {  // blank lines came in with the last
    rows_end = begins_[wanted];
    begins_.resize(wanted);
  }
  begins_.push_back(rows_end);
  begins_.shrink_to_fit();
  return absl::OkStatus();
}

absl::Status RowFile::WriteRows(int64_t max_rows) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ParquetReader> parquet, ParquetReader::Open(file_.path));
  columns_ = JoinNames(parquet->columns());
  std::vector<std::string> names;
  for (const RowKey& key : keys_) {
    bool found = false;
    for (const std::string& column : parquet->columns()) {
      if (!key.rest && !MayHold(column, key.name)) continue;
      found = true;
      if (std::find(names.begin(), names.end(), column) == names.end()) names.push_back(column);
    }
    if (!found && !key.optional && !key.rest && key.spared_by.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path, " has no column for \"", key.name, "\" (", key.option, "); it has: ", columns_));
    }
  }
  if (parquet->rows() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(file_.path, " has no row; it needs at least one"));
  }
  const std::string folder = ScratchFolder();
  absl::StatusOr<Fd> made = MakeScratchFile(folder);
  if (!made.ok()) return Prefixed(file_.path, made.status());
  rows_file_ = InputFile(made->Release(), absl::StrCat("its rows in ", folder));
  std::string buffer;
  uint64_t written = 0;
  const auto flush = [&] {
    hash_ = HashBytes(buffer, hash_);
    written += buffer.size();
    const absl::Status status = Keep(rows_file_.fd(), buffer, folder);
    buffer.clear();
    return Prefixed(file_.path, status);
  };
  const int64_t count = max_rows > 0 ? std::min(max_rows, parquet->rows()) : parquet->rows();
  QUARTET_RETURN_IF_ERROR(parquet->Read(names, count, [&](std::string_view row) {
    begins_.push_back(written + buffer.size());
    blocks_.Add(HashBytes(row));
    buffer.append(row);
    buffer.push_back('\n');
    return buffer.size() < kChunkBytes ? absl::OkStatus() : flush();
  }));
  QUARTET_RETURN_IF_ERROR(flush());
  begins_.push_back(written);
  begins_.shrink_to_fit();
  return absl::OkStatus();
}

absl::StatusOr<std::string> RowFile::Text(int64_t index) const {
  const uint64_t begin = begins_[index], size = begins_[index + 1] - begin;
  if (size > kMaxRowBytes) {
    return absl::InvalidArgumentError(absl::StrCat("is ", size, " bytes long; at most ", kMaxRowBytes, " are allowed"));
  }
  std::string text(size, '\0');
  QUARTET_ASSIGN_OR_RETURN(const size_t filled, rows_file_.ReadAt(begin, size, text.data()));
  if (filled < size) return absl::UnavailableError("has become shorter since it was opened");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (IsBlank(text)) return absl::InvalidArgumentError("is blank; blank lines are allowed at the end only");
  return text;
}

absl::StatusOr<Record> RowFile::Read(int64_t index) const {
  const absl::StatusOr<std::string> text = Text(index);
  if (!text.ok()) return At(index, text.status());
  // A parser names lines by itself; those of Parquet are none that a user could look at.
  const std::string source = is_parquet_ ? Place(index) : absl::StrCat(file_.option, ": ", file_.path);
  const absl::StatusOr<nlohmann::ordered_json> row =
      ParseExactOrderedJson(*text, source, kMaxJsonDepth, is_parquet_ ? 1 : index + 1);
  if (!row.ok()) return WithFormat(index, row.status());
  absl::StatusOr<Record> record = ReadRecord(*row, keys_, columns_);
  if (!record.ok()) {
    return row->is_object() ? At(index, record.status()) : WithFormat(index, At(index, record.status()));
  }
  record->source = source_;
  record->row = index + 1;
  record->place = Place(index);
  return record;
}

std::string RowFile::Place(int64_t index) const {
  return absl::StrCat(file_.option, ": ", file_.path, is_parquet_ ? " row " : " line ", index + 1);
}

absl::Status RowFile::WithFormat(int64_t index, const absl::Status& status) const {
  if (index > 0 || is_parquet_) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (a file whose name does not end in .parquet is JSONL: one JSON ",
                                   "object a line)"));
}

absl::Status RowFile::At(int64_t index, const absl::Status& status) const { return Prefixed(Place(index), status); }

}  // namespace quartet
