// How an engine joins its ranks and reads its model's options from the configuration.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/comm/process_group.h"
#include "core/model/parameter_layout.h"
#include "core/service/rank_context.h"
#include "core/zero/trainable_model.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The group of all ranks of a service. Collective; `name` is the group's own within the service.
absl::StatusOr<std::unique_ptr<ProcessGroup>> JoinRanks(const RankContext& context, const std::string& name);

// The device a rank computes on.
at::Device DeviceOf(const RankContext& context);

// "bf16" or "fp32", as a resolved configuration has it.
at::ScalarType ComputeType(const std::string& dtype);

TrainableModelOptions TrainerOptions(const TrainerConfig& config, HeadKind head, uint64_t seed,
                                     const RankContext& context);

// Runs `work`, which returns an absl::Status, at the boundary to LibTorch: what it throws (an operator's or a
// collective's failure) becomes INTERNAL, naming `what` was being done.
template <typename Work>
absl::Status CatchExceptions(const std::string& what, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": out of memory"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace quartet
