// The day that chat templates write.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "proto/run_config.pb.h"

namespace quartet {

// data.template_date, "YYYY-MM-DD"; nothing where it is not set. INVALID_ARGUMENT names it where it is no day of the
// years 1970 to 9999.
absl::StatusOr<std::optional<absl::CivilDay>> TemplateDate(const DataConfig& data);

}  // namespace quartet
