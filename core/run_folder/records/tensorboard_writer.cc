#include "core/run_folder/records/tensorboard_writer.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/network/host_name.h"
#include "core/run_folder/records/tensorboard_event.pb.h"

namespace quartet {
namespace {

constexpr uint32_t kReversedCastagnoli = 0x82f63b78;

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kReversedCastagnoli : 0);
    table[byte] = crc;
  }
  return table;
}();

uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

constexpr size_t kLengthBytes = 8, kCrcBytes = 4;

// The bytes of the record that `records` begins with; nothing where it is not whole.
std::optional<std::string_view> FirstRecord(std::string_view records) {
  if (records.size() < kLengthBytes + 2 * kCrcBytes) return std::nullopt;
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(records[i]);
  if (length > records.size() - kLengthBytes - 2 * kCrcBytes) return std::nullopt;
  return records.substr(kLengthBytes + kCrcBytes, length);
}

double Seconds(absl::Time time) { return static_cast<double>(absl::ToUnixMicros(time)) * 1e-6; }

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (unsigned char byte : bytes) crc = kCrcTable[(crc ^ byte) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string FrameTensorBoardRecord(std::string_view bytes) {
  std::string length;
  AppendLittleEndian(bytes.size(), 8, &length);
  std::string record = length;
  AppendLittleEndian(MaskedCrc(length), 4, &record);
  record.append(bytes);
  AppendLittleEndian(MaskedCrc(bytes), 4, &record);
  return record;
}

TensorBoardParts SplitTensorBoardFile(std::string_view file, int64_t steps) {
  size_t head = 0, end = 0;  // of the record that names the version, and of those below `steps`
  while (end < file.size()) {
    const std::optional<std::string_view> record = FirstRecord(file.substr(end));
    TensorBoardEvent event;
    if (!record.has_value() || !event.ParseFromArray(record->data(), static_cast<int>(record->size()))) break;
    const bool is_head = end == 0 && !event.file_version().empty();
    if (!is_head && event.step() >= steps) break;
    end += kLengthBytes + 2 * kCrcBytes + record->size();
    if (is_head) head = end;
  }
  TensorBoardParts parts;
  if (end > head) parts.before = std::string(file.substr(0, end));
  if (end < file.size()) parts.later = absl::StrCat(std::string(file.substr(0, head)), std::string(file.substr(end)));
  return parts;
}

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Create(const std::string& folder,
                                                                             absl::Time now) {
  // TensorBoard takes every file whose name contains "tfevents".
  absl::StatusOr<std::unique_ptr<AppendFile>> created;
  int64_t second = absl::ToUnixSeconds(now);
  do {  // a run that goes on at once takes the next name that is free
    created = AppendFile::Create(absl::StrFormat("%s/events.out.tfevents.%010d.%s", folder, second++, HostName()));
  } while (absl::IsAlreadyExists(created.status()));
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, std::move(created));
  TensorBoardEvent event;
  event.set_wall_time(Seconds(now));
  event.set_file_version("brain.Event:2");
  QUARTET_RETURN_IF_ERROR(file->Append(FrameTensorBoardRecord(event.SerializeAsString())));
  return std::unique_ptr<TensorBoardWriter>(new TensorBoardWriter(std::move(file)));
}

absl::Status TensorBoardWriter::Write(int64_t step, absl::Time now, const Metrics& metrics) {
  TensorBoardEvent event;
  event.set_wall_time(Seconds(now));
  event.set_step(step);
  for (const auto& [name, value] : metrics.values()) {
    TensorBoardSummary::Value* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(name);
    scalar->set_simple_value(static_cast<float>(value));
  }
  return file_->Append(FrameTensorBoardRecord(event.SerializeAsString()));
}

}  // namespace quartet
