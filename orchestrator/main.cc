// The orchestrator: PPO over the four services.
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "orchestrator/loop/train.h"
#include "orchestrator/session/run_program.h"

namespace quartet {
namespace {

absl::StatusOr<std::string> Train(RunSession session) {
  QUARTET_ASSIGN_OR_RETURN(const PpoResult result, TrainByPpo(std::move(session)));
  return result.summary.checkpoint;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  return quartet::RunTraining(
      argc, argv,
      {.program = quartet::Program::kPpo,
       .summary = "trains a policy with PPO, driving rollout, policy_trainer, critic_trainer and scorer.",
       .example = "train.max_steps=20"},
      quartet::Train);
}
