#include "core/service/ranks/rank_main.h"

#include <malloc.h>

#include "core/preflight/preflight_service.h"
#include "rollout/rollout_service.h"

int main(int argc, char** argv) {
  // gRPC receives weights in blocks of the heap that live for a moment. So much of what is free at its end stays: else
  // the pages of most blocks would be given back, and cleared for the next one.
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
  // mallopt ends glibc's own adjustment of this one, from 128 KiB upwards.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  quartet::RankMain(
      argc, argv,
      {.service = "rollout", .create = quartet::CreateRolloutService, .create_check = quartet::CreatePreflight});
}
