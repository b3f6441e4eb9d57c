#include "core/service/process/launcher.h"

int main(int argc, char** argv) {
  return quartet::LauncherMain(
      argc, argv,
      {.service = "rollout", .summary = "Generates answers with the policy's weights and takes new versions of them."});
}
