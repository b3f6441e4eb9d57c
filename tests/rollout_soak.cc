// Offers a running rollout twice what it admits, for minutes, and prints what came of it:
//
//   rollout_soak --address=HOST:PORT --pids=1,2,3 [--minutes=10] [--calls=N] [--longest_prompt=800]
//   [--longest_answer=400]
//
// Exit code 0 where every call was answered whole, refused, or closed by this program, and the memory of the processes
// did not grow by more than --growth_mib from the second quarter of the time to the second half.

#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "tests/rollout_load.h"

ABSL_FLAG(std::string, address, "", "of the rollout");
ABSL_FLAG(std::vector<std::string>, pids, {}, "its processes, whose memory is watched");
ABSL_FLAG(double, minutes, 10, "how long");
ABSL_FLAG(int, calls, 64, "calls under way at any time, of about five sequences each");
ABSL_FLAG(int, longest_prompt, 800, "tokens");
ABSL_FLAG(int, longest_answer, 400, "tokens");
ABSL_FLAG(int, cancel_one_of, 20, "one call of so many is closed before it ends");
ABSL_FLAG(double, growth_mib, 64, "memory that may come to all processes together");

namespace quartet {
namespace {

int Main() {
  RolloutLoad load;
  load.address = absl::GetFlag(FLAGS_address);
  load.duration = absl::Minutes(absl::GetFlag(FLAGS_minutes));
  load.calls = absl::GetFlag(FLAGS_calls);
  load.longest_prompt = absl::GetFlag(FLAGS_longest_prompt);
  load.longest_answer = absl::GetFlag(FLAGS_longest_answer);
  load.cancel_one_of = absl::GetFlag(FLAGS_cancel_one_of);
  for (const std::string& text : absl::GetFlag(FLAGS_pids)) {
    int pid = 0;
    if (!absl::SimpleAtoi(text, &pid)) {
      std::cerr << "--pids: \"" << text << "\" is no process id\n";
      return 2;
    }
    load.processes.push_back(pid);
  }
  if (load.processes.empty()) {
    std::cerr << "--pids is empty: nobody's memory would be watched\n";
    return 2;
  }
  const auto report = OfferLoad(load);
  if (!report.ok()) {
    std::cerr << report.status() << '\n';
    return 1;
  }
  std::cout << report->calls << " calls: " << report->answered << " answered, " << report->refused << " refused, "
            << report->cancelled << " closed by the client; " << report->tokens << " tokens\n";
  for (const auto& [what, times] : report->mistakes) std::cout << times << " x " << what << '\n';
  std::cout << "resident MiB, every tenth of the time:";
  for (size_t i = 0; i < 10 && !report->resident.empty(); ++i) {
    std::cout << ' ' << (report->resident[i * report->resident.size() / 10] >> 20);
  }
  std::cout << "\ngrowth " << static_cast<double>(report->resident_growth()) / (1 << 20) << " MiB\n";
  double left = 0;
  for (const auto& [name, value] : report->after.metrics()) {
    std::cout << name << ' ' << value << '\n';
    if (name == "rollout/running" || name == "rollout/waiting" || name == "rollout/kv_cache_usage") left += value;
  }
  const bool well = report->mistakes.empty() && left == 0 &&
                    static_cast<double>(report->resident_growth()) <= absl::GetFlag(FLAGS_growth_mib) * (1 << 20);
  return well ? 0 : 1;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return quartet::Main();
}
