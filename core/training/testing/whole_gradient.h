// For tests: the gradient of one batch, however it is cut into micro-batches and ranks.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/training/batch/batch_split.h"
#include "core/training/engine/update.h"
#include "core/zero/trainable_model.h"
#include "proto/experience.pb.h"

namespace quartet {

// Sequences of very different lengths with all arrays that trainers read: loss weights of a mean over tokens,
// advantages around 0, old log-probabilities and values near and far from what a small random model gives. A function
// of its arguments.
std::vector<TrainingSequence> RandomTrainingSequences(int count, int vocab_size, uint32_t seed);

struct WholeGradient {
  double loss = 0;
  std::map<std::string, std::vector<double>> of;  // what is trained, by the names of its parameters
};

// Of `sequences` on as many ranks (threads) as `split` is for. `make_loss` is called once a rank.
WholeGradient GradientOf(const std::string& folder, const TrainableModelOptions& options,
                         const std::vector<TrainingSequence>& sequences, const BatchSplit& split,
                         const std::function<MicroBatchLoss()>& make_loss);

// Takes the gradient of `sequences` on 1, 2 and 3 ranks (threads) in micro-batches of all sizes, counted by sequences
// and filled by tokens, some of them at every ZeRO stage, and expects gradient and loss to be those of all sequences at
// once on one rank: norm of the difference over norm of the gradient, and difference of the losses, at most
// `tolerance`. `make_loss` is called once a rank.
void ExpectGradientDoesNotDependOnTheCut(const std::string& folder, const TrainableModelOptions& options,
                                         const std::vector<TrainingSequence>& sequences, double tolerance,
                                         const std::function<MicroBatchLoss()>& make_loss);

// Of RandomTrainingSequences those that can be: conversations of two turns, with a token of a tool between them. What a
// token is worth, its advantage, is the same for all of a conversation.
std::vector<TrainingSequence> RandomConversations(int count, int vocab_size, uint32_t seed);

// The same conversations as two sequences each: the first turn by itself, and the whole, of which the second turn alone
// is trained. `scales_advantages`: by the conversation's action tokens over those of the sequence.
std::vector<TrainingSequence> CutIntoTurns(const std::vector<TrainingSequence>& conversations, bool scales_advantages);

// Expects CutIntoTurns to leave the gradient of `conversations` as it is, however they are cut into micro-batches and
// over ranks; `tolerance` as above.
void ExpectGradientDoesNotDependOnTurns(const std::string& folder, const TrainableModelOptions& options,
                                        const std::vector<TrainingSequence>& conversations, bool scales_advantages,
                                        double tolerance, const std::function<MicroBatchLoss()>& make_loss);

}  // namespace quartet
