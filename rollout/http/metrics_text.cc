#include "rollout/http/metrics_text.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace quartet {

std::string MetricsText(const GenerationState& state, const std::string& model_name) {
  const std::string label = absl::StrCat(
      "{model_name=\"", absl::StrReplaceAll(model_name, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"}");
  std::string text;
  for (const RolloutMetric& metric : MetricsOf(state)) {
    if (metric.prometheus_name.empty()) continue;
    const std::string name = absl::StrCat("quartet_", metric.prometheus_name);
    const char* type = absl::EndsWith(name, "_total") ? "counter" : "gauge";
    // 15 digits: counters as they are.
    absl::StrAppendFormat(&text, "# HELP %s %s\n# TYPE %s %s\n%s%s %.15g\n", name, metric.help, name, type, name, label,
                          metric.value);
  }
  return text;
}

}  // namespace quartet
