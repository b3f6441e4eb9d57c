#include "orchestrator/evaluation/evaluated_model.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/checkpoint/run_checkpoints.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

// The steps of a checkpoint's folder; 0: it is called otherwise.
int64_t StepsOf(absl::string_view name) {
  int64_t steps = 0;
  return absl::ConsumePrefix(&name, "step_") && absl::SimpleAtoi(name, &steps) && steps > 0 ? steps : 0;
}

std::vector<std::string> PartsOf(const std::string& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  return absl::StrSplit(error ? folder : real.string(), '/', absl::SkipEmpty());
}

}  // namespace

EvaluatedModel EvaluatedModelIn(const std::string& folder) {
  std::vector<std::string> parts = PartsOf(folder);
  if (parts.empty()) return {.name = folder};
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t steps = StepsOf(parts[i]);
    if (steps == 0) continue;
    if (parts.back() == "policy" || parts.back() == "policy_state") parts.pop_back();
    std::vector<std::string> name(parts.begin() + static_cast<int64_t>(i), parts.end());
    if (i >= 2 && parts[i - 1] == "checkpoints") name.insert(name.begin(), parts[i - 2]);
    return {.name = absl::StrJoin(name, "/"), .step = steps - 1};
  }
  return {.name = parts.back()};
}

EvaluatedModel EvaluatedModelOf(const RunConfig& config, int64_t step) {
  if (step < 0) {
    const TrainerConfig& actor = config.actor();
    return {.name =
                EvaluatedModelIn(actor.load_checkpoint().empty() ? actor.pretrain() : actor.load_checkpoint()).name};
  }
  return {.name = absl::StrCat(fs::path(config.run_dir()).filename().string(), "/", CheckpointId(step + 1)),
          .step = step};
}

}  // namespace quartet
