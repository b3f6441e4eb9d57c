// How a rollout batch is cut into optimizer steps. Of resolved configurations.
#pragma once

#include <cstdint>
#include <string>

#include "proto/run_config.pb.h"

namespace quartet {

// Answers of a rollout batch.
int64_t SequencesPerBatch(const RunConfig& config);

// Optimizer steps of one epoch over a rollout batch.
int64_t UpdatesPerBatch(const RunConfig& config);
int64_t CriticUpdatesPerBatch(const RunConfig& config);

// Sequences of the largest optimizer step.
int32_t TrainBatchSize(const RunConfig& config);
int32_t CriticTrainBatchSize(const RunConfig& config);

// "the policy 16 optimizer steps a batch, of up to 512 answers; the critic 12, of up to 683", and behind it which clips
// can never act.
std::string DescribeUpdates(const RunConfig& config);

}  // namespace quartet
