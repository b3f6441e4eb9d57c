#include "orchestrator/terminal/command_line.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quartet {
namespace {

std::string Names(const std::vector<FlagSpec>& flags) {
  std::string names;
  for (const FlagSpec& flag : flags) absl::StrAppend(&names, "--", flag.name, ", ");
  return names + "--help";
}

}  // namespace

absl::StatusOr<CommandLine> CommandLine::Parse(int argc, const char* const* argv, const std::vector<FlagSpec>& flags) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      line.values_["help"];
      continue;
    }
    if (argument.substr(0, 2) != "--") {
      return absl::InvalidArgumentError(absl::StrCat("\"", argument, "\" is not a flag; there are ", Names(flags)));
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const FlagSpec& f) { return f.name == name; });
    if (flag == flags.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag --", name, "; there are ", Names(flags), " (--help explains them)"));
    }
    std::vector<std::string>& values = line.values_[name];
    if (!values.empty() && !flag->repeated) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is given twice"));
    }
    if (flag->value.empty()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      }
      values.push_back("");
      continue;
    }
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < argc) {
      value = argv[++i];
    }
    if (value.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: --", name, "=", flag->value));
    }
    values.push_back(value);
  }
  return line;
}

std::optional<std::string> CommandLine::Get(const std::string& name) const {
  const auto it = values_.find(name);
  if (it == values_.end() || it->second.empty()) return std::nullopt;
  return it->second.back();
}

std::vector<std::string> CommandLine::GetAll(const std::string& name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::vector<std::string>() : it->second;
}

std::string CommandLine::Describe(const std::vector<FlagSpec>& flags) {
  std::string text;
  for (const FlagSpec& flag : flags) {
    const std::string left = flag.value.empty() ? flag.name : absl::StrCat(flag.name, "=", flag.value);
    absl::StrAppendFormat(&text, "  --%-24s %s\n", left, flag.help);
  }
  absl::StrAppendFormat(&text, "  --%-24s %s\n", "help", "This text.");
  return text;
}

}  // namespace quartet
