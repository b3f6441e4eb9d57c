#include "core/field_rules/field_rules.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "proto/field_rule.pb.h"

namespace quartet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool IsMessage(const FieldDescriptor& field) { return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; }
bool IsText(const FieldDescriptor& field) { return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING; }

void SetDefault(const FieldDescriptor& field, const std::string& text, Message* message) {
  if (IsText(field)) {
    message->GetReflection()->SetString(message, &field, text);
    return;
  }
  QUARTET_CHECK(google::protobuf::TextFormat::ParseFieldValueFromString(text, &field, message))
      << field.full_name() << ": " << text;
}

// Of a number; `index` in a list, else -1.
double NumberIn(const Message& message, const FieldDescriptor& field, int index) {
  const google::protobuf::Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, &field) : r.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(one ? r.GetInt64(message, &field) : r.GetRepeatedInt64(message, &field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r.GetDouble(message, &field) : r.GetRepeatedDouble(message, &field, index);
    default:
      return 0;
  }
}

// As one writes it: 16777216, 1e-05.
std::string Written(double bound) {
  constexpr double kExact = 1e15;
  return bound == std::floor(bound) && std::abs(bound) < kExact ? absl::StrCat(static_cast<int64_t>(bound))
                                                                : absl::StrCat(bound);
}

// "it must be at least 0 and below 1".
std::string RangeOf(const FieldRule& rule) {
  std::vector<std::string> sides;
  const auto add = [&](bool is_set, const char* what, double bound) {
    if (is_set) sides.push_back(absl::StrCat(what, " ", Written(bound)));
  };
  add(rule.has_min(), "at least", rule.min());
  add(rule.has_above(), "greater than", rule.above());
  add(rule.has_max(), "at most", rule.max());
  add(rule.has_below(), "below", rule.below());
  return absl::StrCat("it must be ", sides.empty() ? "a finite number" : absl::StrJoin(sides, " and "));
}

bool IsWithin(const FieldRule& rule, double value) {
  return std::isfinite(value) && !(rule.has_min() && value < rule.min()) &&
         !(rule.has_above() && value <= rule.above()) && !(rule.has_max() && value > rule.max()) &&
         !(rule.has_below() && value >= rule.below());
}

absl::Status CheckValue(const std::string& path, const FieldDescriptor& field, const FieldRule& rule,
                        const std::string& text, double number) {
  if (!rule.one_of().empty()) {
    const std::string value(absl::StripSuffix(absl::StripPrefix(text, "\""), "\""));
    if (std::find(rule.one_of().begin(), rule.one_of().end(), value) != rule.one_of().end()) return absl::OkStatus();
    if (field.name() == "dtype" && (value == "fp16" || value == "float16" || value == "half")) {
      return NotAllowed(
          path, text,
          "fp16 is not supported, its range is too small for training without loss scaling: use \"bf16\" or "
          "\"fp32\"");
    }
    return NotAllowed(path, text,
                      IsText(field) ? absl::StrCat("allowed: \"", absl::StrJoin(rule.one_of(), "\", \""), "\"")
                                    : absl::StrCat("allowed: ", absl::StrJoin(rule.one_of(), ", ")));
  }
  return IsWithin(rule, number) ? absl::OkStatus() : NotAllowed(path, text, RangeOf(rule));
}

absl::Status CheckField(const std::string& path, const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const int size = field.is_repeated() ? reflection.FieldSize(message, &field) : 1;
  for (int i = 0; i < size; ++i) {
    const int index = field.is_repeated() ? i : -1;
    if (IsMessage(field)) {
      const std::string place = index < 0 ? absl::StrCat(path, ".") : absl::StrCat(path, "[", i, "].");
      QUARTET_RETURN_IF_ERROR(CheckRules(place, index < 0 ? reflection.GetMessage(message, &field)
                                                          : reflection.GetRepeatedMessage(message, &field, i)));
      continue;
    }
    if (!field.options().HasExtension(field_rule)) continue;
    std::string text;
    google::protobuf::TextFormat::PrintFieldValueToString(message, &field, index, &text);
    QUARTET_RETURN_IF_ERROR(
        CheckValue(path, field, field.options().GetExtension(field_rule), text, NumberIn(message, field, index)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NotAllowed(absl::string_view field, absl::string_view value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not allowed; ", allowed));
}

void FillRules(Message* message) {
  const google::protobuf::Descriptor& descriptor = *message->GetDescriptor();
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (IsMessage(field)) {
      if (field.is_repeated()) {
        for (int k = 0; k < reflection.FieldSize(*message, &field); ++k) {
          FillRules(reflection.MutableRepeatedMessage(message, &field, k));
        }
      } else if (reflection.HasField(*message, &field)) {
        FillRules(reflection.MutableMessage(message, &field));
      }
      continue;
    }
    const FieldRule& rule = field.options().GetExtension(field_rule);
    if (rule.has_default_() && !reflection.HasField(*message, &field)) SetDefault(field, rule.default_(), message);
  }
}

absl::Status CheckRules(const std::string& path, const Message& message) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  std::sort(set.begin(), set.end(), [](const auto* a, const auto* b) { return a->index() < b->index(); });
  for (const FieldDescriptor* field : set) {
    QUARTET_RETURN_IF_ERROR(CheckField(absl::StrCat(path, field->name()), message, *field));
  }
  return absl::OkStatus();
}

}  // namespace quartet
