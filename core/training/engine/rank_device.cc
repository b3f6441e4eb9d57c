#include "core/training/engine/rank_device.h"

#include "absl/strings/str_cat.h"
#include "core/hardware/device.h"

namespace quartet {

at::Device DeviceOf(const RankContext& context) {
  if (context.device == "cuda") return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(context.local_rank));
  return at::Device(context.device == "meta" ? at::kMeta : at::kCPU);
}

absl::StatusOr<at::Device> EnterDeviceOf(const RankContext& context) {
  const at::Device device = DeviceOf(context);
  const absl::Status entered = EnterDevice(device);
  if (entered.ok()) return device;
  return absl::Status(entered.code(), absl::StrCat("services.", context.service, ".", entered.message()));
}

}  // namespace quartet
