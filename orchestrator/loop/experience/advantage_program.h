// Advantages by a program of the user's (algorithm.advantage_command; docs/algorithms.md says what it reads and
// writes).
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/service/process/piped_process.h"
#include "orchestrator/loop/experience/experience.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The program, which runs as long as this object does. One thread.
class AdvantageProgram {
 public:
  // Starts it and asks it about a batch without answers. INVALID_ARGUMENT where it cannot run or does not answer that,
  // with the last lines that it has written to its standard error.
  static absl::StatusOr<std::unique_ptr<AdvantageProgram>> Start(const AlgorithmConfig& algorithm);

  // Fills in given_advantages of a batch that has its rewards and log-probabilities. Errors end the run: they name the
  // program, and the answer where it is one's. After an error it is of no more use.
  // CANCELLED once `stop` is requested.
  absl::Status Ask(int64_t step, std::vector<Experience>* batch, const std::stop_token& stop = {});

 private:
  explicit AdvantageProgram(const AlgorithmConfig& algorithm) : algorithm_(algorithm) {}
  absl::StatusOr<std::vector<std::vector<float>>> Exchange(int64_t step, const std::vector<Experience>& batch,
                                                           const std::stop_token& stop);
  absl::Status Named(const absl::Status& status) const;

  const AlgorithmConfig algorithm_;
  std::unique_ptr<PipedProcess> process_;
};

}  // namespace quartet
