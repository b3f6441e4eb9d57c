#include "core/run_folder/checkpoint_record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/hashed_text.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/data/json.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

constexpr int64_t kMaxRecordBytes = 1 << 20;
// All that release 0.1.0 wrote, without a hash.
constexpr std::string_view kFirstFields[] = {"step",         "kl_coefficient", "seed",         "rollout_batch_size",
                                             "prompts_hash", "prompts_drawn",  "policy_state", "critic_state",
                                             "metrics",      "has_evaluation"};
constexpr uint64_t kMostCount = uint64_t{1} << 53;  // as far as all that reads JSON counts

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }

nlohmann::ordered_json StateJson(const SavedTrainer& state) {
  return {{"manifest_hash", Hex(state.manifest_hash)}, {"optimizer_steps", state.optimizer_steps}};
}

// Reads the fields of a record; the first that is wrong is kept.
class Fields {
 public:
  explicit Fields(std::string path) : path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }

  void Fail(const std::string& field, const nlohmann::json* value, const std::string& allowed) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", field, value == nullptr ? " is missing" : absl::StrCat(" is ", Quoted(Dump(*value))),
                     "; it must be ", allowed));
  }

  // Null where there is none, which is wrong.
  const nlohmann::json* Get(const nlohmann::json& object, const std::string& field, const std::string& allowed) {
    const auto found = object.find(field);
    if (found != object.end()) return &*found;
    Fail(field, nullptr, allowed);
    return nullptr;
  }

  int64_t Count(const nlohmann::json& object, const std::string& field, int64_t least) {
    const std::string allowed = absl::StrCat("a whole number of ", least, " to ", kMostCount);
    const nlohmann::json* value = Get(object, field, allowed);
    if (value == nullptr) return least;
    if (value->is_number_unsigned() && value->get<uint64_t>() >= static_cast<uint64_t>(least) &&
        value->get<uint64_t>() <= kMostCount) {
      return value->get<int64_t>();
    }
    Fail(field, value, allowed);
    return least;
  }

  double Coefficient(const nlohmann::json& object, const std::string& field) {
    const nlohmann::json* value = Get(object, field, "a number of at least 0");
    if (value != nullptr && value->is_number() && value->get<double>() >= 0) return value->get<double>();
    if (value != nullptr) Fail(field, value, "a number of at least 0");
    return 0;
  }

  uint64_t Hash(const nlohmann::json& object, const std::string& field) {
    const std::string allowed = "a hash in hexadecimal digits";
    const nlohmann::json* value = Get(object, field, allowed);
    uint64_t hash = 0;
    if (value != nullptr &&
        (!value->is_string() || !absl::SimpleHexAtoi(value->get_ref<const std::string&>(), &hash))) {
      Fail(field, value, allowed);
    }
    return hash;
  }

  std::optional<SavedTrainer> State(const nlohmann::json& object, const std::string& field) {
    const auto found = object.find(field);
    if (found == object.end()) return std::nullopt;
    if (!found->is_object()) Fail(field, &*found, "an object");
    if (!status_.ok()) return std::nullopt;
    return SavedTrainer{.manifest_hash = Hash(*found, "manifest_hash"),
                        .optimizer_steps = Count(*found, "optimizer_steps", 0)};
  }

  FolderHashes Folder(const nlohmann::json& object, const std::string& field) {
    FolderHashes hashes;
    for (const auto& [name, file] : object.items()) {
      if (!file.is_object()) Fail(absl::StrCat(field, ".", Quoted(name)), &file, "an object");
      if (!status_.ok()) break;
      hashes[name] = {.bytes = static_cast<uint64_t>(Count(file, "bytes", 0)), .hash = Hash(file, "hash")};
    }
    return hashes;
  }

 private:
  static std::string Dump(const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  const std::string path_;
  absl::Status status_;
};

nlohmann::ordered_json MetricsJson(const Metrics& metrics) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics.values()) {
    json[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  }
  return json;
}

Metrics ReadMetrics(const nlohmann::json& object, Fields* fields) {
  Metrics metrics;
  const auto found = object.find("metrics");
  if (found == object.end()) return metrics;
  if (!found->is_object()) fields->Fail("metrics", &*found, "an object");
  for (const auto& [name, value] : found->items()) {
    if (!value.is_number() && !value.is_null()) {
      fields->Fail(absl::StrCat("metrics.", Quoted(name)), &value, "a number or null");
    }
    if (!fields->status().ok()) break;
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
  json["prompts_hash"] = Hex(record.prompts_hash);
  if (record.prompts_drawn.has_value()) json["prompts_drawn"] = *record.prompts_drawn;
  if (record.policy.has_value()) json["policy_state"] = StateJson(*record.policy);
  if (record.critic.has_value()) json["critic_state"] = StateJson(*record.critic);
  json["metrics"] = MetricsJson(record.metrics);
  json["has_evaluation"] = record.has_evaluation;
  for (const auto& [model, files] : record.models) {
    nlohmann::ordered_json& hashes = json["models"][model] = nlohmann::ordered_json::object();
    for (const auto& [name, file] : files) hashes[name] = {{"bytes", file.bytes}, {"hash", Hex(file.hash)}};
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
  Fields fields(path);
  for (const auto& [name, value] : json.items()) {
    const bool known = std::find(std::begin(kFirstFields), std::end(kFirstFields), name) != std::end(kFirstFields);
    if (!record.has_own_hash && !known) fields.Fail(Quoted(name), &value, "absent, or behind the file's own hash");
  }
  record.step = fields.Count(json, "step", 1);
  record.kl_coefficient = fields.Coefficient(json, "kl_coefficient");
  const nlohmann::json* seed = fields.Get(json, "seed", "a whole number of at least 0");
  if (seed != nullptr && !seed->is_number_unsigned()) fields.Fail("seed", seed, "a whole number of at least 0");
  record.rollout_batch_size = fields.Count(json, "rollout_batch_size", 1);
  record.prompts_hash = fields.Hash(json, "prompts_hash");
  // A step takes one prompt at least.
  if (json.contains("prompts_drawn")) record.prompts_drawn = fields.Count(json, "prompts_drawn", record.step);
  record.policy = fields.State(json, "policy_state");
  record.critic = fields.State(json, "critic_state");
  record.metrics = ReadMetrics(json, &fields);
  if (const auto found = json.find("has_evaluation"); found != json.end()) {
    if (!found->is_boolean()) fields.Fail("has_evaluation", &*found, "true or false");
    record.has_evaluation = *found == true;
  }
  if (const auto found = json.find("models"); found != json.end()) {
    if (!found->is_object()) fields.Fail("models", &*found, "an object");
    for (const auto& [model, files] : found->items()) {
      if (!files.is_object()) fields.Fail("models." + Quoted(model), &files, "an object");
      if (!fields.status().ok()) break;
      record.models[model] = fields.Folder(files, "models." + Quoted(model));
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
