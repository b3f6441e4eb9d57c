#include "tests/process_harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

constexpr char kTagVariable[] = "QUARTET_TEST_FAMILY";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::string Address(const std::string& hex) {
  // /proc/net/tcp writes addresses as 32-bit words in the machine's byte order.
  char text[INET6_ADDRSTRLEN] = "";
  unsigned words[4] = {};
  const int family = hex.size() == 8 ? AF_INET : AF_INET6;
  for (size_t i = 0; i < hex.size() / 8; ++i) words[i] = std::stoul(hex.substr(8 * i, 8), nullptr, 16);
  inet_ntop(family, words, text, sizeof(text));
  return text;
}

}  // namespace

ProcessHarness::ProcessHarness() {
  const char* base = std::getenv("TEST_TMPDIR");
  std::string pattern = absl::StrCat(base != nullptr ? base : "/tmp", "/quartet.XXXXXX");
  QUARTET_CHECK(mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  tag_ = absl::StrCat(kTagVariable, "=", folder_);
}

ProcessHarness::~ProcessHarness() {
  for (pid_t pid : Alive()) kill(pid, SIGKILL);
  for (const auto& [pid, file] : output_files_) {
    if (!exit_codes_.contains(pid)) waitpid(pid, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string ProcessHarness::Write(const std::string& name, const std::string& contents) const {
  std::ofstream(Path(name), std::ios::binary) << contents;
  return Path(name);
}

pid_t ProcessHarness::Start(const std::string& program, const std::vector<std::string>& arguments,
                            const std::map<std::string, std::string>& environment) {
  const std::string log = Path(absl::StrCat("output.", started_++));
  const std::string binary = std::filesystem::absolute(program);
  QUARTET_CHECK(std::filesystem::exists(binary)) << binary;
  std::vector<std::string> variables = {tag_};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string name(*variable, std::string(*variable).find('='));
    if (!environment.contains(name) && name != kTagVariable) variables.push_back(*variable);
  }
  for (const auto& [name, value] : environment) variables.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);

  const pid_t pid = fork();
  QUARTET_CHECK(pid >= 0);
  if (pid == 0) {
    const int file = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(file, 1);
    dup2(file, 2);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is ended leaves nothing either
    execve(binary.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  output_files_[pid] = log;
  return pid;
}

std::string ProcessHarness::Output(pid_t pid) const { return ReadAll(output_files_.at(pid)); }

bool ProcessHarness::Reap(pid_t pid) {
  if (exit_codes_.contains(pid)) return true;
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) != pid) return false;
  exit_codes_[pid] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

bool ProcessHarness::WaitForOutput(pid_t pid, const std::string& text, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const bool ended = Reap(pid);
    if (Output(pid).find(text) != std::string::npos) return true;
    if (ended || absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

ProcessHarness::Service ProcessHarness::StartService(const std::string& name,
                                                     const std::vector<std::string>& arguments) {
  return StartServices({&name, 1}, arguments).at(name);
}

std::map<std::string, ProcessHarness::Service> ProcessHarness::StartServices(
    std::span<const std::string> names, const std::vector<std::string>& arguments) {
  std::map<std::string, Service> services;
  std::map<std::string, std::string> files;
  for (const std::string& name : names) {
    files[name] = Path(absl::StrCat(name, "_", started_, ".address"));
    std::vector<std::string> all = arguments;
    all.push_back("--address_file=" + files[name]);
    services[name].pid = Start(absl::StrCat(name, "/", name), all);
  }
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  for (auto& [name, service] : services) {
    while (!std::filesystem::exists(files[name]) && !Reap(service.pid) && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(50));
    }
    std::ifstream(files[name]) >> service.address;
  }
  return services;
}

ProcessHarness::Outcome ProcessHarness::Wait(pid_t pid, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  Outcome outcome;
  while (!(outcome.ended = Reap(pid)) && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(20));
  if (outcome.ended) outcome.exit_code = exit_codes_[pid];
  outcome.output = Output(pid);
  return outcome;
}

ProcessHarness::Outcome ProcessHarness::Run(const std::string& program, const std::vector<std::string>& arguments,
                                            absl::Duration timeout,
                                            const std::map<std::string, std::string>& environment) {
  return Wait(Start(program, arguments, environment), timeout);
}

std::vector<pid_t> ProcessHarness::Alive() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = ReadAll(absl::StrCat("/proc/", name, "/stat"));
    // "pid (name) state ...": a zombie is gone but for its exit code.
    const size_t end = stat.rfind(')');
    if (end == std::string::npos || end + 2 >= stat.size() || stat[end + 2] == 'Z') continue;
    for (absl::string_view variable : absl::StrSplit(ReadAll(absl::StrCat("/proc/", name, "/environ")), '\0')) {
      if (variable == tag_) {
        found.push_back(std::stoi(name));
        break;
      }
    }
  }
  return found;
}

std::vector<pid_t> ProcessHarness::Survivors(absl::Duration grace) const {
  const absl::Time deadline = absl::Now() + grace;
  while (true) {
    std::vector<pid_t> alive = Alive();
    if (alive.empty() || absl::Now() > deadline) return alive;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

std::string ProcessHarness::CommandLine(pid_t pid) {
  std::string line = ReadAll(absl::StrCat("/proc/", pid, "/cmdline"));
  for (char& c : line) {
    if (c == '\0') c = ' ';
  }
  return line;
}

std::vector<pid_t> ProcessHarness::Find(const std::string& text) const {
  std::vector<pid_t> found;
  for (pid_t pid : Alive()) {
    if (CommandLine(pid).find(text) != std::string::npos) found.push_back(pid);
  }
  return found;
}

std::vector<ListeningSocket> ProcessHarness::ListeningSockets() const {
  std::map<std::string, pid_t> owner;  // socket inode -> process
  for (pid_t pid : Alive()) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
      const std::string target = std::filesystem::read_symlink(entry.path(), error);
      if (target.rfind("socket:[", 0) == 0) owner[target.substr(8, target.size() - 9)] = pid;
    }
  }
  std::vector<ListeningSocket> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (absl::string_view line : absl::StrSplit(ReadAll(table), '\n')) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (fields.size() < 10 || fields[3] != "0A") continue;  // 0A: LISTEN
      const auto found = owner.find(fields[9]);
      if (found == owner.end()) continue;
      const std::vector<std::string> local = absl::StrSplit(fields[1], ':');
      sockets.push_back({found->second, Address(local[0]), static_cast<int>(std::stoul(local[1], nullptr, 16))});
    }
  }
  return sockets;
}

}  // namespace quartet
