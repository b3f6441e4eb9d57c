// How a rank with a model enters its device and joins its groups.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/comm/mesh.h"
#include "core/comm/process_group.h"
#include "core/rank/rank_context.h"
#include "proto/common.pb.h"

namespace quartet {

// The device that a rank of any service computes on.
at::Device DeviceOf(const RankContext& context);

// The same, made the calling thread's: before a rank joins a group of its ranks or takes memory there. The error
// (core/hardware/device.h) names the service's option.
absl::StatusOr<at::Device> EnterDeviceOf(const RankContext& context);

// Of the group of all ranks of a service; `name` is the group's own within the service.
ProcessGroupOptions GroupOptions(const RankContext& context, const std::string& name);

// As JoinRanks, the ranks cut into groups of `shard_size` (0: all), of which each holds the whole of a model.
absl::StatusOr<std::unique_ptr<Mesh>> JoinMesh(const RankContext& context, const std::string& name, int shard_size);

// The group of all ranks of a service. Collective; `name` is the group's own within the service.
absl::StatusOr<std::unique_ptr<ProcessGroup>> JoinRanks(const RankContext& context, const std::string& name);

// Adds to `info` what this rank has exchanged in `group`, whose neighbours are `stride` ranks apart; in all groups of
// `mesh`.
void DescribeGroup(const ProcessGroup& group, int stride, RankInfo* info);
void DescribeGroups(Mesh& mesh, RankInfo* info);

// Adds what LibTorch's allocator has of a GPU, on one: "allocated" and "reserved" (proto/common.proto).
void DescribeDevice(at::Device device, RankInfo* info);

// "bf16" or "fp32", as a resolved configuration has it.
at::ScalarType ComputeType(const std::string& dtype);

}  // namespace quartet
