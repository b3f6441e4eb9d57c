// The orchestrator: PPO over the four services.
#include "core/base/status_macros.h"
#include "orchestrator/loop/session.h"
#include "orchestrator/session/run_program.h"

namespace quartet {
namespace {

absl::StatusOr<std::string> Train(Program /*ppo*/, const RunConfig& config, const SessionOptions& options,
                                  TerminalView& view, Cancellation& cancellation) {
  QUARTET_ASSIGN_OR_RETURN(const PpoResult result, RunPpoSession(config, options, view, cancellation));
  return result.summary.checkpoint;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  return quartet::RunTraining(
      argc, argv,
      {.program = quartet::Program::kPpo,
       .name = "orchestrator",
       .summary = "trains a policy with PPO, driving rollout, policy_trainer, critic_trainer and scorer.",
       .example = "train.max_steps=20"},
      quartet::Train);
}
