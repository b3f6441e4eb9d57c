#include "core/service/ranks/rank_main.h"

#include "core/preflight/preflight_service.h"
#include "rollout/rollout_service.h"

int main(int argc, char** argv) {
  return quartet::RankMain(
      argc, argv,
      {.service = "rollout", .create = quartet::CreateRolloutService, .create_check = quartet::CreatePreflight});
}
