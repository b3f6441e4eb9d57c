// A service without models, for tests of what is around them.
#include "core/service/process/launcher.h"

int main(int argc, char** argv) {
  return quartet::LauncherMain(argc, argv, {.service = "rollout", .summary = "a service without models, for tests."});
}
