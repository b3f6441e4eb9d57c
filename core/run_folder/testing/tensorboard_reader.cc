#include "core/run_folder/testing/tensorboard_reader.h"

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/run_folder/records/tensorboard_writer.h"

namespace quartet {
namespace {

uint32_t Masked(std::string_view data) {
  const uint32_t crc = Crc32c(data);
  return static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u);
}

}  // namespace

absl::StatusOr<std::vector<TensorBoardEvent>> ReadTensorBoardEvents(const std::string& bytes) {
  const std::string_view all = bytes;
  const auto number = [all](size_t at, int size) {
    uint64_t value = 0;
    for (int i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(all.at(at + i));
    return value;
  };
  std::vector<TensorBoardEvent> events;
  size_t at = 0;
  while (at < all.size()) {
    const auto broken = [at] { return absl::DataLossError(absl::StrCat("the record at byte ", at, " is broken")); };
    if (all.size() - at < 12 || number(at + 8, 4) != Masked(all.substr(at, 8))) return broken();
    const uint64_t length = number(at, 8);
    if (all.size() - at - 12 < length + 4) return broken();
    const std::string_view data = all.substr(at + 12, length);
    if (number(at + 12 + length, 4) != Masked(data)) return broken();
    if (!events.emplace_back().ParseFromArray(data.data(), static_cast<int>(data.size()))) return broken();
    at += 12 + length + 4;
  }
  return events;
}

}  // namespace quartet
