#include "core/terminal/continue_command.h"

#include <algorithm>
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
  for (const std::string& field : {"run_dir=" + run_dir, std::string("train.load_checkpoint=true")}) {
    const bool is_there = std::any_of(words.begin(), words.end(), [&field](const std::string& word) {
      return word == field || word == "--set=" + field;
    });
    if (!is_there) words.push_back("--set=" + field);
  }
  return absl::StrCat(
      RunCommand(label, argv[0]), " ",
      absl::StrJoin(words, " ", [](std::string* out, const std::string& word) { out->append(ShellWord(word)); }));
}

}  // namespace quartet
