#include "core/service/process/launcher.h"

int main(int argc, char** argv) {
  return quartet::LauncherMain(
      argc, argv, {.service = "critic_trainer", .summary = "Computes the values of states, and trains the critic."});
}
