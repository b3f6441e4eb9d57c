// Direct preference optimization through the policy trainer, with a reference in the scorer.
#include "orchestrator/offline/train.h"
#include "orchestrator/session/run_program.h"

int main(int argc, char** argv) {
  return quartet::RunTraining(
      argc, argv,
      {.program = quartet::Program::kDpo,
       .summary = "trains the policy on pairs of answers of which one is preferred (preference {...}), by DPO or IPO, "
                  "driving policy_trainer and, for the reference, scorer.",
       .example = "preference.beta=0.2"},
      quartet::TrainOnRows);
}
