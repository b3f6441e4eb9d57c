#include "core/rank/rank_setup.h"

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
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

ProcessGroupOptions GroupOptions(const RankContext& context, const std::string& name) {
  ProcessGroupOptions options;
  options.rank = context.rank;
  options.size = context.world_size;
  options.device = context.device;
  options.host = context.host;
  options.timeout = context.collective_timeout;
  options.backend = context.collective_backend;
  options.name = name;
  return options;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> JoinRanks(const RankContext& context, const std::string& name) {
  QUARTET_RETURN_IF_ERROR(EnterDeviceOf(context).status());
  return MakeProcessGroup(context.store, GroupOptions(context, name));
}

absl::StatusOr<std::unique_ptr<Mesh>> JoinMesh(const RankContext& context, const std::string& name, int shard_size) {
  QUARTET_RETURN_IF_ERROR(EnterDeviceOf(context).status());
  return MakeMesh(context.store, GroupOptions(context, name), shard_size == 0 ? context.world_size : shard_size);
}

void DescribeGroup(const ProcessGroup& group, int stride, RankInfo* info) {
  if (group.size() == 1) return;
  GroupVolume* volume = info->add_groups();
  volume->set_ranks(group.size());
  volume->set_stride(stride);
  for (int kind = 0; kind < kCollectiveKinds; ++kind) {
    const CommVolume part = group.volume(static_cast<CollectiveKind>(kind));
    volume->set_sent_bytes(volume->sent_bytes() + part.sent_bytes);
    volume->set_received_bytes(volume->received_bytes() + part.received_bytes);
  }
}

void DescribeDevice(at::Device device, RankInfo* info) {
  if (!device.is_cuda()) return;
  const DeviceMemory memory = ReadDeviceMemory(device);
  const auto add = [&](const char* category, int64_t now, int64_t peak) {
    MemoryUse* use = info->add_memory();
    use->set_category(category);
    use->set_tier("device");
    use->set_current_bytes(now);
    use->set_peak_bytes(peak);
  };
  add("allocated", memory.tensors, memory.peak_tensors);
  add("reserved", memory.reserved, memory.peak_reserved);
}

void DescribeGroups(Mesh& mesh, RankInfo* info) {
  DescribeGroup(mesh.world(), /*stride=*/1, info);
  if (&mesh.shard() != &mesh.world()) DescribeGroup(mesh.shard(), /*stride=*/1, info);
  if (&mesh.replica() != &mesh.world()) DescribeGroup(mesh.replica(), mesh.shard().size(), info);
}

at::ScalarType ComputeType(const std::string& dtype) {
  if (dtype == "bf16") return at::kBFloat16;
  QUARTET_CHECK(dtype == "fp32") << "unresolved dtype \"" << dtype << "\"";
  return at::kFloat;
}

}  // namespace quartet
