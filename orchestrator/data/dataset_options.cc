#include "orchestrator/data/dataset_options.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

void AddLeftOut(int64_t count, const char* why, const absl::Status& first, std::string* text) {
  if (count == 0) return;
  absl::StrAppend(text, absl::EndsWith(*text, ")") ? ", " : "; left out: ", count, why,
                  " (the first: ", first.message(), ")");
}

}  // namespace

DatasetOptions DatasetOptionsOf(const RunConfig& config) {
  const DataConfig& data = config.data();
  return {.seed = config.seed(),
          .shuffle = data.shuffle(),
          .checked_rows = data.checked_rows(),
          .drop_overlong = data.filter_overlong_prompts(),
          .drop_malformed = data.skip_malformed()};
}

std::string DescribeRows(const std::string& what, const Dataset& rows) {
  std::string text = absl::StrCat(rows.rows(), " ", what);
  AddLeftOut(rows.left_out().overlong, " too long", rows.left_out().first_overlong, &text);
  AddLeftOut(rows.left_out().malformed, " not well-formed", rows.left_out().first_malformed, &text);
  if (rows.unchecked_rows() > 0) {
    absl::StrAppend(&text, "; ", rows.unchecked_rows(), " of them are checked when they are drawn (data.checked_rows)");
  }
  return text;
}

void AddDataMetrics(const Dataset& rows, int64_t end, Metrics* metrics) {
  metrics->Set("data/epoch", static_cast<double>(end) / static_cast<double>(rows.rows()));
  metrics->Set("data/overlong", static_cast<double>(rows.left_out().overlong));
  metrics->Set("data/malformed", static_cast<double>(rows.left_out().malformed));
}

}  // namespace quartet
