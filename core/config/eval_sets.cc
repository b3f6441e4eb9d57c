#include "core/config/eval_sets.h"

#include <filesystem>

namespace quartet {

std::vector<EvalSet> EvalSets(const RunConfig& config) {
  const EvalConfig& e = config.eval();
  std::vector<EvalSet> sets;
  for (const std::string& path : e.data()) {
    EvalSet& set = sets.emplace_back();
    set.set_name(StemOf(path));
    set.set_data(path);
    set.set_input_key(config.data().input_key());
    set.set_label_key(config.data().label_key());
    set.set_label_extract(config.data().label_extract());
    set.set_max_samples(e.max_samples());
    set.set_temperature(e.temperature());
    set.set_top_p(e.top_p());
    set.set_n_samples_per_prompt(e.n_samples_per_prompt());
    *set.mutable_k() = e.k();
  }
  sets.insert(sets.end(), e.set().begin(), e.set().end());
  return sets;
}

std::string StemOf(const std::string& path) { return std::filesystem::path(path).stem().string(); }

}  // namespace quartet
