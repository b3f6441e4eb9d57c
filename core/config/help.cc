#include "core/config/help.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr char kConfigText[] =
#include "core/config/run_config_text.inc"
    ;

// Of each field that is read somewhere, by "Message.field": what it is where it is not set, as "path value".
using ReadFields = std::map<std::string, std::vector<std::string>>;

void AddRead(Program program, const Descriptor& type, const std::string& prefix, ReadFields* fields) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string path = absl::StrCat(prefix, field.name());
    if (!IsRead(program, path)) continue;
    std::vector<std::string>& defaults = (*fields)[absl::StrCat(type.name(), ".", field.name())];
    if (const std::string value = DefaultOf(program, path); !value.empty()) {
      defaults.push_back(absl::StrCat(path, " ", value));
    }
    if (field.message_type() != nullptr) AddRead(program, *field.message_type(), path + ".", fields);
  }
}

// A message, or a oneof in it, that is being gone through.
struct Scope {
  std::string name;    // of a message
  std::string before;  // its comments and first line, until a field of it is written
};

absl::string_view WithoutComment(absl::string_view line) { return line.substr(0, line.find("//")); }

// The name of the field that this statement declares: the word before the first "=".
std::string FieldIn(const std::string& statement) {
  const std::vector<std::string> words =
      absl::StrSplit(statement.substr(0, statement.find('=')), ' ', absl::SkipEmpty());
  return words.empty() ? "" : words.back();
}

}  // namespace

std::string DescribeRunConfig(Program program) {
  ReadFields read;
  AddRead(program, *RunConfig::descriptor(), "", &read);
  std::string out, comments, statement;
  std::vector<Scope> scopes;
  const auto write = [&](const std::string& text) {
    for (Scope& scope : scopes) absl::StrAppend(&out, std::exchange(scope.before, ""));
    absl::StrAppend(&out, text);
  };
  const std::vector<std::string> lines = absl::StrSplit(kConfigText, '\n');
  for (const std::string& line : lines) {
    const absl::string_view code = absl::StripAsciiWhitespace(WithoutComment(line));
    if (code.empty() && statement.empty()) {
      absl::StrAppend(&comments, line, "\n");
    } else if (absl::EndsWith(code, "{") && !absl::StrContains(code, "=")) {
      const bool is_message = absl::StartsWith(code, "message ");
      scopes.push_back({is_message ? std::string(code.substr(8, code.size() - 10)) : scopes.back().name,
                        absl::StrCat(std::exchange(comments, ""), line, "\n")});
    } else if (code == "}") {
      if (scopes.back().before.empty()) write(line + "\n");
      scopes.pop_back();
      comments.clear();
    } else {
      absl::StrAppend(&statement, line, "\n");
      if (!absl::EndsWith(code, ";")) continue;
      const auto found = read.find(absl::StrCat(scopes.back().name, ".", FieldIn(statement)));
      if (found != read.end()) {
        if (!found->second.empty()) {
          absl::StrAppend(&comments, "  // Where it is not set: ", absl::StrJoin(found->second, ", "), ".\n");
        }
        write(absl::StrCat(comments, statement));
      }
      comments.clear();
      statement.clear();
    }
  }
  return out;
}

}  // namespace quartet
