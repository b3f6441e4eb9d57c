// Runs the project's programs as a user would, and looks at what they leave behind.
#pragma once

#include <sys/types.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace quartet {

// One listening TCP socket.
struct ListeningSocket {
  pid_t pid;
  std::string address;  // "127.0.0.1", "0.0.0.0", "::1", ...
  int port;
};

// A scratch folder, and a family of processes: every process started here, and everything that those start in turn, is
// recognised by an environment variable. The destructor kills what is left and removes the folder. One thread.
class ProcessHarness {
 public:
  ProcessHarness();
  ~ProcessHarness();
  ProcessHarness(const ProcessHarness&) = delete;
  ProcessHarness& operator=(const ProcessHarness&) = delete;

  const std::string& folder() const { return folder_; }
  // A path in the scratch folder.
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& contents) const;

  // Starts `program` (relative to the workspace, such as "rollout/rollout") with standard output and error in one file.
  pid_t Start(const std::string& program, const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& environment = {});
  // What the process has written so far.
  std::string Output(pid_t pid) const;
  // Waits until `text` stands in the output; false where that does not happen in time or the process ends without it.
  bool WaitForOutput(pid_t pid, const std::string& text, absl::Duration timeout);

  struct Service {
    pid_t pid = -1;
    std::string address;  // host:port; empty where it was not SERVING within a minute
  };
  // Start of a service's program ("rollout": rollout/rollout), and waiting until it is SERVING.
  Service StartService(const std::string& name, const std::vector<std::string>& arguments);
  // Several, which start beside each other.
  std::map<std::string, Service> StartServices(std::span<const std::string> names,
                                               const std::vector<std::string>& arguments);

  struct Outcome {
    bool ended = false;  // within the time
    int exit_code = -1;  // 128 + signal where a signal ended it
    std::string output;
  };
  Outcome Wait(pid_t pid, absl::Duration timeout);
  // Start and Wait.
  Outcome Run(const std::string& program, const std::vector<std::string>& arguments, absl::Duration timeout,
              const std::map<std::string, std::string>& environment = {});

  // Processes of this family that are alive now, and those alive still after waiting `grace` for them to go.
  std::vector<pid_t> Alive() const;
  std::vector<pid_t> Survivors(absl::Duration grace) const;
  // Those whose command line contains `text`.
  std::vector<pid_t> Find(const std::string& text) const;
  std::vector<ListeningSocket> ListeningSockets() const;
  static std::string CommandLine(pid_t pid);

 private:
  std::string folder_;
  std::string tag_;
  std::map<pid_t, std::string> output_files_;
  std::map<pid_t, int> exit_codes_;
  int started_ = 0;

  bool Reap(pid_t pid);
};

}  // namespace quartet
