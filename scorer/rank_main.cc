// One rank of the scorer; started by the launcher beside it, torchrun or Slurm.
#include "core/service/ranks/rank_main.h"

#include "core/preflight/preflight_service.h"
#include "scorer/scorer_service.h"

int main(int argc, char** argv) {
  quartet::RankMain(argc, argv,
                    {.service = "scorer", .create = quartet::CreateScorer, .create_check = quartet::CreatePreflight});
}
