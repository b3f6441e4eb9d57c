#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/eval_sets.h"
#include "core/config/template_date.h"
#include "core/data/json.h"
#include "core/data/label.h"

namespace quartet {
namespace {

absl::Status CheckPaths(absl::string_view field, const google::protobuf::RepeatedPtrField<std::string>& paths) {
  const auto empty = std::find(paths.begin(), paths.end(), "");
  return empty == paths.end() ? absl::OkStatus() : Bad(field, "\"\"", "each is the path of a file");
}

// What a set of `n` answers a prompt is asked. `at` is where it stands: "eval." or "eval.set[0].".
absl::Status CheckSampling(const std::string& at, double temperature, double top_p, int n,
                           const google::protobuf::RepeatedField<int32_t>& k) {
  if (temperature < kGreedyTemperature) {
    if (n > 1) {
      return Bad(at + "n_samples_per_prompt", absl::StrCat(n),
                 absl::StrCat(at, "temperature is ", temperature,
                              ", so that all answers to a prompt are the same; set one of at least 1e-5"));
    }
    if (top_p != 1) return NoEffect(at + "top_p", absl::StrCat(at, "temperature is ", temperature));
  }
  std::set<int> seen;
  for (const int one : k) {
    QUARTET_RETURN_IF_ERROR(Integer(at + "k", one, 1, n));
    if (!seen.insert(one).second) return Bad(at + "k", absl::StrCat(one), "each k stands there once");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckData(const RunConfig& c) {
  const DataConfig& d = c.data();
  QUARTET_RETURN_IF_ERROR(CheckPaths("data.prompt_data", d.prompt_data()));
  if (!d.prompt_data_probs().empty() && d.prompt_data_probs_size() != d.prompt_data_size()) {
    return Bad("data.prompt_data_probs", absl::StrCat("a list of ", d.prompt_data_probs_size()),
               absl::StrCat("one for each of the ", d.prompt_data_size(), " files of data.prompt_data"));
  }
  const size_t place = d.input_template().find("{}");
  if (place == std::string::npos || d.input_template().find("{}", place + 2) != std::string::npos) {
    return Bad("data.input_template", absl::StrCat("\"", d.input_template(), "\""),
               "{} stands in it once, where the prompt's text comes");
  }
  QUARTET_RETURN_IF_ERROR(TemplateDate(d).status());
  // Whether they are well-formed, and what the template reads, is told where it is loaded.
  if (const auto kwargs = ParseJson(d.chat_template_kwargs(), "");
      kwargs.ok() && kwargs->is_object() && kwargs->contains("tools") && !d.tools_key().empty()) {
    return Bad("data.chat_template_kwargs", absl::StrCat("'", d.chat_template_kwargs(), "'"),
               absl::StrCat("no \"tools\", since data.tools_key (\"", d.tools_key(),
                            "\") gives each row's to the template; set one of them"));
  }
  return OneOf("data.label_extract", d.label_extract(), kLabelExtractions);
}

absl::Status CheckEval(const RunConfig& c) {
  const EvalConfig& e = c.eval();
  QUARTET_RETURN_IF_ERROR(CheckPaths("eval.data", e.data()));
  QUARTET_RETURN_IF_ERROR(CheckSampling("eval.", e.temperature(), e.top_p(), e.n_samples_per_prompt(), e.k()));
  if (e.data().empty() && e.set().empty()) {
    constexpr char kNone[] = "eval.data and eval.set are empty";
    if (e.max_samples() != 0) return NoEffect("eval.max_samples", kNone);
    if (e.temperature() != 0) return NoEffect("eval.temperature", kNone);
    if (e.k_size() != 1) return NoEffect("eval.k", kNone);  // of more than one answer, which needs a temperature
  }
  for (int i = 0; i < e.set_size(); ++i) {
    const EvalSet& s = e.set(i);
    const std::string at = absl::StrCat("eval.set[", i, "].");
    if (s.data().empty()) return Missing(at + "data", "it names a file of prompts, JSONL or Parquet");
    QUARTET_RETURN_IF_ERROR(OneOf(at + "label_extract", s.label_extract(), kLabelExtractions));
    QUARTET_RETURN_IF_ERROR(CheckSampling(at, s.temperature(), s.top_p(), s.n_samples_per_prompt(), s.k()));
  }
  std::set<std::string> names;
  for (const EvalSet& s : EvalSets(c)) {
    const auto is_plain = [](char x) { return absl::ascii_isgraph(x) && x != '/'; };
    if (s.name().empty() || !std::all_of(s.name().begin(), s.name().end(), is_plain)) {
      return Bad("eval.set.name", absl::StrCat("\"", s.name(), "\", of ", s.data()),
                 "names are in metrics: visible ASCII characters without /");
    }
    if (!names.insert(s.name()).second) {
      return Bad("eval.set.name", absl::StrCat("\"", s.name(), "\", of ", s.data()),
                 "another set has that name; give them names of their own in eval.set");
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
