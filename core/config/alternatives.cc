#include "core/config/alternatives.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/config/field_paths.h"

namespace quartet {
namespace {

using Fields = std::vector<std::string>;

std::vector<std::pair<Fields, Fields>> MakeAlternatives() {
  std::vector<std::pair<Fields, Fields>> all = {
      {{"train.max_steps"}, {"train.num_episodes"}},
      {{"rollout.kv_cache_bytes"}, {"rollout.gpu_memory_utilization"}},
      {{"reward.max_tokens_per_micro_batch"}, {"reward.micro_rollout_batch_size"}},
  };
  for (const std::string model : {"actor.", "critic."}) {
    all.push_back({{model + "lr_warmup_steps"}, {model + "lr_warmup_ratio"}});
    all.push_back({{model + "max_tokens_per_micro_batch"},
                   {model + "micro_train_batch_size", model + "micro_rollout_batch_size"}});
  }
  return all;
}

}  // namespace

void MakeWayFor(const RunConfig& later, RunConfig* config) {
  static const auto& alternatives = *new std::vector<std::pair<Fields, Fields>>(MakeAlternatives());
  const std::map<std::string, std::string> set = FlatFields(later);
  const auto says = [&set](const Fields& fields) {
    return std::any_of(fields.begin(), fields.end(), [&set](const std::string& field) {
      const auto found = set.find(field);
      return found != set.end() && found->second != "0";
    });
  };
  for (const auto& [one, other] : alternatives) {
    const bool says_one = says(one), says_other = says(other);
    if (says_one == says_other) continue;
    for (const std::string& field : says_one ? other : one) ClearPath(field, config);
  }
}

}  // namespace quartet
