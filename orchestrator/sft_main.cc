// Supervised fine-tuning through the policy trainer.
#include "orchestrator/offline/train.h"
#include "orchestrator/session/run_program.h"

int main(int argc, char** argv) {
  return quartet::RunTraining(
      argc, argv,
      {.program = quartet::Program::kSft,
       .summary = "fine-tunes the policy on prompts and responses (sft {...}), driving policy_trainer.",
       .example = "train.max_steps=100"},
      quartet::TrainOnRows);
}
