#include "core/preflight/node_facts.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "core/hardware/cores.h"
#include "core/network/host_name.h"
#include "core/version/version.h"

namespace quartet {
namespace {

// Of the file system that `path`, or the nearest folder above it that is there, is on; -1: it cannot be told.
int64_t FreeBytes(std::filesystem::path path) {
  std::error_code error;
  while (!path.empty() && !std::filesystem::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  struct statvfs space;
  if (statvfs(path.c_str(), &space) != 0) return -1;
  return static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

// "MemTotal:  16313 kB"; 0: there is no such line.
int64_t MemoryOf(const std::string& text, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() >= 2 && words[0] == absl::StrCat(name, ":") && absl::SimpleAtoi(words[1], &kilobytes)) {
      return kilobytes << 10;
    }
  }
  return 0;
}

}  // namespace

NodeFacts ReadNodeFacts(const std::string& run_dir, const std::string& token_file, const std::string& root) {
  NodeFacts facts;
  facts.set_host(HostName());
  facts.set_version(VersionText());
  facts.set_unix_micros(absl::ToUnixMicros(absl::Now()));
  facts.set_cores(AvailableCores());
  const std::string memory = ReadFile(root + "/proc/meminfo").value_or("");
  facts.set_memory_bytes(MemoryOf(memory, "MemTotal"));
  facts.set_available_memory_bytes(MemoryOf(memory, "MemAvailable"));
  std::error_code error;
  const std::string shared = root + "/dev/shm";
  facts.set_shared_memory_free_bytes(std::filesystem::is_directory(shared, error) ? FreeBytes(shared) : -1);
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    facts.set_open_files(files.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(files.rlim_cur));
  }
  facts.set_disk_free_bytes(FreeBytes(run_dir));
  facts.set_sees_run_dir(token_file.empty() || std::filesystem::exists(token_file, error));
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ..."
  const std::string driver = ReadFile(root + "/proc/driver/nvidia/version").value_or("");
  if (const size_t at = driver.find("Kernel Module"); at != std::string::npos) {
    const std::vector<std::string> words = absl::StrSplit(driver.substr(at + 13), ' ', absl::SkipEmpty());
    for (const std::string& word : words) {
      if (word.find_first_not_of("0123456789.") != std::string::npos) continue;
      facts.set_gpu_driver(word);
      break;
    }
  }
  return facts;
}

}  // namespace quartet
