#include "core/run_folder/checkpoints/checkpoint_record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/hash_text.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/hashed_text.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/data/json.h"
#include "core/data/json_fields.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

constexpr int64_t kMaxRecordBytes = 1 << 20;
// All that release 0.1.0 wrote, without a hash.
constexpr std::string_view kFirstFields[] = {"step",         "kl_coefficient", "seed",         "rollout_batch_size",
                                             "prompts_hash", "prompts_drawn",  "policy_state", "critic_state",
                                             "metrics",      "has_evaluation"};

nlohmann::ordered_json StateJson(const SavedTrainer& state) {
  return {{"manifest_hash", HashText(state.manifest_hash)}, {"optimizer_steps", state.optimizer_steps}};
}

std::optional<SavedTrainer> ReadState(const nlohmann::json& record, const std::string& field, JsonFields* fields) {
  if (!record.contains(field)) return std::nullopt;
  const nlohmann::json& state = fields->Object(record, field);
  return SavedTrainer{.manifest_hash = fields->Hash(state, "manifest_hash"),
                      .optimizer_steps = fields->Count(state, "optimizer_steps")};
}

FolderHashes ReadHashes(const nlohmann::json& folder, JsonFields* fields) {
  FolderHashes hashes;
  for (const auto& [name, file] : folder.items()) {
    const nlohmann::json& hashed = fields->Object(folder, name);
    hashes[name] = {.bytes = static_cast<uint64_t>(fields->Count(hashed, "bytes")),
                    .hash = fields->Hash(hashed, "hash")};
  }
  return hashes;
}

nlohmann::ordered_json MetricsJson(const Metrics& metrics) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics.values()) {
    json[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  }
  return json;
}

Metrics ReadMetrics(const nlohmann::json& record, JsonFields* fields) {
  Metrics metrics;
  if (!record.contains("metrics")) return metrics;
  for (const auto& [name, value] : fields->Object(record, "metrics").items()) {
    if (!value.is_number() && !value.is_null()) {
      fields->Fail(absl::StrCat("metrics.", Quoted(name)), &value, "a number or null");
      break;
    }
    metrics.Set(name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return metrics;
}

}  // namespace

absl::Status WriteCheckpointRecord(const std::string& folder, const CheckpointRecord& record) {
  nlohmann::ordered_json json;
  json["step"] = record.step;
  json["kl_coefficient"] = record.kl_coefficient;
  json["seed"] = record.seed;
  json["rollout_batch_size"] = record.rollout_batch_size;
  json["prompts_hash"] = HashText(record.prompts_hash);
  if (record.prompts_drawn.has_value()) json["prompts_drawn"] = *record.prompts_drawn;
  if (record.policy.has_value()) json["policy_state"] = StateJson(*record.policy);
  if (record.critic.has_value()) json["critic_state"] = StateJson(*record.critic);
  json["metrics"] = MetricsJson(record.metrics);
  json["has_evaluation"] = record.has_evaluation;
  for (const auto& [model, files] : record.models) {
    nlohmann::ordered_json& hashes = json["models"][model] = nlohmann::ordered_json::object();
    for (const auto& [name, file] : files) hashes[name] = {{"bytes", file.bytes}, {"hash", HashText(file.hash)}};
  }
  const std::string text = json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
  return AtomicWriteFile(absl::StrCat(folder, "/", kCheckpointRecordName), WithOwnHash(text + "\n"));
}

absl::StatusOr<CheckpointRecord> ReadCheckpointRecord(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kCheckpointRecordName);
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxRecordBytes));
  CheckpointRecord record;
  record.has_own_hash = BeginsWithHash(text);
  if (record.has_own_hash) QUARTET_RETURN_IF_ERROR(CheckOwnHash(text, path));
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  if (!json.is_object()) return absl::InvalidArgumentError(path + ": is not the record of a checkpoint");
  JsonFields fields(path);
  for (const auto& [name, value] : json.items()) {
    const bool known = std::find(std::begin(kFirstFields), std::end(kFirstFields), name) != std::end(kFirstFields);
    if (!record.has_own_hash && !known) fields.Fail(Quoted(name), &value, "absent, or behind the file's own hash");
  }
  record.step = fields.Count(json, "step", 1);
  record.kl_coefficient = fields.Number(json, "kl_coefficient", 0);
  const nlohmann::json* seed = fields.Get(json, "seed", "a whole number of at least 0");
  if (seed != nullptr && !seed->is_number_unsigned()) fields.Fail("seed", seed, "a whole number of at least 0");
  record.rollout_batch_size = fields.Count(json, "rollout_batch_size", 1);
  record.prompts_hash = fields.Hash(json, "prompts_hash");
  // A step takes one prompt at least.
  if (json.contains("prompts_drawn")) record.prompts_drawn = fields.Count(json, "prompts_drawn", record.step);
  record.policy = ReadState(json, "policy_state", &fields);
  record.critic = ReadState(json, "critic_state", &fields);
  record.metrics = ReadMetrics(json, &fields);
  if (const auto found = json.find("has_evaluation"); found != json.end()) {
    if (!found->is_boolean()) fields.Fail("has_evaluation", &*found, "true or false");
    record.has_evaluation = *found == true;
  }
  if (json.contains("models")) {
    const nlohmann::json& models = fields.Object(json, "models");
    for (const auto& [model, files] : models.items()) {
      record.models[model] = ReadHashes(fields.Object(models, model), &fields);
    }
  }
  QUARTET_RETURN_IF_ERROR(fields.status());
  record.seed = seed->get<uint64_t>();
  return record;
}

absl::StatusOr<std::map<std::string, FolderHashes>> HashModels(const std::string& folder) {
  // A file is hashed by one thread, and a model's weights may be one file: models are hashed side by side.
  std::map<std::string, std::future<absl::StatusOr<FolderHashes>>> hashing;
  for (const char* name : {"policy", "policy_ema", "critic", "critic_ema"}) {
    const std::string model = absl::StrCat(folder, "/", name);
    std::error_code error;
    if (!std::filesystem::is_directory(model, error)) continue;
    hashing[name] = std::async(std::launch::async, [model] { return HashFolder(model); });
  }
  std::map<std::string, FolderHashes> models;
  for (auto& [name, hashes] : hashing) {
    QUARTET_ASSIGN_OR_RETURN(models[name], hashes.get());
  }
  return models;
}

absl::Status VerifySavedModel(const std::string& model, const std::function<absl::Status()>& proceed) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(model, error);  // links lead there, too
  if (error) return absl::OkStatus();
  if (!std::filesystem::exists(folder.parent_path() / kCheckpointRecordName, error)) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const CheckpointRecord record, ReadCheckpointRecord(folder.parent_path().string()));
  const auto hashes = record.models.find(folder.filename().string());
  return hashes == record.models.end() ? absl::OkStatus() : VerifyFolder(folder.string(), hashes->second, proceed);
}

}  // namespace quartet
