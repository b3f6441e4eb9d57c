// One rank of the policy trainer; started by the launcher beside it, torchrun or Slurm.
#include "core/service/ranks/rank_main.h"

#include "core/preflight/preflight_service.h"
#include "policy_trainer/policy_trainer_service.h"

int main(int argc, char** argv) {
  quartet::RankMain(
      argc, argv,
      {.service = "policy_trainer", .create = quartet::CreatePolicyTrainer, .create_check = quartet::CreatePreflight});
}
