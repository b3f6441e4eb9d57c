#include "core/run_folder/records/run_events.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/run_folder/records/record_fields.h"

namespace quartet {
namespace {

// "W20261122 10:11:12.123456 ..." of glog, in the zone of the machine.
std::optional<double> LogTime(std::string_view line) {
  constexpr size_t kLength = 24;  // behind the letter
  absl::Time time;
  std::string error;
  if (line.size() <= kLength || !absl::ParseTime("%E4Y%m%d %H:%M:%E6S", std::string(line.substr(1, kLength)),
                                                 absl::LocalTimeZone(), &time, &error)) {
    return std::nullopt;
  }
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

}  // namespace

absl::Status RunEvents::Read() {
  QUARTET_RETURN_IF_ERROR(ReadFrom("events.jsonl", AddRecord));
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat(run_dir_, "/logs"), none)) {
    if (entry.path().extension() != ".log") continue;
    QUARTET_RETURN_IF_ERROR(ReadFrom(absl::StrCat("logs/", entry.path().filename().string()), AddLogLine));
  }
  return absl::OkStatus();
}

absl::Status RunEvents::ReadFrom(const std::string& name,
                                 void (*add)(const std::string& name, std::string_view line, Source*)) {
  const auto [found, is_new] = sources_.try_emplace(name, Source{FileTail(absl::StrCat(run_dir_, "/", name))});
  Source& source = found->second;
  std::string lines;
  QUARTET_RETURN_IF_ERROR(source.tail.Read(&lines));
  if (source.tail.began_anew()) {
    source.counts.clear();
    source.kept.clear();
  }
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    add(name, std::string_view(line.data(), line.size()), &source);
  }
  return absl::OkStatus();
}

void RunEvents::AddRecord(const std::string& /*name*/, std::string_view line, Source* source) {
  const nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) return;
  Add({.step = static_cast<int64_t>(NumberIn(event, "step", -1)),
       .time = NumberIn(event, "time", 0),
       .kind = TextIn(event, "kind"),
       .from = TextIn(event, "from"),
       .text = TextIn(event, "text")},
      source);
}

void RunEvents::AddLogLine(const std::string& name, std::string_view line, Source* source) {
  if (line[0] != 'W' && line[0] != 'E' && line[0] != 'F') return;
  const std::optional<double> time = LogTime(line);
  if (!time.has_value()) return;
  const size_t text = line.find("] ");
  Add({.of_log = true,
       .time = *time,
       .kind = line[0] == 'W' ? "warning" : "error",
       .from = std::filesystem::path(name).stem().string(),
       .text = std::string(text == std::string_view::npos ? line : line.substr(text + 2))},
      source);
}

void RunEvents::Add(RunEvent event, Source* source) {
  ++source->counts[event.kind];
  source->kept.push_back(std::move(event));
  if (source->kept.size() > kKept) source->kept.pop_front();
}

std::map<std::string, int64_t> RunEvents::Counts() const {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, source] : sources_) {
    for (const auto& [kind, count] : source.counts) counts[kind] += count;
  }
  return counts;
}

std::vector<const RunEvent*> RunEvents::Newest() const {
  std::vector<const RunEvent*> events;
  for (const auto& [name, source] : sources_) {
    for (const RunEvent& event : source.kept) events.push_back(&event);
  }
  std::stable_sort(events.begin(), events.end(), [](const auto* a, const auto* b) { return a->time < b->time; });
  if (events.size() > kKept) events.erase(events.begin(), events.end() - kKept);
  return events;
}

}  // namespace quartet
