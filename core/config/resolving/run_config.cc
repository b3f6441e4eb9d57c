#include "core/config/run_config.h"

#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/needs.h"
#include "core/config/placement.h"
#include "core/config/resolving/defaults.h"
#include "core/config/resolving/layers.h"
#include "core/config/services.h"
#include "core/config/text/names_elsewhere.h"

namespace quartet {
namespace {

absl::Status CheckAll(Program program, const RunConfig& c) {
  QUARTET_RETURN_IF_ERROR(CheckRules("", c));
  QUARTET_RETURN_IF_ERROR(CheckData(c));
  QUARTET_RETURN_IF_ERROR(CheckRollout(c.rollout()));
  QUARTET_RETURN_IF_ERROR(CheckAlgorithm(c));
  QUARTET_RETURN_IF_ERROR(CheckTrainers(c));
  QUARTET_RETURN_IF_ERROR(CheckReference(c));
  QUARTET_RETURN_IF_ERROR(CheckReward(c));
  QUARTET_RETURN_IF_ERROR(CheckAgent(c));
  QUARTET_RETURN_IF_ERROR(CheckTrain(c));
  // Others do not cut what a rollout generates.
  if (program == Program::kPpo) QUARTET_RETURN_IF_ERROR(CheckTrainBatches(c));
  QUARTET_RETURN_IF_ERROR(CheckEval(c));
  QUARTET_RETURN_IF_ERROR(CheckServices(c));
  QUARTET_RETURN_IF_ERROR(CheckPlacements(c));
  QUARTET_RETURN_IF_ERROR(CheckDevices(c));
  return CheckTls(c.tls());
}

void ResolvePath(const std::string& base_folder, std::string* path) {
  if (path->empty()) return;
  const bool lies_in_base = path->front() != '/' && !base_folder.empty();
  *path = ResolveUserPath(lies_in_base ? absl::StrCat(base_folder, "/", *path) : *path);
}

// Makes every path of `c` absolute; a relative one lies in `base_folder` ("" = the folder the user is in).
void ResolvePaths(const std::string& base_folder, RunConfig* c) {
  ResolvePath(base_folder, c->mutable_run_dir());
  for (std::string* path :
       {c->mutable_data()->mutable_tokenizer_chat_template(), c->mutable_rollout()->mutable_pretrain(),
        c->mutable_actor()->mutable_pretrain(), c->mutable_critic()->mutable_pretrain(),
        c->mutable_actor()->mutable_load_checkpoint(), c->mutable_critic()->mutable_load_checkpoint()}) {
    ResolvePath(base_folder, path);
  }
  std::vector<google::protobuf::RepeatedPtrField<std::string>*> lists = {c->mutable_data()->mutable_prompt_data(),
                                                                         c->mutable_eval()->mutable_data()};
  if (c->has_sft()) lists.push_back(c->mutable_sft()->mutable_data());
  if (c->has_preference()) {
    lists.push_back(c->mutable_preference()->mutable_data());
    lists.push_back(c->mutable_preference()->mutable_eval_data());
  }
  for (auto* paths : lists) {
    for (std::string& path : *paths) ResolvePath(base_folder, &path);
  }
  for (EvalSet& set : *c->mutable_eval()->mutable_set()) ResolvePath(base_folder, set.mutable_data());
  if (c->has_reference()) ResolvePath(base_folder, c->mutable_reference()->mutable_pretrain());
  for (RewardSource& s : *c->mutable_reward()->mutable_source()) {
    ResolvePath(base_folder, s.mutable_model());
    ResolvePath(base_folder, s.mutable_api_key_file());
    // A command runs where its own relative paths start, too.
    if (!s.command().empty() && s.command_folder().empty()) s.set_command_folder(".");
    ResolvePath(base_folder, s.mutable_command_folder());
  }
  if (HasAgent(*c)) {
    if (c->agent().command_folder().empty()) c->mutable_agent()->set_command_folder(".");
    ResolvePath(base_folder, c->mutable_agent()->mutable_command_folder());
  }
  if (AdvantageCommandConfig* a = c->mutable_algorithm()->mutable_advantage_command(); !a->command().empty()) {
    if (a->command_folder().empty()) a->set_command_folder(".");
    ResolvePath(base_folder, a->mutable_command_folder());
  } else if (a->ByteSizeLong() == 0) {
    c->mutable_algorithm()->clear_advantage_command();
  }
  if (c->rollout().has_http()) {
    HttpConfig* http = c->mutable_rollout()->mutable_http();
    for (std::string* path : {http->mutable_api_key_file(), http->mutable_cert_file(), http->mutable_key_file()}) {
      ResolvePath(base_folder, path);
    }
  }
  if (c->has_monitor()) {
    MonitorConfig* m = c->mutable_monitor();
    for (std::string* path : {m->mutable_api_key_file(), m->mutable_cert_file(), m->mutable_key_file()}) {
      ResolvePath(base_folder, path);
    }
  }
  if (c->has_tls()) {
    for (std::string* path : {c->mutable_tls()->mutable_ca_file(), c->mutable_tls()->mutable_cert_file(),
                              c->mutable_tls()->mutable_key_file()}) {
      ResolvePath(base_folder, path);
    }
  }
}

}  // namespace

absl::StatusOr<RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides,
                                        const std::string& base_folder, Program program) {
  ConfigLayers layers = {.overrides = overrides};
  if (!path.empty()) {
    QUARTET_ASSIGN_OR_RETURN(layers.file, ReadRecordedConfig(path));
  }
  return LoadRunConfig(layers, base_folder, program);
}

absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder, Program program) {
  ClearUnread(program, config);
  const RunConfig written = *config;
  return ResolveRunConfig(config, base_folder, program, written);
}

absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder, Program program,
                              const RunConfig& written) {
  ClearUnread(program, config);
  QUARTET_RETURN_IF_ERROR(CheckClipOverlap(config->algorithm()));
  if (config->train().load_checkpoint() && config->run_dir().empty()) {
    return Missing("run_dir", "train.load_checkpoint continues the run that is in it");
  }
  QUARTET_RETURN_IF_ERROR(CheckIdle(FillDefaults(program, config), written, *config));
  if (const absl::Status checked = CheckAll(program, *config); !checked.ok()) {
    const std::string message(checked.message());
    return absl::Status(checked.code(), absl::StrCat(message, MeantValue(message)));
  }
  ResolvePaths(base_folder, config);
  return absl::OkStatus();
}

std::string PrintRunConfig(const RunConfig& config) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(config, &text);
  return text;
}

}  // namespace quartet
