// The sets of held-out prompts that a configuration names. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "proto/run_config.pb.h"

namespace quartet {

// Of a resolved configuration: those of eval.data, then eval.set, each with all its values.
std::vector<EvalSet> EvalSets(const RunConfig& config);

// The name of the file at `path`, without folder and extension.
std::string StemOf(const std::string& path);

}  // namespace quartet
