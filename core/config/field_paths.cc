#include "core/config/field_paths.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void Flatten(const Message& message, const std::string& prefix, std::map<std::string, std::string>* fields) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string path = absl::StrCat(prefix, field->name());
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string place = field->is_repeated() ? absl::StrCat(path, ".", i) : path;
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Flatten(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                     : reflection.GetMessage(message, field),
                absl::StrCat(place, "."), fields);
        continue;
      }
      google::protobuf::TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1,
                                                            &(*fields)[place]);
    }
  }
}

bool IsSet(const Message& message, const FieldDescriptor* field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (!field->is_repeated()) return reflection.HasField(message, field);
  const int count = reflection.FieldSize(message, field);
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return count > 0;
  for (int i = 0; i < count; ++i) {
    if (reflection.GetRepeatedMessage(message, field, i).ByteSizeLong() > 0) return true;
  }
  return false;
}

}  // namespace

std::map<std::string, std::string> FlatFields(const Message& message) {
  std::map<std::string, std::string> fields;
  Flatten(message, "", &fields);
  return fields;
}

std::string FirstSet(absl::string_view path, const Message& message) {
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  const Message* at = &message;
  for (size_t i = 0; i < parts.size(); ++i) {
    const FieldDescriptor* field = at->GetDescriptor()->FindFieldByName(parts[i]);
    QUARTET_CHECK(field != nullptr) << path;
    if (!IsSet(*at, field)) return "";
    if (field->is_repeated() || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return std::string(path);
    at = &at->GetReflection()->GetMessage(*at, field);
  }
  std::vector<const FieldDescriptor*> below;
  at->GetReflection()->ListFields(*at, &below);
  for (const FieldDescriptor* field : below) {
    const std::string found = FirstSet(field->name(), *at);
    if (!found.empty()) return absl::StrCat(path, ".", found);
  }
  return "";
}

bool IsFieldPath(absl::string_view path, const google::protobuf::Descriptor& type) {
  const google::protobuf::Descriptor* at = &type;
  bool in_list = false;  // the next part is a place
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    if (in_list) {
      in_list = false;
      continue;
    }
    const FieldDescriptor* field = at == nullptr ? nullptr : at->FindFieldByName(std::string(part));
    if (field == nullptr) return false;
    at = field->message_type();
    in_list = field->is_repeated();
  }
  return true;
}

void ClearPath(absl::string_view path, Message* message) {
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  for (size_t i = 0; i < parts.size(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(parts[i]);
    QUARTET_CHECK(field != nullptr) << path;
    if (i + 1 == parts.size()) {
      message->GetReflection()->ClearField(message, field);
    } else if (!message->GetReflection()->HasField(*message, field)) {
      return;
    } else {
      message = message->GetReflection()->MutableMessage(message, field);
    }
  }
}

}  // namespace quartet
