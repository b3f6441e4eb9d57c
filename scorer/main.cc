#include "core/service/process/launcher.h"

int main(int argc, char** argv) {
  return quartet::LauncherMain(
      argc, argv,
      {.service = "scorer", .summary = "Scores answers by rules and reward models, and serves the reference model."});
}
