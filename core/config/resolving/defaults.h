// What a field is where it is not set.
#pragma once

#include <vector>

#include "core/config/needs.h"
#include "core/config/programs.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Fills in every default that the comments of proto/run_config.proto give, where the field has an effect, and clears
// what has none (core/config/needs.h): the rows that say so are returned. Of a configuration that has them all it
// changes nothing.
std::vector<const Need*> FillDefaults(Program program, RunConfig* config);

}  // namespace quartet
