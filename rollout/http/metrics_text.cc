#include "rollout/http/metrics_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace quartet {

std::string MetricsText(const GenerationState& state, const std::string& model_name) {
  const std::string label = absl::StrCat(
      "{model_name=\"", absl::StrReplaceAll(model_name, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"}");
  std::string text;
  const auto add = [&](absl::string_view name, absl::string_view type, absl::string_view help, auto value) {
    absl::StrAppend(&text, "# HELP quartet_", name, " ", help, "\n# TYPE quartet_", name, " ", type, "\nquartet_", name,
                    label, " ", value, "\n");
  };
  const RolloutRankInfo& sum = state.sum;
  add("num_requests_running", "gauge", "Sequences in the running batch.", sum.running());
  add("num_requests_waiting", "gauge", "Sequences that wait for a place in it.", sum.waiting());
  add("kv_cache_usage_perc", "gauge", "Share of the KV cache's blocks that sequences hold; 1 is all.",
      sum.blocks() == 0 ? 0.0 : static_cast<double>(sum.blocks_in_use()) / static_cast<double>(sum.blocks()));
  add("kv_cache_held_places_total", "counter",
      "Places for tokens in the blocks that sequences held, summed over steps.", sum.held_places());
  add("kv_cache_empty_places_total", "counter", "Those of them that held no token.", sum.empty_places());
  add("num_preemptions_total", "counter", "Sequences sent back to waiting.", sum.preemptions());
  add("prefix_cache_queries_total", "counter", "Tokens of admitted sequences.", sum.admitted_tokens());
  add("prefix_cache_hits_total", "counter", "Those of them that the cache held already.", sum.cached_tokens());
  add("prompt_tokens_total", "counter", "Prefill tokens computed.", sum.prefill_tokens());
  add("generation_tokens_total", "counter", "Tokens generated.", sum.generated_tokens());
  add("prompt_tokens_per_second", "gauge", "Prefill tokens a second, of late, while forwards ran.",
      sum.prefill_tokens_per_second());
  add("generation_tokens_per_second", "gauge", "Generated tokens a second, of late, while forwards ran.",
      sum.generated_tokens_per_second());
  add("policy_version", "gauge", "Version of the weights in use.", state.policy_version);
  add("paused", "gauge", "1 while no forward is made.", state.paused ? 1 : 0);
  add("asleep", "gauge", "1 while the KV cache is given back.", state.asleep ? 1 : 0);
  add("weights_released", "gauge", "1 while the weights are given back.", state.weights_released ? 1 : 0);
  return text;
}

}  // namespace quartet
