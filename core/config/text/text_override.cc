#include "core/config/text/text_override.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/config/text/field_names.h"
#include "core/config/text/names_elsewhere.h"

namespace quartet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string FieldNames(const Descriptor& descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.field_count(); ++i) names.push_back(descriptor.field(i)->name());
  return absl::StrJoin(names, ", ");
}

class FirstMessage : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string& message) override {
    if (message_.empty()) message_ = message;
  }
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

class Setter {
 public:
  // `begun`: paths of lists that texts before this one have set.
  Setter(absl::string_view path, absl::string_view value, std::set<std::string>* begun)
      : path_(path), value_(value), begun_(begun) {}

  absl::Status Set(Message* message) {
    const std::vector<std::string> parts = absl::StrSplit(path_, '.');
    const Descriptor& root = *message->GetDescriptor();
    for (size_t i = 0;; ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(parts[i]);
      if (field == nullptr) {
        return Error(
            absl::StrCat("there is no field '", parts[i], "'",
                         i == 0 ? "" : absl::StrCat(" in ", absl::StrJoin(parts.begin(), parts.begin() + i, ".")),
                         Meant(parts, i, *message->GetDescriptor(), root),
                         " (there are: ", FieldNames(*message->GetDescriptor()), ")"));
      }
      const bool last = i + 1 == parts.size();
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        if (last && value_.empty()) return Unset(message, field);
        if (!last) {
          return Error(absl::StrCat("'", parts[i], "' is a ", field->is_repeated() ? "list of values" : "single value",
                                    " and has no fields"));
        }
        return field->is_repeated() ? SetList(message, field) : SetScalar(message, field, value_);
      }
      if (last && value_.empty()) return Unset(message, field);
      const Reflection* reflection = message->GetReflection();
      if (field->is_repeated()) {
        int index = 0;
        const int size = reflection->FieldSize(*message, field);
        if (last || !absl::SimpleAtoi(parts[i + 1], &index) || index < 0 || index > size) {
          const std::string list = absl::StrJoin(parts.begin(), parts.begin() + i + 1, ".");
          return Error(absl::StrCat("'", list, "' is a list: name an element, ", list, ".0 to ", list, ".", size,
                                    ", and its field"));
        }
        if (index == size) reflection->AddMessage(message, field);
        message = reflection->MutableRepeatedMessage(message, field, index);
        ++i;
        if (i + 1 == parts.size()) return Error(NeedsField(*message->GetDescriptor()));
      } else {
        if (last) return Error(NeedsField(*field->message_type()));
        message = reflection->MutableMessage(message, field);
      }
    }
  }

 private:
  // Of parts[i], which is no field. What is written behind it counts where the whole is a name of another system.
  static std::string Meant(const std::vector<std::string>& parts, size_t i, const Descriptor& message,
                           const Descriptor& root) {
    const std::string whole = i + 1 == parts.size() ? "" : MeantPath(absl::StrJoin(parts, "."));
    return whole.empty() ? MeantField(absl::StrJoin(parts.begin(), parts.begin() + i + 1, "."), message, root) : whole;
  }
  static std::string NeedsField(const Descriptor& descriptor) {
    return absl::StrCat("it is a group of fields; name one of: ", FieldNames(descriptor));
  }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("--set=", path_, "=", value_, ": ", what));
  }

  absl::Status Unset(Message* message, const FieldDescriptor* field) const {
    begun_->emplace(path_);
    message->GetReflection()->ClearField(message, field);
    return absl::OkStatus();
  }

  absl::Status SetList(Message* message, const FieldDescriptor* field) const {
    if (begun_->emplace(path_).second) message->GetReflection()->ClearField(message, field);
    if (value_.front() == '[') {
      // As in a file, for texts with commas.
      google::protobuf::TextFormat::Parser parser;
      FirstMessage error;
      parser.RecordErrorsTo(&error);
      if (parser.MergeFromString(absl::StrCat(field->name(), ": ", value_), message)) return absl::OkStatus();
      return Error(absl::StrCat(
          error.message(), "; a list that begins with [ is written as in a file, such as [\"a,b\", \"c\"] or [1, 2]"));
    }
    for (const absl::string_view value : absl::StrSplit(value_, ',')) {
      if (absl::Status s = SetScalar(message, field, value); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Number(absl::string_view value, T* number, const char* kind) const {
    if (absl::SimpleAtoi(value, number)) return absl::OkStatus();
    return Error(absl::StrCat("'", value, "' is not ", kind, " from ", std::numeric_limits<T>::min(), " to ",
                              std::numeric_limits<T>::max()));
  }

  // Of a list it adds one.
  absl::Status SetScalar(Message* message, const FieldDescriptor* field, absl::string_view value) const {
    const Reflection* r = message->GetReflection();
    const bool repeated = field->is_repeated();
    switch (field->cpp_type()) {
#define QUARTET_INTEGER(CASE, Type, Name)                                                   \
  case FieldDescriptor::CASE: {                                                             \
    Type number = 0;                                                                        \
    if (absl::Status s = Number(value, &number, "a whole number"); !s.ok()) return s;       \
    repeated ? r->Add##Name(message, field, number) : r->Set##Name(message, field, number); \
    return absl::OkStatus();                                                                \
  }
      QUARTET_INTEGER(CPPTYPE_INT32, int32_t, Int32)
      QUARTET_INTEGER(CPPTYPE_INT64, int64_t, Int64)
      QUARTET_INTEGER(CPPTYPE_UINT32, uint32_t, UInt32)
      QUARTET_INTEGER(CPPTYPE_UINT64, uint64_t, UInt64)
#undef QUARTET_INTEGER
      case FieldDescriptor::CPPTYPE_FLOAT: {
        float number = 0;
        if (!absl::SimpleAtof(value, &number) || !std::isfinite(number)) return NotANumber(value);
        repeated ? r->AddFloat(message, field, number) : r->SetFloat(message, field, number);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double number = 0;
        if (!absl::SimpleAtod(value, &number) || !std::isfinite(number)) return NotANumber(value);
        repeated ? r->AddDouble(message, field, number) : r->SetDouble(message, field, number);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_BOOL: {
        if (value != "true" && value != "false") return Error("allowed are true and false");
        repeated ? r->AddBool(message, field, value == "true") : r->SetBool(message, field, value == "true");
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const auto* number = field->enum_type()->FindValueByName(std::string(value));
        if (number == nullptr) {
          std::vector<std::string> names;
          for (int i = 0; i < field->enum_type()->value_count(); ++i)
            names.push_back(field->enum_type()->value(i)->name());
          return Error(absl::StrCat("allowed are ", absl::StrJoin(names, ", ")));
        }
        repeated ? r->AddEnum(message, field, number) : r->SetEnum(message, field, number);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        repeated ? r->AddString(message, field, std::string(value)) : r->SetString(message, field, std::string(value));
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    return Error("this kind of field cannot be set so");
  }

  absl::Status NotANumber(absl::string_view value) const {
    return Error(absl::StrCat("'", value, "' is not a finite number"));
  }

  const absl::string_view path_;
  const absl::string_view value_;
  std::set<std::string>* const begun_;
};

}  // namespace

absl::Status SetFieldsFromTexts(const std::vector<std::string>& texts, Message* message) {
  std::set<std::string> begun;
  for (const absl::string_view text : texts) {
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set=", text, ": expected path.to.field=value, such as rollout.temperature=0.8"));
    }
    absl::Status status = Setter(text.substr(0, equals), text.substr(equals + 1), &begun).Set(message);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace quartet
