// How a run is looked at while it goes on: its page and its figures, over HTTP.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/run_config.pb.h"

namespace quartet {

// GET / is the page as the folder is now, /metrics RunFigures. It reads the run folder alone, on its own threads, and
// nothing of the run waits for it.
class MonitorServer {
 public:
  // At config.monitor.listen, which is set.
  static absl::StatusOr<std::unique_ptr<MonitorServer>> Start(const RunConfig& config, const std::string& run_dir);
  virtual ~MonitorServer() = default;
  // "http://host:port/", with the port that was found.
  virtual std::string url() const = 0;
};

}  // namespace quartet
