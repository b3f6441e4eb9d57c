#include "core/config/paths.h"

#include "absl/strings/str_cat.h"
#include "core/base/files.h"

namespace quartet {
namespace {

void ResolvePath(const std::string& base_folder, std::string* path) {
  if (path->empty() || path->front() == '/') return;
  *path = ResolveUserPath(base_folder.empty() ? *path : absl::StrCat(base_folder, "/", *path));
}

}  // namespace

void ResolvePaths(const std::string& base_folder, RunConfig* c) {
  ResolvePath(base_folder, c->mutable_run_dir());
  for (std::string* path :
       {c->mutable_data()->mutable_tokenizer_chat_template(), c->mutable_rollout()->mutable_pretrain(),
        c->mutable_actor()->mutable_pretrain(), c->mutable_critic()->mutable_pretrain(),
        c->mutable_actor()->mutable_load_checkpoint(), c->mutable_critic()->mutable_load_checkpoint()}) {
    ResolvePath(base_folder, path);
  }
  for (auto* paths : {c->mutable_data()->mutable_prompt_data(), c->mutable_sft()->mutable_data(),
                      c->mutable_preference()->mutable_data(), c->mutable_preference()->mutable_eval_data(),
                      c->mutable_eval()->mutable_data()}) {
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
  if (c->rollout().has_http()) {
    HttpConfig* http = c->mutable_rollout()->mutable_http();
    for (std::string* path : {http->mutable_api_key_file(), http->mutable_cert_file(), http->mutable_key_file()}) {
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

}  // namespace quartet
