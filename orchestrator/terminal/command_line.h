// The command line of the orchestrator's programs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

struct FlagSpec {
  std::string name;   // without dashes
  std::string value;  // what stands for its value in the help, such as "FILE"; empty: a switch
  std::string help;
  bool repeated = false;
};

// "--name=value", "--name value" and, for switches, "--name". --help is always there.
class CommandLine {
 public:
  // INVALID_ARGUMENT names an unknown flag, a flag without its value, or one that is given twice.
  static absl::StatusOr<CommandLine> Parse(int argc, const char* const* argv, const std::vector<FlagSpec>& flags);

  bool help() const { return Has("help"); }
  bool Has(const std::string& name) const { return values_.count(name) > 0; }
  std::optional<std::string> Get(const std::string& name) const;
  std::vector<std::string> GetAll(const std::string& name) const;

  // One line a flag, aligned.
  static std::string Describe(const std::vector<FlagSpec>& flags);

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

}  // namespace quartet
