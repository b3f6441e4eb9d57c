#include "core/config/resolving/recorded.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/config/resolving/defaults.h"
#include "core/config/text/text_format.h"

namespace quartet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr absl::string_view kMark = "# default ";

// The field of a line "name: value", which nothing but white space stands before; "" of another line.
absl::string_view FieldOf(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  const absl::string_view name = line.substr(0, line.find(": "));
  const bool is_name = name.size() < line.size() &&
                       std::ranges::all_of(name, [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
  return is_name ? name : absl::string_view();
}

// Whether a line is of a value that is as its mark has it.
bool IsRecordedDefault(absl::string_view line) {
  const size_t mark = line.rfind(kMark);
  const absl::string_view name = FieldOf(line);
  if (name.empty() || mark == absl::string_view::npos) return false;
  const size_t begin = line.find(": ") + 2;
  if (begin > mark) return false;
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(begin, mark - begin));
  return value != "\"" &&  // of a text of which the mark is a part
         value == absl::StripAsciiWhitespace(line.substr(mark + kMark.size()));
}

// The lines without those of defaults. A list is one where all of its elements are, and a text where it ends in its
// line.
std::string WithoutDefaults(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (size_t begin = 0, end = 0; begin < lines.size(); begin = end) {
    bool all = true;
    do {
      all = IsRecordedDefault(lines[end++]) && all;
    } while (end < lines.size() && !FieldOf(lines[begin]).empty() && FieldOf(lines[end]) == FieldOf(lines[begin]));
    const bool goes_on = end < lines.size() && absl::StartsWith(absl::StripLeadingAsciiWhitespace(lines[end]), "\"");
    if (all && !goes_on)
      std::fill(lines.begin() + begin, lines.begin() + end, absl::string_view(""));  // whose data is not null
  }
  return absl::StrJoin(lines, "\n");
}

// The values of a field, in text format; "" where it is not set, or there is no message.
std::string ValuesOf(const Message* message, const FieldDescriptor* field) {
  if (message == nullptr) return "";
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<std::string> values(field->is_repeated() ? reflection.FieldSize(*message, field)
                                                       : reflection.HasField(*message, field));
  for (size_t i = 0; i < values.size(); ++i) {
    google::protobuf::TextFormat::PrintFieldValueToString(*message, field,
                                                          field->is_repeated() ? static_cast<int>(i) : -1, &values[i]);
  }
  return absl::StrJoin(values, ", ");
}

// The message at `place` of the field, which is 0 of a single one; nullptr where it is not there.
const Message* Below(const Message* message, const FieldDescriptor* field, int place) {
  if (message == nullptr) return nullptr;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  if (!field->is_repeated()) {
    return reflection.HasField(*message, field) ? &reflection.GetMessage(*message, field) : nullptr;
  }
  return place < reflection.FieldSize(*message, field) ? &reflection.GetRepeatedMessage(*message, field, place)
                                                       : nullptr;
}

struct Versions {
  const Message *set, *whole;   // of the file
  const Message *before, *now;  // with defaults: of the file alone, and with what is set beside it
};

// Where services listen is of who starts them, whatever it was by default for whoever did so then.
bool IsOfTheStart(const FieldDescriptor* field) {
  return field == ServicePlacement::descriptor()->FindFieldByNumber(ServicePlacement::kListenFieldNumber);
}

void Keep(const Versions& all, Message* config) {
  const google::protobuf::Reflection& reflection = *config->GetReflection();
  std::vector<const FieldDescriptor*> recorded;
  all.whole->GetReflection()->ListFields(*all.whole, &recorded);
  for (const FieldDescriptor* field : recorded) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      const bool is_default = ValuesOf(all.set, field).empty() && ValuesOf(config, field).empty();
      if (!is_default || IsOfTheStart(field) || ValuesOf(all.before, field) != ValuesOf(all.now, field)) continue;
      const std::unique_ptr<Message> copy(all.whole->New());
      copy->CopyFrom(*all.whole);
      reflection.SwapFields(config, copy.get(), {field});
      continue;
    }
    const int count = field->is_repeated() ? all.whole->GetReflection()->FieldSize(*all.whole, field) : 1;
    for (int i = 0; i < count; ++i) {
      const Message* const there = Below(config, field, i);
      // Else it was taken away.
      if (there == nullptr && (field->is_repeated() || Below(all.now, field, i) == nullptr)) continue;
      Keep(
          {Below(all.set, field, i), Below(all.whole, field, i), Below(all.before, field, i), Below(all.now, field, i)},
          field->is_repeated() ? reflection.MutableRepeatedMessage(config, field, i)
                               : reflection.MutableMessage(config, field));
    }
  }
}

RunConfig WithDefaults(Program program, RunConfig config) {
  ClearUnread(program, &config);
  FillDefaults(program, &config);
  return config;
}

}  // namespace

std::string DefaultMark(absl::string_view value) { return absl::StrCat("  ", kMark, value); }

absl::StatusOr<RecordedConfig> ReadRecordedConfig(const std::string& path) {
  RecordedConfig config;
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadConfigText(path));
  QUARTET_RETURN_IF_ERROR(ParseTextFormat(path, text, &config.whole));
  QUARTET_RETURN_IF_ERROR(ParseTextFormat(path, WithoutDefaults(text), &config.set));
  return config;
}

absl::StatusOr<RunConfig> ReadConfigToShow(const std::string& path) {
  RunConfig config;
  QUARTET_RETURN_IF_ERROR(ReadKnownFields(path, &config));
  FillDefaults(Program::kViewer, &config);
  return config;
}

void KeepRecordedDefaults(const RecordedConfig& file, const RunConfig& beneath, Program program, RunConfig* config) {
  // What a service reads is a run's, whatever its program.
  const bool has_own = program == Program::kEvaluate ||
                       std::ranges::any_of(kRunPrograms, [program](const auto& one) { return one.second == program; });
  RunConfig alone = beneath;
  alone.MergeFrom(file.set);
  const RunConfig before = WithDefaults(has_own ? ProgramOfRun(file.whole) : program, std::move(alone));
  const RunConfig now = WithDefaults(program, *config);
  Keep({&file.set, &file.whole, &before, &now}, config);
}

}  // namespace quartet
