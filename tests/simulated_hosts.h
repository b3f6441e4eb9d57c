// Hosts that are network namespaces of this machine (cluster/hosts.sh): host1, host2, ..., at 10.77.0.1, 10.77.0.2, ...
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/process_harness.h"

namespace quartet {

// While it lives, the hosts are there. One thread.
class SimulatedHosts {
 public:
  // What they need and this machine lacks, "root" or the first of these programs; "": nothing.
  static std::string Missing(const std::vector<std::string>& programs = {});

  // Ends the program where they cannot be made.
  explicit SimulatedHosts(int count);

  // What the hosts share, beside the whole file system.
  const std::string& folder() const { return folder_; }

  // As those of ProcessHarness, on host `host` (from 1), by `harness`. `program` is relative to the workspace, or one
  // of the system's, by its path.
  pid_t Start(ProcessHarness& harness, int host, const std::string& program, const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& environment = {});
  // What a command prints on a host.
  std::string Output(int host, const std::vector<std::string>& command,
                     const std::map<std::string, std::string>& environment = {});

  // The host's link goes down, comes back, or passes no more than `rate` either way, as tc(8) takes it: "10mbit".
  void Cut(int host) { Change("cut", host); }
  void Mend(int host) { Change("mend", host); }
  void Limit(int host, const std::string& rate) { Change("limit", host, rate); }

  // Of the hosts themselves, and of daemons that outlive a test.
  ProcessHarness& harness() { return harness_; }

 private:
  void Change(const std::string& what, int host, const std::string& how = "");

  ProcessHarness harness_;
  const std::string folder_;
};

}  // namespace quartet
