#include "core/config/text_format.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

// Keeps the first error of a parse, as file:line:column, counted from 1.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(const std::string& path) : path_(path) {}
  void AddError(int line, int column, const std::string& message) override {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(path_, ":", line + 1, ":", column + 1, ": ", message));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  absl::Status status_;
};

}  // namespace

absl::Status ReadTextFormat(const std::string& path, google::protobuf::Message* message) {
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadFile(ResolveUserPath(path)));
  FirstError error(path);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (parser.ParseFromString(text, message)) return absl::OkStatus();
  if (!error.status().ok()) return error.status();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": not a ", message->GetDescriptor()->name(), " in text format"));
}

}  // namespace quartet
