// One rank of the critic trainer; started by the launcher beside it, torchrun or Slurm.
#include "core/service/ranks/rank_main.h"

#include "core/preflight/preflight_service.h"
#include "critic_trainer/critic_trainer_service.h"

int main(int argc, char** argv) {
  quartet::RankMain(
      argc, argv,
      {.service = "critic_trainer", .create = quartet::CreateCriticTrainer, .create_check = quartet::CreatePreflight});
}
