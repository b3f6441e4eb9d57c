#include "core/config/text/text_format.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/text/field_names.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;
using ParseInfoTree = google::protobuf::TextFormat::ParseInfoTree;

// Keeps the first error of a parse. Counted from 0.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (found_) return;
    found_ = true;
    line_ = line;
    column_ = column;
    message_ = message;
  }
  bool found() const { return found_; }
  int line() const { return line_; }
  int column() const { return column_; }
  const std::string& message() const { return message_; }

 private:
  bool found_ = false;
  int line_ = 0;
  int column_ = 0;
  std::string message_;
};

struct OpenMessage {
  std::string field;
  int line;  // counted from 1
};

// What lies around a place in a text.
struct Surroundings {
  std::vector<OpenMessage> open;  // from the outermost in
  absl::string_view rest;         // what follows, without white space and comments
};

absl::string_view SkipBlanks(absl::string_view text) {
  while (!text.empty()) {
    if (text[0] == '#') {
      text.remove_prefix(std::min(text.find('\n'), text.size()));
    } else if (std::isspace(static_cast<unsigned char>(text[0])) != 0) {
      text.remove_prefix(1);
    } else {
      break;
    }
  }
  return text;
}

// `line` and `column` as protobuf counts them: from 0, tabs reaching to the next multiple of 8.
Surroundings SurroundingsOf(absl::string_view text, int line, int column) {
  Surroundings around;
  std::string name, last_name;
  char quote = 0;
  bool comment = false;
  int at_line = 0, at_column = 0;
  size_t i = 0;
  for (; i < text.size() && (at_line < line || (at_line == line && at_column < column)); ++i) {
    const char c = text[i];
    if (c == '\n') {
      comment = false;
      quote = 0;  // strings end with their line
    } else if (quote != 0) {
      if (c == quote && text[i - 1] != '\\') quote = 0;
    } else if (c == '#') {
      comment = true;
    } else if (!comment && (c == '"' || c == '\'')) {
      quote = c;
    } else if (!comment && (c == '{' || c == '<')) {
      around.open.push_back({name.empty() ? last_name : name, at_line + 1});
    } else if (!comment && (c == '}' || c == '>') && !around.open.empty()) {
      around.open.pop_back();
    }
    if (quote == 0 && !comment && (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_')) {
      name += c;
    } else if (!name.empty()) {
      last_name = std::move(name);
      name.clear();
    }
    if (c == '\n') {
      ++at_line;
      at_column = 0;
    } else {
      at_column += c == '\t' ? 8 - at_column % 8 : 1;
    }
  }
  around.rest = SkipBlanks(text.substr(std::min(i, text.size())));
  return around;
}

// "YAML", "JSON", or "" where a text that is not in protobuf text format looks like neither.
std::string LooksLike(absl::string_view path, absl::string_view text) {
  if (absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml")) return "YAML";
  if (absl::EndsWith(path, ".json") || absl::StartsWith(SkipBlanks(text), "{")) return "JSON";
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const absl::string_view line = absl::StripAsciiWhitespace(lines[i]);
    if (line == "---" || absl::StartsWith(line, "- ")) return "YAML";
    // "key:", with a key of its own on the next line.
    if (line.size() < 2 || line[0] == '#' || !absl::EndsWith(line, ":")) continue;
    for (size_t next = i + 1; next < lines.size(); ++next) {
      const absl::string_view below = SkipBlanks(lines[next]);
      if (below.empty()) continue;
      if (std::isalpha(static_cast<unsigned char>(below[0])) != 0 && absl::StrContains(below, ':')) return "YAML";
      break;
    }
  }
  return "";
}

// What stands in a message of protobuf between `before`, which ends in a quote, and the next quote.
std::string QuotedIn(absl::string_view message, absl::string_view before) {
  const size_t begin = message.find(before);
  if (begin == absl::string_view::npos) return "";
  message.remove_prefix(begin + before.size());
  return std::string(message.substr(0, message.find('"')));
}

std::string OpenedAt(const OpenMessage& message) {
  return absl::StrCat(message.field, " {, opened at line ", message.line);
}

// Where the first of two stands, counted from 1, of a field that `error` says is given twice inside of `open`; 0: of
// none. `read` and `places` are of the text before the second.
int LineOfFirst(const FirstError& error, const std::vector<OpenMessage>& open, const google::protobuf::Message& read,
                const ParseInfoTree& places, std::string* name) {
  *name = QuotedIn(error.message(), "Non-repeated field \"");
  const google::protobuf::Message* message = &read;
  const ParseInfoTree* inside = &places;
  for (const OpenMessage& outer : open) {
    const auto* field = message->GetDescriptor()->FindFieldByName(outer.field);
    if (name->empty() || field == nullptr || inside == nullptr) return 0;
    const google::protobuf::Reflection* reflection = message->GetReflection();
    const int last = field->is_repeated() ? reflection->FieldSize(*message, field) - 1 : -1;
    if (field->is_repeated() && last < 0) return 0;
    inside = inside->GetTreeForNested(field, last);
    message = field->is_repeated() ? &reflection->GetRepeatedMessage(*message, field, last)
                                   : &reflection->GetMessage(*message, field);
  }
  const auto* field = message->GetDescriptor()->FindFieldByName(*name);
  return field == nullptr || inside == nullptr ? 0 : inside->GetLocation(field, -1).line + 1;
}

// Protobuf's message, or a better one.
std::string Explain(absl::string_view path, absl::string_view text, const FirstError& error,
                    const google::protobuf::Message& read, const ParseInfoTree& places) {
  const Descriptor& root = *read.GetDescriptor();
  if (const std::string other = LooksLike(path, text); !other.empty()) {
    return absl::StrCat("this looks like ", other, "; a configuration is in protobuf text format, not ", other,
                        ", such as: rollout { temperature: 0.8 dtype: \"bf16\" }  (", error.message(), ")");
  }
  const Surroundings around = SurroundingsOf(text, error.line(), error.column());
  if (around.rest.empty() && !around.open.empty()) {
    return absl::StrCat("the file ends inside ", OpenedAt(around.open.back()));
  }
  if (around.rest.substr(0, 1) == "}" && around.open.empty()) return "this } closes nothing";
  std::string twice;
  if (const int line = LineOfFirst(error, around.open, read, places, &twice); line > 0) {
    return absl::StrCat(twice, " is given twice; the first time at line ", line);
  }
  const std::string name = QuotedIn(error.message(), "has no field named \"");
  const Descriptor* message = root.file()->pool()->FindMessageTypeByName(QuotedIn(error.message(), "Message type \""));
  if (name.empty() || message == nullptr) return error.message();
  const std::string where =
      around.open.empty()
          ? root.name()
          : absl::StrJoin(around.open, ".", [](std::string* out, const OpenMessage& m) { out->append(m.field); });
  std::string explained =
      absl::StrCat(where, " has no field named \"", name, "\"",
                   MeantField(around.open.empty() ? name : absl::StrCat(where, ".", name), *message, root));
  if (!around.open.empty() && root.FindFieldByName(name) != nullptr) {
    absl::StrAppend(&explained, "; is a } missing before it? It is inside ", OpenedAt(around.open.back()));
  }
  return explained;
}

}  // namespace

absl::StatusOr<std::string> ReadConfigText(const std::string& path) {
  absl::StatusOr<std::string> read = ReadFile(ResolveUserPath(path));
  if (absl::IsNotFound(read.status())) {
    return absl::NotFoundError(
        absl::StrCat("--config: ", read.status().message(), "; relative paths start at ", ResolveUserPath(".")));
  }
  // Whatever else keeps a configuration from being read, another path is needed.
  if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat("--config: ", read.status().message()));
  return read;
}

absl::Status ParseTextFormat(const std::string& path, const std::string& text, google::protobuf::Message* message) {
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  // Once by itself: a field that is given twice is an error then.
  ParseInfoTree places;
  parser.WriteLocationsTo(&places);
  const std::unique_ptr<google::protobuf::Message> alone(message->New());
  if (parser.ParseFromString(text, alone.get())) {
    parser.WriteLocationsTo(nullptr);
    if (parser.MergeFromString(text, message)) return absl::OkStatus();
  }
  if (!error.found()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a ", message->GetDescriptor()->name(), " in text format"));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ":", error.line() + 1, ":", error.column() + 1, ": ",
                                                 Explain(path, text, error, *alone, places)));
}

absl::Status ReadKnownFields(const std::string& path, google::protobuf::Message* message) {
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadConfigText(path));
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.AllowUnknownField(true);
  if (parser.ParseFromString(text, message)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", error.line() + 1, ":", error.column() + 1, ": ", error.message()));
}

}  // namespace quartet
