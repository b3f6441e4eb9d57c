#include "core/run_folder/phase_file.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/errors/shown.h"

namespace quartet {

void PhaseFile::Say(const std::string& phase) {
  nlohmann::json object;
  object["phase"] = phase;
  object["since"] = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  std::lock_guard lock(mutex_);
  const std::string beside = path_ + ".new";
  std::ofstream file(beside, std::ios::trunc);
  file << OneLineJson(object) << '\n';
  file.close();
  if (file) std::rename(beside.c_str(), path_.c_str());
}

std::optional<PhaseFile::Phase> PhaseFile::Read(const std::string& run_dir) {
  const absl::StatusOr<std::string> text = ReadFile(run_dir + "/phase.json");
  if (!text.ok()) return std::nullopt;
  const nlohmann::json object = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("phase") || !object["phase"].is_string() || !object.contains("since") ||
      !object["since"].is_number()) {
    return std::nullopt;
  }
  return Phase{.phase = object["phase"].get<std::string>(),
               .since = absl::UnixEpoch() + absl::Seconds(object["since"].get<double>())};
}

}  // namespace quartet
