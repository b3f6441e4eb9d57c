// The device that a rank of any service computes on.
#pragma once

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "core/service/ranks/rank_context.h"

namespace quartet {

at::Device DeviceOf(const RankContext& context);

// The same, made the calling thread's: before a rank joins a group of its ranks or takes memory there. The error
// (core/hardware/device.h) names the service's option.
absl::StatusOr<at::Device> EnterDeviceOf(const RankContext& context);

}  // namespace quartet
