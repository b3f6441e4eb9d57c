#include "orchestrator/checkpoint_record.h"

#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/zero/state_folder.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

constexpr char kRecordName[] = "checkpoint.json";
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

// The training state in `folder` is the one that was saved together with the record.
absl::Status CheckState(const std::string& folder, const SavedTrainer& expected) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> state, StateReader::Open(folder));
  if (state->manifest_hash() == expected.manifest_hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(folder, "/", kStateManifestName, ": is not the one that ", kRecordName,
                                          " beside it was written with; the folder belongs to another checkpoint"));
}

}  // namespace

std::string CheckpointId(int64_t step) { return absl::StrCat("step_", step); }

absl::Status WriteCheckpointRecord(const std::string& folder, const CheckpointRecord& record) {
  nlohmann::ordered_json json;
  json["step"] = record.step;
  json["kl_coefficient"] = record.kl_coefficient;
  json["seed"] = record.seed;
  json["rollout_batch_size"] = record.rollout_batch_size;
  json["prompts_hash"] = Hex(record.prompts_hash);
  if (record.policy.has_value()) json["policy_state"] = StateJson(*record.policy);
  if (record.critic.has_value()) json["critic_state"] = StateJson(*record.critic);
  return AtomicWriteFile(absl::StrCat(folder, "/", kRecordName), json.dump(2) + "\n");
}

absl::StatusOr<CheckpointRecord> ReadCheckpointRecord(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kRecordName);
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path, kMaxRecordBytes));
  CheckpointRecord record;
  const auto coefficient = json.is_object() ? json.find("kl_coefficient") : json.end();
  const auto seed = json.is_object() ? json.find("seed") : json.end();
  if (!json.is_object() || coefficient == json.end() || !coefficient->is_number() || seed == json.end() ||
      !seed->is_number_unsigned() || !ReadCount(json, "step", &record.step) ||
      !ReadCount(json, "rollout_batch_size", &record.rollout_batch_size) ||
      !ReadHash(json, "prompts_hash", &record.prompts_hash) || !ReadState(json, "policy_state", &record.policy) ||
      !ReadState(json, "critic_state", &record.critic)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not the record of a checkpoint, or not a whole one"));
  }
  record.kl_coefficient = coefficient->get<double>();
  record.seed = seed->get<uint64_t>();
  return record;
}

absl::StatusOr<std::optional<CheckpointRecord>> FindLatestCheckpoint(const std::string& run_dir) {
  const std::string latest = absl::StrCat(run_dir, "/checkpoints/latest");
  std::error_code error;
  if (!fs::is_symlink(latest, error)) return std::nullopt;
  QUARTET_ASSIGN_OR_RETURN(CheckpointRecord record, ReadCheckpointRecord(latest));
  if (!record.policy.has_value() || !record.critic.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(latest,
                     " has no training states, so the run cannot be continued; the run that wrote it had "
                     "train.save_optimizer: false"));
  }
  QUARTET_RETURN_IF_ERROR(CheckState(latest + "/policy_state", *record.policy));
  QUARTET_RETURN_IF_ERROR(CheckState(latest + "/critic_state", *record.critic));
  return record;
}

}  // namespace quartet
