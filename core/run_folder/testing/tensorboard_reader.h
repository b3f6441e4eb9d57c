// What a reader of event files does (tensorboard_writer.h), independent of the writer's code but for the CRC. For
// tests.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/run_folder/records/tensorboard_event.pb.h"

namespace quartet {

// The events of a whole file. DATA_LOSS where a record is cut off or a CRC is wrong.
absl::StatusOr<std::vector<TensorBoardEvent>> ReadTensorBoardEvents(const std::string& bytes);

}  // namespace quartet
