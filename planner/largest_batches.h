// The largest batches and calls that a run's configuration allows: what a plan takes its ranks through.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/run_config.h"
#include "core/rank/rank_context.h"
#include "core/training/batch/batch_split.h"
#include "core/training/batch/sequence_cost.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Whether the rows that `program` learns from are pairs.
bool HasPairs(Program program);

// A run that learns from rows alone as a PPO step of one optimizer step: each of the batch's sequences an answer to a
// prompt of its own, as long as it may be, all of it trained on.
RunConfig AsPpoStep(RunConfig config, Program program);

// Of one rank's micro-batch.
MicroBatchLimit TrainLimit(const TrainerConfig& config);
MicroBatchLimit ForwardLimit(const TrainerConfig& config);

// How sequences that begin alike are computed by the model in folder `pretrain`.
absl::StatusOr<Sharing> SharingOf(const RunConfig& config, const RankContext& context, const std::string& pretrain,
                                  const std::string& dtype);

// A rank's share of `sequences` sequences: micro-batches as full as they can be, and how many of them there are.
struct Share {
  // `together` sequences, 1 or 2, are not divided.
  Share(const RunConfig& config, const RankContext& context, Sharing sharing, const MicroBatchLimit& limit,
        int64_t sequences, int64_t together = 1);

  // Of a sequence of `length` tokens. A micro-batch of tokens is as full where samples share their prompt, and has more
  // actions then.
  int64_t Actions(int64_t length) const;

  std::vector<int64_t> lengths;  // of the sequences of one micro-batch
  int64_t micro_batches;

 private:
  // Sequences that fit in a micro-batch of tokens where samples share their prompt.
  int64_t SharingFit(const MicroBatchLimit& limit) const;

  int64_t prompt_, answer_, samples_;
  bool copies_keys_;
  int64_t shared_fit_ = 0;  // samples of one prompt
};

// One micro-batch.
std::vector<TokenSequence> ForwardBatch(const Share& share);

// Several, end to end.
std::vector<TrainingSequence> TrainBatch(const Share& share, int micro_batches, bool pairs);

// What the leader of `service` holds in host memory, beside what every rank does, while the largest calls of a PPO
// step, or of a step of the run that `program` makes, are there: of trainers and scorer the items as they were read and
// what is made of them for the ranks, of a rollout prompts and answers. Sequences are as long as they may be; a token
// is taken to be four bytes of text. `config` is resolved.
int64_t LeaderCallBytes(const RunConfig& config, const std::string& service, Program program = Program::kPpo);

}  // namespace quartet
