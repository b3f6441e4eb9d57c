// What a host has for the ranks of a run. LibTorch-free.
#pragma once

#include <string>

#include "core/preflight/preflight.pb.h"

namespace quartet {

// Of this host, as far as it tells; GPUs and kernels of CPUs are left out. `run_dir` need not be there yet.
// `token_file`: whether it is seen. Paths of the system are below `root`, for tests.
NodeFacts ReadNodeFacts(const std::string& run_dir, const std::string& token_file, const std::string& root = "");

}  // namespace quartet
