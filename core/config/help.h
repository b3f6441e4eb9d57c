// What --help says of the configuration.
#pragma once

#include <string>

#include "core/config/programs.h"

namespace quartet {

// The text of proto/run_config.proto and proto/config/ as they were built: of the fields that `program` reads, with
// their comments, their rules and the defaults that they have in it alone. Of services and kViewer every field.
std::string DescribeRunConfig(Program program);

}  // namespace quartet
