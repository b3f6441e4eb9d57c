#include "core/service/ranks/addresses/nccl_environment.h"

#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/environment.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/service/ranks/addresses/host_address.h"

namespace quartet {

namespace {

bool IsSet(absl::string_view name, const std::vector<std::string>& lines) {
  return getenv(std::string(name).c_str()) != nullptr || std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
           return absl::StartsWith(line, absl::StrCat(name, "="));
         });
}

}  // namespace

absl::Status PutNcclBehind(const std::string& host, const std::string& root) {
  constexpr char kMonitor[] = "NCCL_RAS_ENABLE";
  std::string own = Environment("NCCL_CONF_FILE");
  if (own.empty()) own = absl::StrCat(Environment("HOME"), "/.nccl.conf");
  const std::string files =
      absl::StrCat(ReadFile(root + "/etc/nccl.conf").value_or(""), "\n", ReadFile(root + own).value_or(""));
  const std::vector<std::string> lines = absl::StrSplit(files, '\n');
  if (!IsSet(kNcclInterface, lines)) {
    QUARTET_ASSIGN_OR_RETURN(const std::string interface, InterfaceOf(host));
    setenv(kNcclInterface, absl::StrCat("=", interface).c_str(), /*overwrite=*/1);
  }
  if (!IsSet(kMonitor, lines)) setenv(kMonitor, "0", /*overwrite=*/1);
  return absl::OkStatus();
}

bool NcclTakes(absl::string_view said, absl::string_view interface) {
  const bool left_out = absl::ConsumePrefix(&said, "^"), whole = absl::ConsumePrefix(&said, "=");
  const std::vector<absl::string_view> names = absl::StrSplit(said, ',', absl::SkipEmpty());
  if (names.empty()) return true;
  const bool named = std::any_of(names.begin(), names.end(), [&](absl::string_view name) {
    name = name.substr(0, name.find(':'));  // a port
    return whole ? interface == name : absl::StartsWith(interface, name);
  });
  return named != left_out;
}

}  // namespace quartet
