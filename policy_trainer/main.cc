#include "core/service/process/launcher.h"

int main(int argc, char** argv) {
  return quartet::LauncherMain(
      argc, argv,
      {.service = "policy_trainer",
       .summary = "Computes the policy's log-probabilities, trains it, and publishes and saves its weights."});
}
