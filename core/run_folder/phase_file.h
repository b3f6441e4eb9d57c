// What an orchestrator is doing just now, for who asks from outside.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace quartet {

// phase.json in a run folder, {"phase", "since"} (Unix seconds). It is written often, and lost where the machine is:
// nothing goes by it. Thread safe.
class PhaseFile {
 public:
  explicit PhaseFile(const std::string& run_dir) : path_(run_dir + "/phase.json") {}
  // What goes wrong is left alone: it would be said at every phase.
  void Say(const std::string& phase);

  struct Phase {
    std::string phase;
    absl::Time since;
  };
  static std::optional<Phase> Read(const std::string& run_dir);

 private:
  std::mutex mutex_;
  const std::string path_;
};

}  // namespace quartet
