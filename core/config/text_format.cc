#include "core/config/text_format.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cctype>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/config/field_names.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;

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

// `line` and `column` as protobuf counts them: from 0, tabs reaching to the next multiple of 8.
std::vector<OpenMessage> OpenAt(absl::string_view text, int line, int column) {
  std::vector<OpenMessage> open;  // from the outermost in
  std::string name, last_name;
  char quote = 0;
  bool comment = false;
  int at_line = 0, at_column = 0;
  for (size_t i = 0; i < text.size() && (at_line < line || (at_line == line && at_column < column)); ++i) {
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
      open.push_back({name.empty() ? last_name : name, at_line + 1});
    } else if (!comment && (c == '}' || c == '>') && !open.empty()) {
      open.pop_back();
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
  return open;
}

std::string Quoted(absl::string_view message, absl::string_view before) {
  const size_t begin = message.find(before);
  if (begin == absl::string_view::npos) return "";
  message.remove_prefix(begin + before.size());
  return std::string(message.substr(0, message.find('"')));
}

std::string OpenedAt(const OpenMessage& message) {
  return absl::StrCat(message.field, " {, opened at line ", message.line);
}

// Protobuf's message, or a better one.
std::string Explain(absl::string_view text, const FirstError& error, const Descriptor& root) {
  const std::vector<OpenMessage> open = OpenAt(text, error.line(), error.column());
  const std::string name = Quoted(error.message(), "has no field named \"");
  const Descriptor* message = root.file()->pool()->FindMessageTypeByName(Quoted(error.message(), "Message type \""));
  if (name.empty() || message == nullptr) return error.message();
  const std::string where =
      open.empty() ? root.name()
                   : absl::StrJoin(open, ".", [](std::string* out, const OpenMessage& m) { out->append(m.field); });
  std::string explained = absl::StrCat(where, " has no field named \"", name, "\"", MeantField(name, *message, root));
  if (!open.empty() && root.FindFieldByName(name) != nullptr) {
    absl::StrAppend(&explained, "; is a } missing before it? It is inside ", OpenedAt(open.back()));
  }
  return explained;
}

}  // namespace

absl::Status ReadTextFormat(const std::string& path, google::protobuf::Message* message) {
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadFile(ResolveUserPath(path)));
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (parser.ParseFromString(text, message)) return absl::OkStatus();
  const Descriptor& descriptor = *message->GetDescriptor();
  if (!error.found()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a ", descriptor.name(), " in text format"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", error.line() + 1, ":", error.column() + 1, ": ", Explain(text, error, descriptor)));
}

}  // namespace quartet
