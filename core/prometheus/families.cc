#include "core/prometheus/families.h"

#include <dirent.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quartet {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

int OpenFiles() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return 0;
  int count = -3;  // ".", "..", and the folder itself
  while (readdir(folder.get()) != nullptr) ++count;
  return count;
}

// Seconds since 1970.
double StartTime() {
  static const double time = [] {
    // Of /proc/self/stat the 22nd field, in ticks since the host's start; the second, a name in parentheses, may have
    // spaces.
    std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
    std::string line, skipped;
    std::getline(stat, line);
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    for (int field = 3; field < 22; ++field) fields >> skipped;
    double ticks = 0, up = 0;
    fields >> ticks;
    uptime >> up;
    const double age = up - ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
    return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - age;
  }();
  return time;
}

}  // namespace

void AddFigure(prometheus::MetricType type, const std::string& name, const std::string& help,
               const MetricLabels& labels, double value, MetricFamilies* families) {
  auto family = std::find_if(families->begin(), families->end(), [&](const auto& f) { return f.name == name; });
  if (family == families->end()) {
    families->push_back({.name = name, .help = help, .type = type, .metric = {}});
    family = std::prev(families->end());
  }
  prometheus::ClientMetric& metric = family->metric.emplace_back();
  for (const auto& [label, text] : labels) metric.label.push_back({label, text});
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

void AddProcessFigures(MetricFamilies* families) {
  using prometheus::MetricType;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  AddFigure(MetricType::Counter, "process_cpu_seconds_total", "User and system CPU time, seconds.", {},
            Seconds(usage.ru_utime) + Seconds(usage.ru_stime), families);
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  statm >> pages >> resident;
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  AddFigure(MetricType::Gauge, "process_virtual_memory_bytes", "Virtual memory.", {}, pages * page, families);
  AddFigure(MetricType::Gauge, "process_resident_memory_bytes", "Resident memory.", {}, resident * page, families);
  AddFigure(MetricType::Gauge, "process_open_fds", "Open files.", {}, OpenFiles(), families);
  AddFigure(MetricType::Gauge, "process_start_time_seconds", "When the process was started, since 1970.", {},
            StartTime(), families);
}

std::string MetricsText(const MetricFamilies& families) { return prometheus::TextSerializer().Serialize(families); }

HttpReply MetricsReply(const MetricFamilies& families) {
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = MetricsText(families);
  return reply;
}

std::vector<double> DurationBuckets(double least, double most) {
  constexpr double kSteps[] = {1, 2.5, 5};
  std::vector<double> bounds;
  for (double decade = least; bounds.empty() || bounds.back() < most; decade *= 10) {
    for (const double step : kSteps) {
      if (bounds.empty() || bounds.back() < most) bounds.push_back(decade * step);
    }
  }
  return bounds;
}

}  // namespace quartet
