#include "core/terminal/continue_command.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/environment.h"

namespace quartet {
std::string ShellWord(const std::string& word) {
  constexpr char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string RunCommand(const std::string& label, const std::string& program) {
  const std::string workspace = Environment("BUILD_WORKSPACE_DIRECTORY");
  if (workspace.empty()) return ShellWord(program);
  const bool inside = Environment("BUILD_WORKING_DIRECTORY") == workspace;
  return absl::StrCat(ShellWord(absl::StrCat(inside ? "." : workspace, "/bazelw")), " run ", label, " --");
}

std::string ContinueCommand(int argc, const char* const* argv, const std::string& label, const std::string& run_dir) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const std::pair<std::string, std::string> fields[] = {{"run_dir=", run_dir}, {"train.load_checkpoint=", "true"}};
  for (const auto& [field, value] : fields) {
    bool is_there = false;
    for (size_t i = 0; i < words.size();) {
      const bool apart = i > 0 && words[i - 1] == "--set" && absl::StartsWith(words[i], field);
      const bool here = apart || absl::StartsWith(words[i], "--set=" + field);
      const bool same = here && absl::EndsWith(words[i], field + value);
      is_there |= same;
      // A folder by another name, or what a run that went on is not to do.
      if (here && !same) {
        i -= apart;
        words.erase(words.begin() + i, words.begin() + i + 1 + apart);
      } else {
        ++i;
      }
    }
    if (!is_there) words.push_back(absl::StrCat("--set=", field, value));
  }
  return absl::StrCat(
      RunCommand(label, argv[0]), " ",
      absl::StrJoin(words, " ", [](std::string* out, const std::string& word) { out->append(ShellWord(word)); }));
}

}  // namespace quartet
