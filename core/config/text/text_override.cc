#include "core/config/text/text_override.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/config/text/field_names.h"

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

class Setter {
 public:
  Setter(absl::string_view path, absl::string_view value) : path_(path), value_(value) {}

  absl::Status Set(Message* message) {
    const std::vector<std::string> parts = absl::StrSplit(path_, '.');
    const Descriptor& root = *message->GetDescriptor();
    for (size_t i = 0;; ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(parts[i]);
      if (field == nullptr) {
        return Error(
            absl::StrCat("there is no field '", parts[i], "'",
                         i == 0 ? "" : absl::StrCat(" in ", absl::StrJoin(parts.begin(), parts.begin() + i, ".")),
                         MeantField(parts[i], *message->GetDescriptor(), root),
                         " (there are: ", FieldNames(*message->GetDescriptor()), ")"));
      }
      const bool last = i + 1 == parts.size();
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        if (!last) return Error(absl::StrCat("'", parts[i], "' is a single value and has no fields"));
        return SetScalar(message, field);
      }
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
  static std::string NeedsField(const Descriptor& descriptor) {
    return absl::StrCat("it is a group of fields; name one of: ", FieldNames(descriptor));
  }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("--set=", path_, "=", value_, ": ", what));
  }

  template <typename T>
  absl::Status Number(T* number, const char* kind) const {
    if (absl::SimpleAtoi(value_, number)) return absl::OkStatus();
    return Error(absl::StrCat("'", value_, "' is not ", kind, " from ", std::numeric_limits<T>::min(), " to ",
                              std::numeric_limits<T>::max()));
  }

  absl::Status SetScalar(Message* message, const FieldDescriptor* field) const {
    const Reflection* r = message->GetReflection();
    const bool repeated = field->is_repeated();
    switch (field->cpp_type()) {
#define QUARTET_INTEGER(CASE, Type, Name)                                                   \
  case FieldDescriptor::CASE: {                                                             \
    Type number = 0;                                                                        \
    if (absl::Status s = Number(&number, "a whole number"); !s.ok()) return s;              \
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
        if (!absl::SimpleAtof(value_, &number) || !std::isfinite(number)) return NotANumber();
        repeated ? r->AddFloat(message, field, number) : r->SetFloat(message, field, number);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double number = 0;
        if (!absl::SimpleAtod(value_, &number) || !std::isfinite(number)) return NotANumber();
        repeated ? r->AddDouble(message, field, number) : r->SetDouble(message, field, number);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_BOOL: {
        if (value_ != "true" && value_ != "false") return Error("allowed are true and false");
        repeated ? r->AddBool(message, field, value_ == "true") : r->SetBool(message, field, value_ == "true");
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const auto* value = field->enum_type()->FindValueByName(std::string(value_));
        if (value == nullptr) {
          std::vector<std::string> names;
          for (int i = 0; i < field->enum_type()->value_count(); ++i)
            names.push_back(field->enum_type()->value(i)->name());
          return Error(absl::StrCat("allowed are ", absl::StrJoin(names, ", ")));
        }
        repeated ? r->AddEnum(message, field, value) : r->SetEnum(message, field, value);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        repeated ? r->AddString(message, field, std::string(value_))
                 : r->SetString(message, field, std::string(value_));
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    return Error("this kind of field cannot be set so");
  }

  absl::Status NotANumber() const { return Error(absl::StrCat("'", value_, "' is not a finite number")); }

  const absl::string_view path_;
  const absl::string_view value_;
};

}  // namespace

absl::Status SetFieldFromText(absl::string_view override_text, Message* message) {
  const size_t equals = override_text.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set=", override_text, ": expected path.to.field=value, such as rollout.temperature=0.8"));
  }
  return Setter(override_text.substr(0, equals), override_text.substr(equals + 1)).Set(message);
}

}  // namespace quartet
