// How much a rank computes at once: the budget that micro-batches are filled up to where nothing else is said, and
// what a configuration says, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/run_config.pb.h"

namespace quartet {

// Tokens that a micro-batch is filled up to where a configuration says neither a number of tokens nor of sequences:
// 4,096, or what must stand together where that is more: the longest sequence, or two where the run learns from pairs
// (preference.data). A function of the configuration alone, so that every program of a run, on whatever machine, has
// the same; docs/memory.md says why this many.
int32_t DefaultMicroBatchTokens(const RunConfig& config, int32_t max_len);

// "up to 4,096 tokens (6 sequences of 640) a rank; ...": of the models of `services` ("policy_trainer", ...), which
// options change it where it is the default. "" where no such service has a model that is cut into micro-batches.
// `config` is resolved.
std::string DescribeMicroBatches(const RunConfig& config, const std::vector<std::string>& services);

}  // namespace quartet
