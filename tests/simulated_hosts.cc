#include "tests/simulated_hosts.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

constexpr char kScript[] = "tests/cluster/hosts.sh";
constexpr absl::Duration kLong = absl::Minutes(3);

}  // namespace

std::string SimulatedHosts::Missing(const std::vector<std::string>& programs) {
  if (getuid() != 0) return "root";
  std::vector<std::string> all = {"ip", "tc", "nsenter", "unshare"};
  all.insert(all.end(), programs.begin(), programs.end());
  for (const std::string& program : all) {
    bool found = false;
    for (const char* folder : {"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/"}) {
      found = found || std::filesystem::exists(folder + program);
    }
    if (!found) return program;
  }
  return "";
}

SimulatedHosts::SimulatedHosts(int count) : folder_(harness_.Path("hosts")) {
  const auto up = harness_.Run(kScript, {"up", folder_, absl::StrCat(count)}, kLong);
  QUARTET_CHECK(up.exit_code == 0) << up.output;
}

pid_t SimulatedHosts::Start(ProcessHarness& harness, int host, const std::string& program,
                            const std::vector<std::string>& arguments,
                            const std::map<std::string, std::string>& environment) {
  std::vector<std::string> all = {"run", folder_, absl::StrCat(host), std::filesystem::absolute(program)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return harness.Start(kScript, all, environment);
}

std::string SimulatedHosts::Output(int host, const std::vector<std::string>& command,
                                   const std::map<std::string, std::string>& environment) {
  std::vector<std::string> arguments = {"run", folder_, absl::StrCat(host)};
  arguments.insert(arguments.end(), command.begin(), command.end());
  return harness_.Run(kScript, arguments, kLong, environment).output;
}

void SimulatedHosts::Change(const std::string& what, int host, const std::string& how) {
  std::vector<std::string> arguments = {what, folder_, absl::StrCat(host)};
  if (!how.empty()) arguments.push_back(how);
  const auto changed = harness_.Run(kScript, arguments, kLong);
  QUARTET_CHECK(changed.exit_code == 0) << changed.output;
}

}  // namespace quartet
