#include "core/command_line/command_line.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/files/files.h"
#include "core/errors/exceptions.h"
#include "core/errors/shown.h"
#include "core/version/version.h"

namespace quartet {
namespace {

std::string Names(const std::vector<Flag>& flags) {
  std::string names;
  for (const Flag& flag : flags) absl::StrAppend(&names, "--", flag.name, ", ");
  return names + "--help, --version";
}

// To standard error, of what a message quotes no more than a person reads.
void Say(const std::string& program, const absl::Status& status) {
  constexpr size_t kMostBytes = size_t{16} << 10;
  const std::string message(status.message());
  const bool whole = message.size() <= kMostBytes;
  std::fprintf(stderr, "%s: %s%s\n", program.c_str(), Shown(message.substr(0, kMostBytes)).c_str(),
               whole ? "" : absl::StrCat(" ... (", message.size(), " bytes)").c_str());
}

}  // namespace

FlagTarget Switch(bool* to) {
  return {.store = [to](const std::string&) { return *to = true; }};
}

FlagTarget Text(std::string* to) {
  return {.store = [to](const std::string& text) {
    *to = text;
    return true;
  }};
}

FlagTarget UserPath(std::string* to) {
  return {.store = [to](const std::string& text) {
    *to = ResolveUserPath(text);
    return true;
  }};
}

FlagTarget Texts(std::vector<std::string>* to) {
  return {.store =
              [to](const std::string& text) {
                to->push_back(text);
                return true;
              },
          .repeated = true};
}

absl::StatusOr<Asked> ParseFlags(int argc, const char* const* argv, const std::vector<Flag>& flags) {
  Asked asked = Asked::kNothing;
  std::vector<bool> given(flags.size());
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h" || argument == "--help=true") {
      asked = Asked::kHelp;
      continue;
    }
    if (argument == "--version") {
      if (asked == Asked::kNothing) asked = Asked::kVersion;
      continue;
    }
    if (argument.substr(0, 2) != "--") {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(argument), " is not a flag; there are ", Names(flags)));
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == flags.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", Shown(name.substr(0, kMostQuotedBytes)),
                                                     "; there are ", Names(flags), " (--help explains them)"));
    }
    const size_t index = flag - flags.begin();
    if (given[index] && !flag->to.repeated) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is given twice"));
    }
    given[index] = true;
    std::string value;
    if (flag->value.empty()) {
      if (equals != std::string::npos) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
    } else {
      if (equals != std::string::npos) {
        value = argument.substr(equals + 1);
      } else if (i + 1 < argc) {
        value = argv[++i];
      }
      if (value.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: --", name, "=", flag->value));
      }
    }
    if (!flag->to.store(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is ", Quoted(value), "; allowed: ", flag->to.allowed));
    }
  }
  return asked;
}

std::string HelpText(const CommandLine& line) {
  std::string text = line.before;
  const auto add = [&](const std::string& left, const std::string& help) {
    const size_t column = line.column;
    absl::StrAppend(&text, left, std::string(left.size() < column ? column - left.size() : 1, ' '),
                    absl::StrReplaceAll(help, {{"\n", "\n" + std::string(column, ' ')}}), "\n");
  };
  for (const Flag& flag : line.flags) {
    add(absl::StrCat("  --", flag.name, flag.value.empty() ? "" : "=", flag.value), flag.help);
  }
  add("  --help", "This text.");
  add("  --version", "Commit, build and wire protocol.");
  return text + line.after;
}

std::optional<int> ReadCommandLine(int argc, const char* const* argv, const CommandLine& line) {
  EndOnExceptions(line.program);
  std::signal(SIGXFSZ, SIG_IGN);
  const absl::StatusOr<Asked> asked = ParseFlags(argc, argv, line.flags);
  if (asked.ok() && *asked != Asked::kNothing) {
    std::printf("%s", *asked == Asked::kHelp ? HelpText(line).c_str() : absl::StrCat(VersionText(), "\n").c_str());
    return 0;
  }
  const absl::Status status = asked.ok() && line.check ? line.check() : asked.status();
  if (status.ok()) return std::nullopt;
  Say(line.program, status);
  return 2;
}

int Finish(const std::string& program, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fflush(stdout);
  Say(program, status);
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return 130;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
      return 2;
    default:
      return 1;
  }
}

}  // namespace quartet
