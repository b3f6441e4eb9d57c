#include "orchestrator/run_folder/checkpoint_record.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/data/json.h"

namespace quartet {
namespace {

constexpr int64_t kMaxRecordBytes = 1 << 20;

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }

nlohmann::ordered_json StateJson(const SavedTrainer& state) {
  return {{"manifest_hash", Hex(state.manifest_hash)}, {"optimizer_steps", state.optimizer_steps}};
}

bool ReadCount(const nlohmann::json& object, const char* name, int64_t* value) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned() ||
      found->get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
    return false;
  }
  *value = found->get<int64_t>();
  return true;
}

bool ReadHash(const nlohmann::json& object, const char* name, uint64_t* value) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() &&
         absl::SimpleHexAtoi(found->get_ref<const std::string&>(), value);
}

bool ReadState(const nlohmann::json& object, const char* name, std::optional<SavedTrainer>* state) {
  const auto found = object.find(name);
  if (found == object.end()) return true;
  state->emplace();
  return found->is_object() && ReadHash(*found, "manifest_hash", &(*state)->manifest_hash) &&
         ReadCount(*found, "optimizer_steps", &(*state)->optimizer_steps);
}

nlohmann::ordered_json MetricsJson(const Metrics& metrics) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics.values()) {
    json[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  }
  return json;
}

bool ReadMetrics(const nlohmann::json& object, Metrics* metrics) {
  const auto found = object.find("metrics");
  if (found == object.end()) return true;
  if (!found->is_object()) return false;
  for (const auto& [name, value] : found->items()) {
    if (!value.is_number() && !value.is_null()) return false;
    metrics->Set(name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return true;
}

}  // namespace

absl::Status WriteCheckpointRecord(const std::string& folder, const CheckpointRecord& record) {
  nlohmann::ordered_json json;
  json["step"] = record.step;
  json["kl_coefficient"] = record.kl_coefficient;
  json["seed"] = record.seed;
  json["rollout_batch_size"] = record.rollout_batch_size;
  json["prompts_hash"] = Hex(record.prompts_hash);
  if (record.prompts_drawn.has_value()) json["prompts_drawn"] = *record.prompts_drawn;
  if (record.policy.has_value()) json["policy_state"] = StateJson(*record.policy);
  if (record.critic.has_value()) json["critic_state"] = StateJson(*record.critic);
  json["metrics"] = MetricsJson(record.metrics);
  json["has_evaluation"] = record.has_evaluation;
  return AtomicWriteFile(absl::StrCat(folder, "/", kCheckpointRecordName), json.dump(2) + "\n");
}

absl::StatusOr<CheckpointRecord> ReadCheckpointRecord(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kCheckpointRecordName);
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path, kMaxRecordBytes));
  CheckpointRecord record;
  const auto coefficient = json.is_object() ? json.find("kl_coefficient") : json.end();
  const auto seed = json.is_object() ? json.find("seed") : json.end();
  if (!json.is_object() || coefficient == json.end() || !coefficient->is_number() || seed == json.end() ||
      !seed->is_number_unsigned() || !ReadCount(json, "step", &record.step) ||
      !ReadCount(json, "rollout_batch_size", &record.rollout_batch_size) ||
      !ReadHash(json, "prompts_hash", &record.prompts_hash) || !ReadState(json, "policy_state", &record.policy) ||
      !ReadState(json, "critic_state", &record.critic) ||
      (json.contains("prompts_drawn") && !ReadCount(json, "prompts_drawn", &record.prompts_drawn.emplace())) ||
      !ReadMetrics(json, &record.metrics)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not the record of a checkpoint, or not a whole one"));
  }
  record.kl_coefficient = coefficient->get<double>();
  record.seed = seed->get<uint64_t>();
  record.has_evaluation = json.value("has_evaluation", nlohmann::json()) == true;
  return record;
}

}  // namespace quartet
