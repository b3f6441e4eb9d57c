// How the options of `data` are a Dataset's, and what the console and the metrics say of one.
#pragma once

#include <cstdint>
#include <string>

#include "core/data/dataset.h"
#include "core/run_folder/records/metrics.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What is the same for all files that a run reads; option, paths, weights and keys are the caller's.
DatasetOptions DatasetOptionsOf(const RunConfig& config);

// "7461 prompts; left out: 12 that are too long (the first: ...)", `what` being "prompts".
std::string DescribeRows(const std::string& what, const Dataset& rows);

// data/epoch, where position `end` of the rows comes next, data/overlong and data/malformed: what was left out so far.
void AddDataMetrics(const Dataset& rows, int64_t end, Metrics* metrics);

}  // namespace quartet
