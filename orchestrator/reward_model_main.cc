// Training of a reward model through the critic trainer.
#include "orchestrator/offline/train.h"
#include "orchestrator/session/run_program.h"

int main(int argc, char** argv) {
  return quartet::RunTraining(
      argc, argv,
      {.program = quartet::Program::kRewardModel,
       .summary =
           "trains a reward model (critic {...}) on pairs of answers of which one is preferred (preference {...}), "
           "driving critic_trainer. A PPO run reads the result with reward { source { model: ... } }.",
       .example = "train.max_steps=100"},
      quartet::TrainOnRows);
}
