// Checks a training state (core/checkpoint/state_folder.h): every file is there, whole, and what was saved.
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/base/files/files.h"
#include "core/checkpoint/state_folder.h"

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    const bool help = argc == 2 && std::string_view(argv[1]) == "--help";
    std::fprintf(help ? stdout : stderr,
                 "verify_state: reads a training state and compares it with its manifest.\n\n"
                 "Usage: verify_state checkpoints/step_N/policy_state\n\n"
                 "Exit codes: 0; 1 where the state is not as it was saved; 2 for a wrong command line.\n");
    return help ? 0 : 2;
  }
  const std::string folder = quartet::ResolveUserPath(argv[1]);
  if (const absl::Status status = quartet::VerifyStateFolder(folder); !status.ok()) {
    std::fprintf(stderr, "verify_state: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  std::printf("%s is as it was saved\n", folder.c_str());
  return 0;
}
