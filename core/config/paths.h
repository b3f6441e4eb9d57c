// Paths inside a configuration.
#pragma once

#include <string>

#include "proto/run_config.pb.h"

namespace quartet {

// Makes every path of `config` absolute; a relative one lies in `base_folder` ("" = the folder the user is in).
void ResolvePaths(const std::string& base_folder, RunConfig* config);

}  // namespace quartet
