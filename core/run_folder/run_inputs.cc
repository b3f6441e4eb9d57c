#include "core/run_folder/run_inputs.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files/files.h"
#include "core/base/hash.h"
#include "core/base/hash_text.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/hashed_text.h"
#include "core/data/json.h"
#include "core/data/json_fields.h"
#include "core/model/lora.h"
#include "core/safetensors/reader.h"
#include "core/safetensors/sample_hash.h"

namespace quartet {
namespace {

constexpr const char* kCompanions[] = {"config.json",           "adapter_config.json", "tokenizer.json",
                                       "tokenizer_config.json", "chat_template.jinja", "generation_config.json"};

// Nothing where they cannot be read.
std::optional<uint64_t> HashWeights(const std::string& folder) {
  const auto reader = IsAdapterFolder(folder)
                          ? CheckpointReader::OpenFile(absl::StrCat(folder, "/", std::string(kAdapterWeightsFile)))
                          : CheckpointReader::Open(folder);
  if (!reader.ok()) return std::nullopt;
  const absl::StatusOr<uint64_t> hash = HashSamples(**reader);
  return hash.ok() ? std::optional(*hash) : std::nullopt;
}

std::map<std::string, uint64_t> HashModel(const std::string& folder) {
  std::map<std::string, uint64_t> hashes;
  if (const auto weights = HashWeights(folder)) hashes["weights"] = *weights;
  if (IsAdapterFolder(folder)) {
    const absl::StatusOr<ModelConfig> model = ReadAdaptedConfig(folder);
    if (model.ok() && model->lora->base_hash) hashes["base weights or config.json"] = *model->lora->base_hash;
  }
  for (const char* name : kCompanions) {
    if (const auto text = ReadFile(absl::StrCat(folder, "/", name)); text.ok()) hashes[name] = HashBytes(*text);
  }
  return hashes;
}

InputRows ReadRows(const nlohmann::json& json, JsonFields* fields) {
  constexpr size_t kDigits = 16;
  InputRows rows = {.count = fields->Count(json, "count"), .in_use = fields->Count(json, "in_use"), .blocks = {}};
  const std::string blocks = fields->Text(json, "blocks");
  for (size_t i = 0; i < blocks.size(); i += kDigits) {
    rows.blocks.push_back(fields->AsHash(blocks.substr(i, kDigits), "blocks"));
  }
  return rows;
}

// Where rows of the file were mended and all else is as it was.
std::optional<ChangedInput> Mended(const RunInput& before, const RunInput& now) {
  constexpr size_t kOneIn = 64;
  if (!before.rows.has_value() || !now.rows.has_value() || before.rows->count != now.rows->count ||
      before.rows->in_use != now.rows->in_use || before.rows->blocks.size() != now.rows->blocks.size()) {
    return std::nullopt;
  }
  const std::vector<uint64_t>&was = before.rows->blocks, &is = now.rows->blocks;
  size_t others = 0, first = 0;
  for (size_t i = is.size(); i-- > 0;) {
    if (was[i] == is[i]) continue;
    ++others;
    first = i;
  }
  const size_t most = std::max<size_t>(1, is.size() / kOneIn);
  if (others == 0 || others > most || others == is.size()) return std::nullopt;  // of one row alone it is other data
  const int64_t of_a_block = RowBlocks::RowsOfABlock(now.rows->count);
  const int64_t begin = static_cast<int64_t>(first) * of_a_block + 1, end = begin + of_a_block - 1;
  return ChangedInput{.option = now.option,
                      .path = now.path,
                      .change = absl::StrCat(
                          now.path, " has rows that were changed since the run began, the first ",
                          of_a_block == 1 ? absl::StrCat("row ", begin)
                                          : absl::StrCat("among rows ", begin, " to ", std::min(end, now.rows->count)),
                          "; the others are the same"),
                      .is_mended = true};
}

// Without their hashes.
std::vector<RunInput> ModelsNamed(const RunConfig& config) {
  std::vector<RunInput> inputs = {
      {.option = "actor.pretrain", .path = config.actor().pretrain(), .hashes = {}},
      {.option = "critic.pretrain", .path = config.critic().pretrain(), .hashes = {}},
      {.option = "reference.pretrain", .path = config.reference().pretrain(), .hashes = {}}};
  for (int i = 0; i < config.reward().source_size(); ++i) {
    inputs.push_back({absl::StrCat("reward.source[", i, "].model"), config.reward().source(i).model(), {}});
  }
  std::erase_if(inputs, [](const RunInput& input) { return input.path.empty(); });
  return inputs;
}

// Likewise the files of rows, of each program's.
std::vector<RunInput> RowsNamed(const RunConfig& config) {
  std::vector<RunInput> inputs;
  for (const auto& [option, paths] :
       {std::pair("data.prompt_data", &config.data().prompt_data()), std::pair("sft.data", &config.sft().data()),
        std::pair("preference.data", &config.preference().data())}) {
    for (const std::string& path : *paths) inputs.push_back({.option = option, .path = path, .hashes = {}});
  }
  return inputs;
}

// Null where there is none.
const RunInput* SameInput(const std::vector<RunInput>& inputs, const RunInput& as) {
  const auto found =
      std::ranges::find_if(inputs, [&](const RunInput& one) { return one.option == as.option && one.path == as.path; });
  return found == inputs.end() ? nullptr : &*found;
}

// "other weights", "a chat_template.jinja more"; empty where nothing was known of it, or is.
std::vector<std::string> OtherParts(const std::map<std::string, uint64_t>& was,
                                    const std::map<std::string, uint64_t>& is) {
  std::vector<std::string> others;
  if (was.empty() || is.empty()) return others;
  for (const auto& [part, hash] : is) {
    const auto before = was.find(part);
    if (before == was.end()) {
      others.push_back(absl::StrCat("a ", part, " more"));
    } else if (before->second != hash) {
      others.push_back("other " + part);
    }
  }
  for (const auto& [part, hash] : was) {
    if (!is.contains(part)) others.push_back(absl::StrCat("a ", part, " less"));
  }
  return others;
}

}  // namespace

std::vector<RunInput> ModelInputs(const RunConfig& config) {
  std::vector<RunInput> inputs = ModelsNamed(config);
  std::map<std::string, std::map<std::string, uint64_t>> known;
  for (RunInput& input : inputs) {
    const auto [at, is_new] = known.try_emplace(input.path);
    if (is_new) at->second = HashModel(input.path);
    input.hashes = at->second;
  }
  const std::string& chat_template = config.data().tokenizer_chat_template();
  if (const auto text = ReadFile(chat_template); text.ok()) {
    inputs.push_back({"data.tokenizer_chat_template", chat_template, {{"text", HashBytes(*text)}}});
  }
  return inputs;
}

std::vector<RunInput> RowInputs(const Dataset& rows) {
  std::vector<RunInput> inputs;
  for (const Dataset::FileState& state : rows.files()) {
    inputs.push_back(
        {.option = state.file.option,
         .path = state.file.path,
         .hashes = {{"rows", state.hash}},
         .rows = InputRows{.count = state.blocks.rows(), .in_use = state.in_use, .blocks = state.blocks.hashes()}});
  }
  return inputs;
}

std::string PrintRunInputs(const std::vector<RunInput>& inputs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RunInput& input : inputs) {
    nlohmann::ordered_json hashes = nlohmann::ordered_json::object();
    for (const auto& [part, hash] : input.hashes) hashes[part] = HashText(hash);
    list.push_back({{"option", input.option}, {"path", input.path}, {"hashes", std::move(hashes)}});
    if (!input.rows.has_value()) continue;
    std::string blocks;
    for (const uint64_t hash : input.rows->blocks) blocks += HashText(hash);
    list.back()["rows"] = {{"count", input.rows->count}, {"in_use", input.rows->in_use}, {"blocks", blocks}};
  }
  const nlohmann::ordered_json json = {{"inputs", std::move(list)}};
  return WithOwnHash(json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) +
                     "\n");
}

absl::StatusOr<std::vector<RunInput>> ParseRunInputs(std::string_view text, std::string_view source) {
  const bool has_hash = BeginsWithHash(text);
  if (has_hash) QUARTET_RETURN_IF_ERROR(CheckOwnHash(text, source));
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, source));
  const nlohmann::json list = has_hash ? json.value("inputs", nlohmann::json()) : json;
  if (!list.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(source), ": is no list of what a run has read"));
  }
  JsonFields fields{std::string(source)};
  std::vector<RunInput> inputs;
  for (const nlohmann::json& one : list) {
    RunInput& input = inputs.emplace_back();
    input.option = fields.Text(one, "option");
    input.path = fields.Text(one, "path");
    for (const auto& [part, hash] : fields.Object(one, "hashes").items()) {
      input.hashes[part] = fields.AsHash(hash, "hashes." + part);
    }
    if (one.contains("rows")) input.rows = ReadRows(one["rows"], &fields);
  }
  QUARTET_RETURN_IF_ERROR(fields.status());
  return inputs;
}

absl::Status CheckHasInputs(const std::vector<RunInput>& recorded, const RunConfig& config,
                            const std::vector<RunInput>& now, std::string_view source) {
  std::vector<RunInput> named = ModelsNamed(config);
  for (RunInput& rows : RowsNamed(config)) named.push_back(std::move(rows));
  for (const RunInput& input : named) {
    const RunInput* const is = SameInput(now, input);
    if (is == nullptr) continue;  // what is read now is another
    const RunInput* const was = SameInput(recorded, input);
    if (was != nullptr && (!was->hashes.empty() || is->hashes.empty())) continue;
    return absl::DataLossError(absl::StrCat(std::string(source), ": has ", was == nullptr ? "nothing" : "no hash",
                                            " of ", input.option, ", ", input.path,
                                            ", with which the run began, and no hash of its own"));
  }
  return absl::OkStatus();
}

std::vector<ChangedInput> ChangedInputs(const std::vector<RunInput>& before, const std::vector<RunInput>& now) {
  std::vector<ChangedInput> changed;
  for (const RunInput& input : now) {
    const RunInput* const old = SameInput(before, input);
    if (old == nullptr) continue;
    if (std::optional<ChangedInput> mended = Mended(*old, input)) {
      changed.push_back(*std::move(mended));
      continue;
    }
    const std::vector<std::string> others = OtherParts(old->hashes, input.hashes);
    if (!others.empty()) {
      changed.push_back({input.option, input.path,
                         absl::StrCat(input.path, " has ", absl::StrJoin(others, ", "), " than when the run began")});
    } else if (old->rows.has_value() && input.rows.has_value() && old->rows->in_use != input.rows->in_use) {
      changed.push_back({input.option, input.path,
                         absl::StrCat("the run uses ", input.rows->in_use, " of the ", input.rows->count, " rows of ",
                                      input.path, ", not ", old->rows->in_use,
                                      " as when it began (data.checked_rows and data.skip_malformed decide it, too)")});
    }
  }
  return changed;
}

}  // namespace quartet
