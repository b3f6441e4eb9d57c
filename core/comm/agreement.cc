#include "core/comm/agreement.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/comm/agreed_error.h"

namespace quartet {
namespace {

constexpr int64_t kMessageBytes = 2000;
constexpr int64_t kMessageSlotBytes = 8 + kMessageBytes;  // code, length of the message, message

struct Head {
  int32_t code;
  int32_t length;
};
static_assert(sizeof(Head) == 8);

}  // namespace

absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, at::Device device) {
  if (group.size() == 1) return mine;
  at::Tensor slots = at::zeros({group.size() * kMessageSlotBytes}, at::kByte);
  Head head = {static_cast<int32_t>(mine.code()),
               static_cast<int32_t>(std::min<int64_t>(mine.message().size(), kMessageBytes))};
  uint8_t* own = slots.data_ptr<uint8_t>() + group.rank() * kMessageSlotBytes;
  std::memcpy(own, &head, sizeof(head));
  std::memcpy(own + sizeof(head), mine.message().data(), head.length);
  slots = slots.to(device);
  group.AllGatherInPlace(slots)->Wait();
  if (device.is_meta()) return mine;  // a dry group has no peers to hear from
  slots = slots.cpu();
  for (int rank = 0; rank < group.size(); ++rank) {
    const uint8_t* slot = slots.data_ptr<uint8_t>() + rank * kMessageSlotBytes;
    std::memcpy(&head, slot, sizeof(head));
    if (head.code == 0) continue;
    const std::string message(reinterpret_cast<const char*>(slot) + sizeof(head), head.length);
    absl::Status error(static_cast<absl::StatusCode>(head.code),
                       absl::StrCat("rank ", rank, " of ", group.size(), ": ", message));
    MarkAgreed(&error);
    return error;
  }
  return absl::OkStatus();
}

}  // namespace quartet
