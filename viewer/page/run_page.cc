#include "viewer/page/run_page.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/run_folder/records/record_fields.h"
#include "nlohmann/json.hpp"
#include "viewer/page/config_rows.h"
#include "viewer/page/fill_template.h"
#include "viewer/page/json_text.h"

namespace quartet {
namespace {

using Json = nlohmann::json;

constexpr size_t kCheckpoints = 4000;

// The page with its styles and scripts, and two places: its title, and the data.
constexpr char kTemplate[] =
#include "viewer/page/page.inc"
    ;

}  // namespace

absl::Status RunPage::Read() {
  std::string lines;
  QUARTET_RETURN_IF_ERROR(metric_lines_.Read(&lines));
  if (metric_lines_.began_anew()) {
    columns_ = StepColumns();
    checkpoints_.clear();
  }
  AddMetrics(lines);
  QUARTET_RETURN_IF_ERROR(sample_lines_.Read(&lines));
  if (sample_lines_.began_anew()) samples_ = KeptSamples();
  for (const Json& sample : Records(lines)) samples_.Add(sample);
  QUARTET_RETURN_IF_ERROR(evaluation_lines_.Read(&lines));
  if (evaluation_lines_.began_anew()) evaluations_.clear();
  AddEvaluations(lines);
  QUARTET_RETURN_IF_ERROR(events_.Read());
  for (const auto& [name, text] : {std::pair("run.textproto", &config_text_), std::pair("state.json", &state_text_),
                                   std::pair("plan.json", &plan_text_)}) {
    absl::StatusOr<std::string> read = ReadFile(absl::StrCat(run_dir_, "/", name));
    if (!read.ok() && !absl::IsNotFound(read.status())) return read.status();
    *text = read.value_or("");
  }
  return absl::OkStatus();
}

void RunPage::AddMetrics(const std::string& lines) {
  for (const Json& record : Records(lines)) {
    if (!record.contains("step") || !record["step"].is_number_integer()) continue;
    const int64_t step = record["step"].get<int64_t>() + 1;
    Metrics metrics;
    for (const auto& [name, value] : record.items()) {
      if (name != "step" && value.is_number()) metrics.Set(name, value.get<double>());
    }
    columns_.Add(step, metrics);
    if (!metrics.Get("time/checkpoint").has_value()) continue;
    checkpoints_.push_back(step);
    if (checkpoints_.size() > kCheckpoints) checkpoints_.pop_front();
  }
}

void RunPage::AddEvaluations(const std::string& lines) {
  for (const Json& record : Records(lines)) {
    const bool passes = record.contains("pass@1");
    Evaluations& set = evaluations_[TextIn(record, "set")];
    set.metric = passes ? "pass@1" : "reward";
    set.prompts = static_cast<int64_t>(NumberIn(record, "prompts", 0));
    set.samples = static_cast<int64_t>(NumberIn(record, "n_samples_per_prompt", 1));
    set.steps.push_back(static_cast<int64_t>(NumberIn(record, "step", -1)) + 1);
    set.values.push_back(NumberIn(record, set.metric.c_str(), std::nan("")));
  }
}

void RunPage::AppendRun(std::string* out) const {
  const Json state = Json::parse(state_text_, nullptr, /*allow_exceptions=*/false);
  const bool known = state.is_object();
  JsonList run("{", out);
  run.Text("name", std::filesystem::path(run_dir_).filename().string());
  run.Text("dir", run_dir_);
  run.Text("program", known ? TextIn(state, "program") : "");
  run.Text("status", known ? TextIn(state, "state") : "");
  run.Text("why", known ? TextIn(state, "why") : "");
  absl::StrAppendFormat(run.Next("written"), "%.1f",
                        known ? NumberIn(state, "time", columns_.ended()) : columns_.ended());
  absl::StrAppendFormat(run.Next("stepped"), "%.1f", columns_.ended());
  if (columns_.started() > 0) {
    absl::StrAppendFormat(run.Next("started"), "%.1f", columns_.started());
  } else {
    run.Next("started")->append("null");
  }
  absl::StrAppend(run.Next("max_steps"), static_cast<int64_t>(known ? NumberIn(state, "steps", 0) : 0));
  absl::StrAppend(run.Next("records"), columns_.steps());
  absl::StrAppend(run.Next("bucket"), columns_.bucket_steps());
}

void RunPage::AppendEvaluations(std::string* out) const {
  JsonList all("{", out);
  for (const auto& [name, set] : evaluations_) {
    JsonList one("{", all.Next(name));
    one.Text("metric", set.metric);
    one.Number("prompts", static_cast<double>(set.prompts));
    one.Number("n", static_cast<double>(set.samples));
    {
      JsonList steps("[", one.Next("s"));
      for (const int64_t step : set.steps) absl::StrAppend(steps.Next(), step);
    }
    JsonList values("[", one.Next("v"));
    for (const double value : set.values) AppendJsonNumber(value, values.Next());
  }
}

void RunPage::AppendMarks(std::string* out) const {
  JsonList all("[", out);
  const auto append = [&](const RunEvent& mark) {
    JsonList one("{", all.Next());
    // What a log tells belongs to the step that was under way.
    const int64_t step = mark.step >= 0 ? mark.step + 1 : mark.of_log ? columns_.StepAt(mark.time) : -1;
    if (step >= 0) {
      absl::StrAppend(one.Next("s"), step);
    } else {
      one.Next("s")->append("null");
    }
    if (mark.time > 0) {
      absl::StrAppendFormat(one.Next("t"), "%.1f", mark.time);
    } else {
      one.Next("t")->append("null");
    }
    one.Text("k", mark.kind);
    one.Text("who", mark.from);
    one.Text("text", mark.text);
  };
  for (const int64_t step : checkpoints_) append({.step = step - 1, .kind = "checkpoint"});
  for (const RunEvent* event : events_.Newest()) append(*event);
}

void RunPage::AppendConfig(std::string* out) const {
  JsonList all("[", out);
  for (const ConfigRow& row : ReadConfigRows(config_text_)) {
    JsonList one("[", all.Next());
    AppendJsonText(row.path, one.Next());
    AppendJsonText(row.value, one.Next());
    if (row.by_default.has_value()) {
      AppendJsonText(*row.by_default, one.Next());
    } else {
      one.Next()->append("null");
    }
    AppendJsonText(row.origin, one.Next());
    one.Next()->append(row.differs ? "1" : "0");
  }
}

void RunPage::AppendPlan(std::string* out) const {
  const Json plan = Json::parse(plan_text_, nullptr, /*allow_exceptions=*/false);
  JsonList all("{", out);
  if (!plan.is_object() || !plan.contains("services") || !plan["services"].is_object()) return;
  for (const auto& [service, ranks] : plan["services"].items()) {
    JsonList one("{", all.Next(service));
    double outside = 0;
    for (const auto& [name, part] : ranks.items()) {
      if (name.ends_with("_outside") && part.is_number()) outside += part.get<double>();
      if (!part.is_object()) continue;
      JsonList tier("{", one.Next(name));
      for (const auto& [category, bytes] : part.items()) {
        if (bytes.is_number()) absl::StrAppend(tier.Next(category), bytes.get<int64_t>());
      }
    }
    absl::StrAppend(one.Next("outside"), static_cast<int64_t>(outside));
  }
}

void RunPage::AppendData(bool with_samples, std::string* out) const {
  JsonList all("{", out);
  AppendRun(all.Next("run"));
  columns_.AppendJson(all.Next());
  AppendEvaluations(all.Next("evals"));
  AppendMarks(all.Next("marks"));
  if (with_samples) samples_.AppendJson(all.Next("samples"));
  AppendConfig(all.Next("config"));
  AppendPlan(all.Next("plan"));
}

std::string RunPage::Html() const {
  std::string data;
  AppendData(/*with_samples=*/true, &data);
  return FillTemplate(kTemplate, std::filesystem::path(run_dir_).filename().string(), data);
}

absl::Status RunPage::Write() const { return AtomicWriteFile(run_dir_ + "/report.html", Html()); }

}  // namespace quartet
